"""The transports of a server, and what they answer with."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, TypeAlias

from modelyard.errors import ConfigurationError
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.grpc import GrpcServer
from modelyard.serving.handlers.oip import OipGrpc, OipRest, OipService
from modelyard.serving.handlers.openapi import openapi_document
from modelyard.serving.handlers.rest import Page, RestApp, SageMakerApp, admit, config_json, models_json, signatures_of
from modelyard.serving.metrics import Metrics, exposition
from modelyard.serving.prediction import Predictor
from modelyard.serving.repository import Admin, ModelManager
from modelyard.serving.runtime._security import Security
from modelyard.serving.telemetry import Telemetry
from modelyard.serving.transports.grpc import ARGUMENTS, GrpcioServer, limits_of
from modelyard.serving.transports.http import Application, HttpRequest

if TYPE_CHECKING:
    from modelyard.serving.transports.asgi import UvicornServer
    from modelyard.serving.transports.native import NativeCore, NativeGrpc, NativeRest

_LOG = logging.getLogger("modelyard.serving")
Transport: TypeAlias = "GrpcServer | NativeRest | UvicornServer"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a server that transports answer requests with."""

    options: ServerOptions
    manager: ModelManager
    predictor: Predictor
    metrics: Metrics
    admin: Admin
    security: Security
    telemetry: Telemetry


def make_transports(parts: Parts) -> list[Transport]:
    """The transports of the ports that the options name, not started yet."""
    core = _native_core(parts) if parts.options.transport == "native" else None
    oip = OipService(parts.manager, parts.predictor, parts.admin)
    transports: list[Transport] = []
    if parts.options.port or parts.options.grpc_socket_path:
        transports.append(_grpc(parts, oip, core))
    if parts.options.rest_api_port:
        transports.append(_rest(parts, oip, core))
    return transports


def _grpc(parts: Parts, oip: OipService, core: NativeCore | None) -> GrpcServer:
    options = parts.options
    # gRPC's own server has its limits as arguments; those that are given go before.
    arguments = (*options.limits.channel_arguments(), *options.grpc_channel_arguments)
    library = GrpcioServer(arguments, recorder=parts.telemetry.recorder)
    transport: GrpcioServer | NativeGrpc = library
    if core is not None and limits_of(options.grpc_channel_arguments) is not None:
        from modelyard.serving.transports.native import NativeGrpc

        transport = NativeGrpc(core, library)
    elif core is not None:
        _LOG.warning(
            "grpc.aio serves gRPC, which is slower: of --grpc_channel_arguments, the native core knows %s, with "
            "numbers", ", ".join(sorted(ARGUMENTS)),
        )  # fmt: skip
    access, metrics = parts.security.access, parts.metrics
    return GrpcServer(
        parts.predictor, parts.manager, parts.admin, access, metrics, options, transport,
        tls=parts.security.tls, more=OipGrpc(oip, metrics, access).services(),
    )  # fmt: skip


def _rest(parts: Parts, oip: OipService, core: NativeCore | None) -> NativeRest | UvicornServer:
    options, access = parts.options, parts.security.access
    pages = _pages(parts)
    rest = RestApp(
        parts.predictor,
        parts.metrics,
        options,
        access,
        is_starting=parts.manager.is_starting,
        metrics_page=partial(_metrics_page, parts.metrics),
        v2=OipRest(oip, parts.predictor, options, access, parts.metrics).answer,
        pages=pages,
    )
    app: Application = SageMakerApp(rest, model=options.models[0].name) if options.sagemaker else rest
    if options.console:
        from modelyard.serving.handlers.console import ConsoleApp

        app = ConsoleApp(
            app,
            manager=parts.manager,
            predictor=parts.predictor,
            metrics=parts.metrics,
            statistics=parts.predictor.statistics,
            document=pages["/openapi.json"].text,
            version=installed_version("modelyard"),
            traffic=None if parts.predictor.rollout is None else parts.predictor.rollout.table,
            check=lambda request: admit(access, request, "metadata").release(),
            administered=lambda request: access.administered(request.credentials),
        )
    port, tls = options.rest_api_port, parts.security.tls if options.rest_tls else None
    if core is not None:
        from modelyard.serving.transports.native import NativeRest

        return NativeRest(core, app, port=port, tls=tls)
    from modelyard.serving.transports.asgi import UvicornServer

    recorder, metrics = parts.telemetry.recorder, parts.metrics
    return UvicornServer(app, port=port, limits=options.limits, tls=tls, recorder=recorder, metrics=metrics)


def _pages(parts: Parts) -> dict[str, Page]:
    """The JSON documents beside the APIs."""
    options, manager, rollout = parts.options, parts.manager, parts.predictor.rollout
    access = parts.security.access
    pages: dict[str, Page] = {
        "/v1/models": Page(
            scope="metadata",
            text=lambda request: models_json(manager, access.administered(request.credentials)),
        ),
        "/v2/config": Page(scope="admin", text=lambda _: config_json(options, manager)),
    }
    if rollout is not None:
        pages["/v2/traffic"] = Page(scope="metadata", text=lambda _: rollout.rows_json())

    def document(_: HttpRequest) -> str:
        # The general paths hold for models of which nothing is loaded.
        models = {name: known for name in manager.names if (known := signatures_of(manager, name))}
        version, paths = installed_version("modelyard"), options.metrics_paths
        found = openapi_document(models, version=version, metrics_paths=paths, pages=pages, sagemaker=options.sagemaker)
        return json.dumps(found, indent=1) + "\n"

    pages["/openapi.json"] = Page(scope="metadata", text=document)
    return pages


def _native_core(parts: Parts) -> NativeCore:
    try:
        from modelyard.serving.transports.native import NativeCore
    except ImportError as exc:
        raise ConfigurationError(
            f"modelyard_core is installed and cannot be loaded: {exc}. Build it with make install, or use "
            "--transport=python."
        ) from exc

    predictor, recorder = parts.predictor, parts.telemetry.recorder
    core = NativeCore(parts.options, parts.security.access, None if recorder is None else recorder.wanted)
    core.record(parts.telemetry)
    core.answer_usual(parts.manager, parts.metrics, predictor.statistics, predictor.rollout)
    parts.metrics.watch(":modelyard:serving:requests_in_flight", {}, lambda: predictor.waiting + core.waiting)
    held = ":modelyard:serving:request_bytes_in_flight"
    parts.metrics.watch(held, {}, lambda: predictor.budget.used + core.inflight_bytes)
    core.watch(parts.metrics)
    return core


async def _metrics_page(metrics: Metrics, accept: str) -> tuple[str, bytes]:
    return exposition(metrics.snapshot(), accept)
