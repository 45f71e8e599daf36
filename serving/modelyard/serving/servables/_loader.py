"""Loads a version directory: chooses runtime, precision and signatures."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelyard.artifact import (
    MANIFEST_NAME,
    ONNX_FOLDER,
    PREPROCESS_SUFFIX,
    TFLITE_NAME,
    Manifest,
    ModelVersion,
    Signature,
    format_key,
    format_path,
    read_manifest,
    targets_below,
    verify_files,
    verify_version,
)
from modelyard.errors import LoadError
from modelyard.serving.backends import (
    CPU,
    RUNTIME_FILES,
    RUNTIME_FORMATS,
    SAVED_MODEL_NAME,
    TRITON_ONNX,
    TRITON_SAVED_MODEL,
    Backend,
    LitertBackend,
    OnnxRuntimeBackend,
    OpenVinoBackend,
    Runtime,
    TensorFlowBackend,
    adapt,
    available_runtimes,
    check_room,
    device_runtime,
    is_installed,
    missing_runtime,
    onnx_graphs,
    read_meta_graph,
    saved_model_of,
    state_changes,
)
from modelyard.serving.config import LoadOptions
from modelyard.serving.machine import available_cpus
from modelyard.serving.requests import Arrays
from modelyard.serving.servables._servable import Servable, one_at_a_time
from modelyard.serving.servables._zero_rows import answer_zero_rows
from modelyard.wire import dtype_by_name, shape_to_proto, tensorflow_pb2, tensors_to_arrays

_LOG = logging.getLogger("modelyard.serving")

#: How much faster rows of a large batch must be than single rows: the first row of a batch waits for its last.
_GAIN = 1.05
#: The folder of a SavedModel's weights.
_VARIABLES = "variables"
#: So many files of a folder without a model are named.
_NAMED = 3


def load_servable(name: str, version: int, path: Path, options: LoadOptions) -> Servable:
    """Loads one version from its directory; where that has a manifest, every file is checked against it first.

    Raises:
        IntegrityError: A file is missing or damaged, or the version is not signed by a key that is trusted.
        LoadError: Nothing here can be loaded.
        ManifestError: The manifest is not valid.
        MissingDependencyError: The runtime that was asked for, or the only one
            that could run this version, is not installed.
    """
    manifest = _verified(version, path, options)
    # What an export measured, it measured on a CPU.
    measured = manifest if options.device == CPU else None
    runtime = _choose(path, manifest, options)
    plan = _plan(path, manifest, measured, runtime, options)
    files = format_key(RUNTIME_FORMATS[runtime], plan.precision)
    place = "" if options.device == CPU else f" on {options.device}"
    _LOG.info("%s: %s with %s%s, %d thread(s)", path, files, runtime, place, plan.threads)
    backend = _load_backend(path, runtime, plan, options.device)
    try:
        signatures = _signatures(path, backend, manifest, plan)
        definitions = _definitions(path, signatures, backend, options)
        entry = None if manifest is None else manifest.formats.get(files)
        if manifest is not None and entry is not None:
            backend = adapt(backend, manifest.signatures, entry)
        if runtime == "openvino":
            # Metadata must not promise the signatures that it leaves out.
            definitions = {name: definitions[name] for name in signatures if name in definitions}
    except BaseException:
        backend.close()
        raise
    return Servable(
        name=name,
        version=version,
        path=path,
        backend=backend,
        signatures=signatures,
        definitions=definitions,
        check_shapes=backend.checks_shapes or manifest is not None,
        defaults=_defaults(definitions),
        compute=one_at_a_time(
            answer_zero_rows(backend.run, backend.signatures, signatures.values()), signatures.values()
        ),
        # Manifests of earlier exporters say nothing of rows.
        rows=(entry.other_runtimes.get(runtime, entry.verify).rows or None) if entry is not None else None,
        gainless=frozenset() if measured is None else _gainless(measured, runtime, plan),
    )


def _gainless(manifest: Manifest, runtime: Runtime, plan: _Plan) -> frozenset[str]:
    """Signatures whose largest measured batch was not worth waiting for."""
    rates: dict[str, dict[int, float]] = {}
    for each in manifest.latency:
        same = (each.runtime, each.precision, each.threads) == (runtime, plan.precision, plan.threads)
        if same and each.examples_per_s is not None:
            rates.setdefault(each.signature, {})[each.batch_size] = each.examples_per_s
    return frozenset(
        name for name, found in rates.items() if max(found) > 1 and found[max(found)] < _GAIN * found.get(1, 0)
    )


def _check_kinds(path: Path) -> None:
    """Refuses a version with pipes, sockets or devices: who opens one may wait for ever, and read without an end."""
    for name, entry in targets_below(path).items():
        if not (stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode)):
            raise LoadError(
                f"{path} has {name!r}, which is a pipe, a socket or a device; expected files and folders. Remove it."
            )


def _verified(version: int, path: Path, options: LoadOptions) -> Manifest | None:
    _check_kinds(path)
    if options.trusted_keys:
        return verify_version(ModelVersion(number=version, path=path), trusted_keys=options.trusted_keys)
    # A manifest that cannot be read is no reason to serve what it describes unchecked.
    if not os.path.lexists(path / MANIFEST_NAME):
        return None
    manifest = read_manifest(path)
    verify_files(path, manifest)
    return manifest


def _choose(path: Path, manifest: Manifest | None, options: LoadOptions) -> Runtime:
    available = available_runtimes(path)
    if not available:
        names = sorted(each.name for each in path.glob("*"))
        held = ", ".join([*names[:_NAMED], *(["..."] if names[_NAMED:] else [])]) or "nothing"
        raise LoadError(
            f"{path} holds no model: it has {held}; expected {SAVED_MODEL_NAME}, {TFLITE_NAME}, {TRITON_ONNX}, "
            f"{ONNX_FOLDER}/*.onnx or {TRITON_SAVED_MODEL}/. Export one with: modelyard export"
        )
    needed = device_runtime(options.device)
    if needed is not None and options.runtime not in (None, needed):
        raise LoadError(
            f"{path} cannot be computed on {options.device}, which is for {needed}: the runtime {options.runtime!r} "
            "was asked for (by --runtime, or by the model_platform of its configuration). Leave out one of the two."
        )
    asked = options.runtime or needed
    if asked is not None:
        if asked not in available:
            raise LoadError(
                f"{path} has no file for the runtime {asked!r} that was asked for (by --runtime, by --device, or by "
                f"the model_platform of its configuration); it can be served by {' or '.join(available)}."
            )
        if not is_installed(asked):
            raise missing_runtime(path, asked, [each for each in available if is_installed(each)])
        return asked
    wanted = None if manifest is None else manifest.runtime
    ranked = [wanted, *(() if manifest is None else (choice.runtime for choice in manifest.choices))]
    preferred = [runtime for runtime in available if runtime != "openvino" or "openvino" in ranked]
    if options.prefer_tflite and "litert" in preferred:
        preferred = ["litert"]
    else:
        # The manifest may name one that this directory has no file for.
        preferred.sort(key=lambda runtime: ranked.index(runtime) if runtime in ranked else len(ranked))
    installed = [runtime for runtime in preferred if is_installed(runtime)]
    if not installed and "openvino" in available and is_installed("openvino"):
        _LOG.info("%s: no other runtime for %s is installed, so openvino serves it", path, RUNTIME_FILES[preferred[0]])
        installed = ["openvino"]
    if not installed:
        raise missing_runtime(path, preferred[0], [])
    if wanted == preferred[0] != installed[0]:
        _LOG.warning(
            "%s: the manifest's choice is %s, which is not installed; %s serves it instead", path, wanted, installed[0]
        )
    return installed[0]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How a version is loaded, with every choice made."""

    precision: str
    threads: int
    interpreters: int
    tags: tuple[str, ...]


