"""Finds out what to send: what the user gave, else what is known of the model that the server has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from google.protobuf.message import Message

from modelyard.clients import ModelMetadata, SignatureInfo
from modelyard.clients.protocols import DEFAULT_SIGNATURE
from modelyard.errors import ConfigurationError
from modelyard.loadtests.options import RANDOM, LoadTestOptions, warmup_file
from modelyard.loadtests.traffic._images import PAYLOADS, ImageTraffic, is_demo
from modelyard.loadtests.traffic._recording import METHODS, is_log, read_log
from modelyard.loadtests.traffic._rows import Row, Rows, describe, random_rows, rows_of_file, rows_of_log
from modelyard.loadtests.traffic._source import RowTraffic, Traffic, ask, signatures_for

#: Ends of names of TFRecord files; warm-up files have none.
_RECORDS = (".tfrecord", ".tfrecords", "")
#: Calls of a recording that are read.
_MAX_CALLS = 10_000


def find_traffic(options: LoadTestOptions, *, served: Path | None = None, seed: int = 0) -> Traffic:
    """Finds out what to send.

    ``--data`` where it is given; the requests that a version of ``--repository`` is warmed up with; test images for a
    Fashion-MNIST classifier; the requests that the version is warmed up with, where the server's repository is known;
    else random values.
    """
    own = options.data is not None or options.repository is not None
    if not own and any(kind.partition(" ")[2] in PAYLOADS for kind in options.kinds):
        return ImageTraffic()
    metadata = ask(options)
    known = metadata.signatures
    why = ""
    if options.data is None:
        path = _warmup(options.repository, options, metadata)
        if path is None and is_demo(known):
            return ImageTraffic()
        path = path or _warmup(served, options, metadata)
        if path is not None:
            return _of_log(path, options, known)
        folder = options.repository or served
        why = " (give --data FILE to send real ones)"
        if folder is not None:
            why = f" ({folder} has no warm-up requests for it: give --data FILE to send real ones)"
    elif options.data != RANDOM:
        if options.data.suffix in _RECORDS and is_log(options.data):
            return _of_log(options.data, options, known)
        found = {each.name: rows_of_file(options.data, each) for each in signatures_for(options, metadata)}
        texts = [f"{len(rows)} rows for signature {name}{rows.note}" for name, rows in found.items()]
        return RowTraffic(f"{options.data}: {', '.join(texts)}", found, {})
    found = {each.name: random_rows(each, seed) for each in signatures_for(options, metadata)}
    texts = [
        f"{name} ({', '.join(f'{key} {describe(info)}' for key, info in rows.signature.inputs.items())})"
        for name, rows in found.items()
    ]
    return RowTraffic(f"random values for signature {', '.join(texts)}, seed {seed}{why}", found, {})


def _warmup(folder: Path | None, options: LoadTestOptions, metadata: ModelMetadata) -> Path | None:
    return None if folder is None else warmup_file(folder, options.model, metadata.version)


def _of_log(path: Path, options: LoadTestOptions, known: Mapping[str, SignatureInfo]) -> RowTraffic:
    rows: dict[str, list[Row]] = {}
    calls: dict[str, list[Message]] = {}
    for number, message in enumerate(itertools.islice(read_log(path), _MAX_CALLS), start=1):
        if message.WhichOneof("log_type") == "predict_log":
            name = message.predict_log.request.model_spec.signature_name or DEFAULT_SIGNATURE
            if name not in known:
                raise ConfigurationError(
                    f"Record {number} of {path} is for signature {name!r}; model {options.model!r} has "
                    f"{', '.join(sorted(known))}."
                )
            rows.setdefault(name, []).extend(
                rows_of_log(message.predict_log, known[name], f"Record {number} of {path}")
            )
        else:
            kind = str(message.WhichOneof("log_type"))
            calls.setdefault(METHODS[kind], []).append(getattr(message, kind))
    if not rows and not calls:
        raise ConfigurationError(f"{path} holds no request.")
    texts = [f"{len(found)} rows for signature {name}" for name, found in rows.items()]
    texts += [f"{len(found)} calls of {name}" for name, found in calls.items()]
    how = " (calls other than Predict go over gRPC, as they are)" if calls else ""
    return RowTraffic(
        f"recorded requests of {path}: {', '.join(texts)}{how}",
        {name: Rows(known[name], found) for name, found in rows.items()},
        calls,
    )
