"""Where the requests of a run come from: test images, a file, a version's warm-up requests, or random values."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from google.protobuf.message import Message

from modelyard.clients import ClientOptions, ModelMetadata, SignatureInfo, connect
from modelyard.clients.protocols import DEFAULT_SIGNATURE
from modelyard.errors import ConfigurationError, ModelNotFoundError, SignatureNotFoundError
from modelyard.loadtests.options import LoadTestOptions, token
from modelyard.loadtests.traffic._recording import recorded
from modelyard.loadtests.traffic._requests import APIS, Request, encode
from modelyard.loadtests.traffic._rows import Rows

#: Different requests of a kind; a server that remembers answers would have to remember so many.
DISTINCT = 128
#: Numbers in all requests of a kind together: more take long to encode, and much memory.
_VALUES = 1 << 21


class Traffic(ABC):
    """The requests of a run."""

    #: Where it comes from, in a line.
    text: str
    #: What an API is sent where no payload is named.
    payloads: tuple[str, ...]

    def kinds(self, options: LoadTestOptions, wanted: Sequence[str] = ()) -> tuple[str, ...]:
        """Kinds of request, an API and a payload each: the user's, else `wanted`, else TensorFlow Serving's."""
        found: dict[str, None] = {}
        usual = [api for api, url in (("grpc", options.grpc_url), ("rest", options.rest_url)) if url]
        for kind in options.kinds or wanted or usual:
            api, _, payload = kind.partition(" ")
            if api not in APIS:
                raise ConfigurationError(
                    f"Unknown kind of request {kind!r}; expected one of {', '.join(APIS)}, alone or with a space and "
                    f"one of {', '.join(self.payloads)}."
                )
            if not (options.grpc_url if api.startswith("grpc") else options.rest_url):
                raise ConfigurationError(f"There is no server for {kind!r}: give --host-{api.partition('-')[0]}.")
            for each in [payload] if payload else self.payloads:
                reason = self.refused(api, each)
                if payload and reason:
                    raise ConfigurationError(f"Cannot send the kind of request {kind!r}: {reason}.")
                if not reason:
                    found[f"{api} {each}"] = None
        if not found:
            raise ConfigurationError(
                f"Nothing can be sent: {self.refused(usual[0], self.payloads[0])}. Give --host-grpc."
            )
        return tuple(found)

    def kind(self, api: str, payload: str) -> str:
        """A kind of request with this payload where there is such a one, else with the first."""
        return f"{api} {payload if payload in self.payloads else self.payloads[0]}"

    def takes_rows(self, kinds: Sequence[str]) -> bool:
        """Whether each request can have as many rows as one likes."""
        return True

    @abstractmethod
    def refused(self, api: str, payload: str) -> str:
        """Why an API cannot be sent a payload; empty where it can."""

    @abstractmethod
    def requests(
        self, options: LoadTestOptions, kinds: Sequence[str], *, rows: int = 0, distinct: int = DISTINCT, seed: int = 0
    ) -> list[Request]:
        """Encode so many distinct requests of each kind at most, of so many rows (0: the options')."""


class RowTraffic(Traffic):
    """Rows for signatures of any model, and recorded calls that are no predictions."""

    def __init__(self, text: str, rows: Mapping[str, Rows], calls: Mapping[str, Sequence[Message]]) -> None:
        self.text = text
        self._rows = rows
        self._calls = {method.lower(): (method, entries) for method, entries in calls.items()}
        self.payloads = (*rows, *self._calls)

    def refused(self, api: str, payload: str) -> str:
        """See :meth:`Traffic.refused`."""
        if payload in self._calls:
            return "" if api == "grpc" else f"recorded calls of {payload} are sent over gRPC as they are"
        return "" if payload in self._rows else f"expected one of {', '.join(self.payloads)} behind the API"

    def takes_rows(self, kinds: Sequence[str]) -> bool:
        """See :meth:`Traffic.takes_rows`."""
        payloads = [kind.partition(" ")[2] for kind in kinds]
        return all(payload in self._rows and self._rows[payload].per_row for payload in payloads)

    def requests(
        self, options: LoadTestOptions, kinds: Sequence[str], *, rows: int = 0, distinct: int = DISTINCT, seed: int = 0
    ) -> list[Request]:
        """See :meth:`Traffic.requests`."""
        found: list[Request] = []
        for kind in kinds:
            api, _, payload = kind.partition(" ")
            if payload in self._calls:
                method, entries = self._calls[payload]
                found += [recorded(entry, method, options.model) for entry in entries[:distinct]]
                continue
            source = self._rows[payload]
            count = rows or options.rows
            at_most = max(min(distinct, _VALUES // max(source.values * count, 1)), 1)
            # The same rows for every kind: their answers can be compared.
            for row in source.batches(count, at_most, random.Random(seed)):
                found.append(
                    encode(
                        api, payload, model=options.model, signature=payload, inputs=row.inputs, expected=row.expected,
                        outputs=source.signature.outputs, per_row=source.per_row,
                    )
                )  # fmt: skip
        return found


def ask(options: LoadTestOptions) -> ModelMetadata:
    """Asks the server what the model takes."""
    kinds = [kind.partition(" ") for kind in options.kinds]
    v2 = all(api.endswith("-v2") and payload in ("", DEFAULT_SIGNATURE) for api, _, payload in kinds)
    grpc = options.grpc_url and (not kinds or any(api.startswith("grpc") for api, _, _ in kinds))
    url = options.grpc_url if grpc or not options.rest_url else options.rest_url
    if kinds and v2:
        url = url.replace("://", "+v2://", 1)
    with connect(url, ClientOptions(timeout_s=options.timeout_s, token=token())) as client:
        try:
            return client.metadata(options.model)
        except ModelNotFoundError as exc:
            raise ModelNotFoundError(f"{exc.message} Name the model with --model.") from exc


def signatures_for(options: LoadTestOptions, metadata: ModelMetadata) -> tuple[SignatureInfo, ...]:
    """The signatures that requests are made for: those of the kinds, else the default one or the only one."""
    known = metadata.callable_signatures
    names = {payload for _, _, payload in (kind.partition(" ") for kind in options.kinds) if payload}
    if not names:
        names = {next(iter(known)) if len(known) == 1 else DEFAULT_SIGNATURE}
    missing = sorted(names - known.keys())
    if missing:
        raise SignatureNotFoundError(
            f"Model {metadata.model!r} has no signature {missing[0]!r}; it has {', '.join(sorted(known))}. "
            "Name one with --kind 'grpc SIGNATURE'."
        )
    return tuple(known[name] for name in sorted(names))