def _plan(
    path: Path, manifest: Manifest | None, measured: Manifest | None, runtime: Runtime, options: LoadOptions
) -> _Plan:
    """Precision and threads: those of the options, or else those measured to be best for the runtime."""
    choice = next((each for each in (measured.choices if measured else ()) if each.runtime == runtime), None)
    format = RUNTIME_FORMATS[runtime]
    precision = options.precision or ("float32" if choice is None else choice.precision)
    if options.precision is None and options.prefer_tflite and _has_files(path, format, "float32"):
        # What upstream's flag means is model.tflite itself.
        precision = "float32"
    if options.precision is not None and not _is_served(manifest, runtime, precision):
        known = ["float32"] if manifest is None else [each.precision for each in manifest.formats.values()]
        verified = ", ".join(each for each in dict.fromkeys(known) if _is_served(manifest, runtime, each))
        raise LoadError(
            f"{path} has nothing of precision {precision} that was verified in {runtime}; there is "
            f"{verified or 'none'}. Export it with: modelyard export --precision {precision}"
        )
    # More threads than processors only take turns.
    cpus = options.cpus or available_cpus()
    threads = options.threads or (1 if choice is None else min(choice.threads, cpus))
    return _Plan(precision=precision, threads=threads, interpreters=options.interpreters, tags=options.tags)


