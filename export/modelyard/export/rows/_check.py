"""What a manifest says of the rows of one format in one runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from modelyard.artifact import (
    EXPERIMENT_ROWS,
    ExampleDecode,
    ImageDecode,
    RowsCheck,
    Signature,
    decode_examples,
    differing_output,
    row_experiment,
    within,
)
from modelyard.errors import ModelyardError
from modelyard.export.rows._walk import walk_rows
from modelyard.export.runtimes import Arrays, Runtime, call_signature, run_graph

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction

#: Answers of a lower precision are rounded so much more coarsely in batches of other sizes.
_TOLERANCE, _COARSE = 1e-3, 2e-2
#: Seconds of an experiment of some twelve batches: a loop may have no end for an outlier.
_LIMIT_S = 300.0


def walk_graphs(
    graphs: Mapping[str, PolymorphicFunction],
    signatures: Mapping[str, Signature],
    outputs: Mapping[str, Mapping[int, Arrays]],
) -> dict[str, RowsCheck]:
    """What the operations of a model say of its rows; where they decide nothing, what its answers to examples say.

    Args:
        graphs: The model's graphs by name.
        signatures: What is served, by name.
        outputs: By signature and batch size: answers of the model for every example.
    """
    batched = {name: each for name, each in signatures.items() if each.batched and not each.stateful}
    found = {
        name: walk_rows(graphs[name]) for name in sorted({each.compute for each in batched.values()} & set(graphs))
    }
    for name, signature in batched.items():
        walk = found.get(signature.compute)
        if walk is None or walk.verdict != "unknown":
            continue
        if seen := _mixed(outputs[name]):
            found[signature.compute] = RowsCheck(verdict="dependent", reason=seen)
        elif any(spec.dtype.is_integer for spec in graphs[signature.compute].input_signature):
            # They could be anything: a threshold, an identity that two rows share.
            reason = f"{walk.reason}, and integers have no outliers to try"
            found[signature.compute] = RowsCheck(verdict="dependent", reason=reason)
    return found


def _mixed(by_size: Mapping[int, Arrays]) -> str:
    """Whether answers to the examples are others in a batch than alone."""
    alone = by_size.get(1, {})
    for size, answers in by_size.items():
        if name := differing_output(answers, alone, _TOLERANCE):
            return f"output {name!r} of an example is another one in a batch of {size} than alone"
    return ""


def check_rows(
    runtime: Runtime,
    signatures: Mapping[str, Signature],
    inputs: Mapping[str, Arrays],
    walked: Mapping[str, RowsCheck],
    *,
    lossy: bool,
) -> dict[str, RowsCheck]:
    """Shows by experiment what a runtime makes of the rows, and adds what the operations said."""
    found: dict[str, RowsCheck] = {}
    for name, signature in signatures.items():
        if signature.takes_calls or not signature.batched:
            continue
        if signature.stateful:
            found[name] = RowsCheck(verdict="dependent", reason="calls change variables")
            continue
        walk = walked.get(signature.compute, RowsCheck(verdict="unknown", reason="there is no source to look at"))
        if walk.verdict == "dependent":
            # Nothing is left to find out; and a loop that waits for numbers to converge may not end for outliers.
            found[name] = walk
            continue
        seen = _experiment(runtime, name, signature, inputs[name], tolerance=_COARSE if lossy else _TOLERANCE)
        found[name] = walk if seen is None else seen
    for name, signature in signatures.items():
        if isinstance(signature.decode, ImageDecode) and name in found:
            # There are no outliers among images: the signature that takes the same graph's numbers has seen some.
            others = (key for key, each in signatures.items() if each.compute == signature.compute and not each.decode)
            found[name] = next((found[key] for key in others if found[name].verdict != "dependent"), found[name])
    return found


def _experiment(
    runtime: Runtime, name: str, signature: Signature, examples: Arrays, *, tolerance: float
) -> RowsCheck | None:
    """What was seen; None where nothing speaks against sharing batches."""
    some = {key: values[:EXPERIMENT_ROWS] for key, values in examples.items()}
    if any(len(values) < EXPERIMENT_ROWS for values in some.values()):
        return RowsCheck(verdict="unknown", reason=f"there are fewer than {EXPERIMENT_ROWS} examples")

    def call(batch: Arrays) -> dict[str, npt.NDArray[Any]]:
        return call_signature(runtime, name, signature, batch)

    def compute(batch: Arrays) -> dict[str, npt.NDArray[Any]]:
        return run_graph(runtime, signature.compute, batch)

    try:
        if isinstance(signature.decode, ExampleDecode) and not runtime.decodes:
            # Messages have no outliers, and the numbers in them do.
            dense = decode_examples(some[signature.decode.input].tolist(), signature.decode)
            seen = within(_LIMIT_S, lambda: row_experiment(compute, dense, tolerance=tolerance))
        else:
            seen = within(_LIMIT_S, lambda: row_experiment(call, some, tolerance=tolerance))
    except TimeoutError:
        # Not the model's fault for sure: it may just be slow.
        return RowsCheck(verdict="unknown", reason=f"an experiment in {runtime.name} took longer than {_LIMIT_S:g} s")
    except ModelyardError as exc:
        return RowsCheck(verdict="unknown", reason=f"{runtime.name} refuses a batch of examples: {exc.message}")
    return None if seen is None else RowsCheck(verdict="dependent", reason=f"in {runtime.name} {seen}")