def _is_served(manifest: Manifest | None, runtime: Runtime, precision: str) -> bool:
    if manifest is None:
        return precision == "float32"
    entry = manifest.formats.get(format_key(RUNTIME_FORMATS[runtime], precision))
    # The name of a runtime's package differs from the runtime's only for litert, which is alone with its format.
    return entry is not None and (
        runtime == "litert" or runtime in entry.runtime or runtime in entry.other_runtimes or precision == "float32"
    )


def _has_files(path: Path, format: str, precision: str) -> bool:
    place = path / format_path(format, precision)
    return place.is_file() or any(place.glob("*.onnx"))


def _load_backend(path: Path, runtime: Runtime, plan: _Plan, device: str) -> Backend:
    if runtime == "litert":
        file = path / format_path("tflite", plan.precision)
        return LitertBackend(file, threads=plan.threads, interpreters=plan.interpreters)
    saved = saved_model_of(path) or path
    graphs = {} if runtime == "tensorflow" else onnx_graphs(path, plan.precision)
    for graph in graphs.values():
        # Both runtimes hold the weights as the file has them, and as they compute with them: a card, in its own memory.
        check_room(graph, times=2 if device == CPU else 1)
    if not graphs and (saved / _VARIABLES).is_dir():
        check_room(saved / _VARIABLES, times=1)
    if runtime == "tensorflow":
        return TensorFlowBackend(saved, threads=plan.threads, tags=plan.tags)
    if runtime == "onnxruntime":
        return OnnxRuntimeBackend(graphs, threads=plan.threads, device=device)
    return OpenVinoBackend(
        graphs or saved,
        tags=plan.tags,
        threads=plan.threads,
        requests=plan.interpreters,
        bfloat16=plan.precision == "bfloat16",
        device=device,
    )


def _signatures(path: Path, backend: Backend, manifest: Manifest | None, plan: _Plan) -> dict[str, Signature]:
    """The signatures to offer: the manifest's where there is one, else what the backend sees."""
    graphs = backend.signatures
    if manifest is None:
        found = {name: graph for name, graph in graphs.items() if not name.endswith(PREPROCESS_SUFFIX)}
        return _with_state(path, plan, found) if backend.name == "tensorflow" else found
    if backend.name == "tensorflow" or (backend.name == "openvino" and not onnx_graphs(path, plan.precision)):
        # A SavedModel decodes encoded inputs in its own graph. OpenVINO keeps no state.
        return {
            name: replace(graphs[name], stateful=signature.stateful, unbatched=signature.unbatched)
            for name, signature in manifest.signatures.items()
            if name in graphs and not (signature.stateful and backend.name == "openvino")
        }
    for name, signature in manifest.signatures.items():
        for graph in (signature.compute, signature.preprocess):
            if graph is not None and graph not in graphs:
                raise LoadError(
                    f"Signature {name!r} needs the graph {graph!r}, which the {backend.name} files lack; "
                    f"they have {', '.join(sorted(graphs))}. Export the model again."
                )
    return dict(manifest.signatures)


def _with_state(path: Path, plan: _Plan, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
    """Signatures of a SavedModel without a manifest, with what its graph says of their state."""
    graph = read_meta_graph(saved_model_of(path) or path, plan.tags)
    outputs = {name: [info.name for info in graph.signature_def[name].outputs.values()] for name in signatures}
    return {
        name: replace(signature, stateful=bool(state_changes(graph, outputs[name])))
        for name, signature in signatures.items()
    }


def _defaults(definitions: Mapping[str, tensorflow_pb2.SignatureDef]) -> dict[str, Arrays]:
    return {
        name: tensors_to_arrays(definition.defaults) for name, definition in definitions.items() if definition.defaults
    }


def _definitions(
    path: Path, signatures: Mapping[str, Signature], backend: Backend, options: LoadOptions
) -> dict[str, tensorflow_pb2.SignatureDef]:
    """SignatureDefs for the metadata: the SavedModel's own where there is one, as upstream answers."""
    saved_model = saved_model_of(path)
    if saved_model is not None:
        return dict(read_meta_graph(saved_model, options.tags).signature_def)
    definitions = {}
    tensors = backend.tensor_names if isinstance(backend, LitertBackend) else {}
    for name, signature in signatures.items():
        definition = tensorflow_pb2.SignatureDef(method_name=signature.method)
        inputs, outputs = tensors.get(name, ({}, {}))
        for specs, infos, names in (
            (signature.inputs, definition.inputs, inputs),
            (signature.outputs, definition.outputs, outputs),
        ):
            for spec in specs:
                info = infos[spec.name]
                info.name = names.get(spec.name) or f"{name}_{spec.name}:0"
                info.dtype = dtype_by_name(spec.dtype).enum  # type: ignore[assignment]
                info.tensor_shape.CopyFrom(shape_to_proto(spec.shape))
        definitions[name] = definition
    return definitions
