"""What examples and the answers of a source must be to verify a format by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from modelyard.artifact import Signature, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError, VerificationError
from modelyard.export.publish import ExportOptions
from modelyard.export.runtimes import Arrays
from modelyard.export.sources._calls import Call, functions_of
from modelyard.export.sources._data import FLOATS, fit_examples
from modelyard.export.sources._determinism import differing, draws, restored
from modelyard.export.sources._trace import TracedModel

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.python.types.core import PolymorphicFunction


def is_finite(spec: TensorSpec, values: npt.NDArray[Any]) -> bool:
    return spec.dtype not in FLOATS or bool(np.isfinite(values.astype(np.float64)).all())


def _has_finite(spec: TensorSpec, values: npt.NDArray[Any]) -> bool:
    # Masks of single values are part of what some models say, and compared as they are.
    return spec.dtype not in FLOATS or not values.size or bool(np.isfinite(values.astype(np.float64)).any())


def check_examples(source: TracedModel, data: VerificationData, *, options: ExportOptions) -> VerificationData:
    """Checks that examples can verify a model, before anything is computed.

    Args:
        source: The traced model.
        data: Real examples for every signature.
        options: The number of examples wanted.

    Returns:
        The examples as the signatures want them.

    Raises:
        ConfigurationError: Something among them is no array.
        VerificationError: There are too few, or they do not fit.
    """
    data = fit_examples(source.signatures, data)
    for name in source.signatures:
        _check_examples(source, data, name, options)
    return data


def is_constant(values: npt.NDArray[Any]) -> bool:
    """Whether every example has the same output."""
    return bool((values == values[:1]).all())


def check_repeatable(source: TracedModel, name: str, call: Call, batch: Arrays, options: ExportOptions) -> None:
    functions = functions_of(source, name)
    with restored(functions):
        first = call(name, batch)
        # A model that counts its calls may answer otherwise the second time, one that draws from a generator may not.
        still = functions and not any(draws(each) for each in functions)
        names = [] if still else differing(first, call(name, batch), options.max_abs_error)
    listed = listed_outputs(source.signatures[name], options)
    if still := sorted(set(listed) - set(names)):
        _refuse_still(name, still)
    if names := sorted(set(names) - set(listed)):
        raise VerificationError(
            f"{'Output' if len(names) == 1 else 'Outputs'} {', '.join(map(repr, names))} of signature {name!r} of the "
            "source itself differ when the same examples are given again: the model draws random numbers. No format "
            "can be verified against that by value. Compare it in distribution (--stochastic "
            f"{','.join(names)}, in Python ExportOptions.stochastic), return the mean, take the noise as an input, or "
            "choose other signatures."
        )


def listed_outputs(signature: Signature, options: ExportOptions) -> tuple[str, ...]:
    return tuple(spec.name for spec in signature.outputs if spec.name in options.stochastic)


def check_listed(source: TracedModel, options: ExportOptions) -> None:
    known = sorted({spec.name for each in source.signatures.values() for spec in each.outputs})
    if unknown := sorted(set(options.stochastic) - set(known)):
        raise ConfigurationError(
            f"--stochastic (ExportOptions.stochastic) lists {', '.join(unknown)}; expected some of the outputs "
            f"{', '.join(known)}."
        )


def _refuse_still(name: str, still: Sequence[str]) -> None:
    raise VerificationError(
        f"{', '.join(map(repr, still))} of signature {name!r} {'is' if len(still) == 1 else 'are'} listed in "
        "--stochastic (ExportOptions.stochastic), and the source gives the same when asked again. Leave it out of "
        "the list, to be compared by value."
    )


def _check_examples(source: TracedModel, data: VerificationData, name: str, options: ExportOptions) -> None:
    signature = source.signatures[name]
    examples = data.inputs.get(name)
    if examples is None:
        raise VerificationError(
            f"Signature {name!r} has no verification examples; there are some for {', '.join(data.inputs) or 'none'}. "
            "An export without them cannot be trusted: add real inputs for it to VerificationData."
        )
    wanted = {spec.name: spec for spec in signature.inputs}
    if set(examples) != set(wanted):
        raise VerificationError(
            f"The examples of signature {name!r} have inputs {sorted(examples)}; expected {sorted(wanted)}."
        )
    _check_shapes(name, signature, examples)
    counts = {len(values) for values in examples.values()}
    if len(counts) != 1:
        raise VerificationError(
            f"The inputs of signature {name!r} have {sorted(counts)} examples; expected as many for each. Where their "
            "first dimension is no batch, each example is a whole call: give lists of arrays, one for each call."
        )
    total = min(counts) + sum(len(next(iter(each.values()))) for each in data.others.get(name, ()))
    if total < options.min_examples:
        raise VerificationError(
            f"There are {total} examples to verify signature {name!r} with; expected at least "
            f"{options.min_examples}. Give more, or ask for fewer: --min-examples {total} "
            "(ExportOptions.min_examples)."
        )
    for key, values in examples.items():
        kind = "string" if values.dtype.kind in "OSU" else values.dtype.name
        if kind != wanted[key].dtype:
            raise VerificationError(
                f"The examples of input {key!r} of signature {name!r} are {kind}; expected {wanted[key].dtype}."
            )


def _check_shapes(name: str, signature: Signature, examples: Arrays) -> None:
    """Of a signature that takes no batch, each input has a first dimension more than a call."""
    for spec in signature.inputs:
        shape = examples[spec.name].shape
        wanted = None if spec.shape is None else ("N", *spec.shape[0 if signature.takes_calls else 1 :])
        if wanted is None or (
            len(shape) == len(wanted) and all(b in (a, -1, "N") for a, b in zip(shape, wanted, strict=True))
        ):
            continue
        calls = " The signature takes no batch, so that each of N examples is a call of its own."
        raise VerificationError(
            f"The examples of input {spec.name!r} of signature {name!r} have shape {list(shape)}; expected "
            f"{list(wanted)}, where -1 is any size.{calls if signature.takes_calls else ''}"
        )


def check_finite(source: TracedModel, name: str, answers: Arrays) -> None:
    for spec in source.signatures[name].outputs:
        if not _has_finite(spec, answers[spec.name]):
            raise VerificationError(
                f"Output {spec.name!r} of signature {name!r} of the source itself is NaN or infinite on all examples. "
                "No export of it can be verified: look at the training run."
            )


def check_constant(source: TracedModel, name: str, answers: Arrays, options: ExportOptions) -> None:
    # A single call may have a single number to show.
    constant = {key for key, values in answers.items() if len(values) > 1 and is_constant(values)}
    constant -= set(options.constant_outputs)
    if constant == set(answers):
        raise VerificationError(
            f"Every output of signature {name!r} of the source itself is the same for all examples. A model whose "
            "weights were lost does that, so it cannot be verified: train it, or give examples that differ."
        )
    # Integers and strings may well be the same for all: a version, a list of class names, the class itself.
    suspects = {spec.name for spec in source.signatures[name].outputs if spec.dtype in FLOATS and spec.name in constant}
    if suspects and name in source.serving:
        suspects &= computed_outputs(source.serving[name])
    for key in sorted(suspects):
        raise VerificationError(
            f"Output {key!r} of signature {name!r} of the source itself is the same for all examples, though it is "
            "computed from the inputs. Lost weights do that, and so does a layer that is dead. Train it, give examples "
            f"that differ, or say that it may be so: --allow-constant {key} (ExportOptions.constant_outputs)."
        )


# What these give is known from the shape of what they take.
_SHAPES = frozenset({"BroadcastGradientArgs", "OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})


def computed_outputs(function: PolymorphicFunction) -> frozenset[str]:
    """Names of the outputs that depend on values of the inputs, not on their shapes alone."""
    concrete = function.get_concrete_function()
    names = sorted(concrete.structured_outputs)
    try:
        constant = convert_variables_to_constants_v2(concrete, lower_control_flow=False, aggressive_inlining=True)
    # TensorFlow raises whatever comes up where a function cannot be inlined: then nothing is known of any output.
    except Exception:
        return frozenset(names)
    nodes = {node.name: node for node in constant.graph.as_graph_def().node}
    inputs = {tensor.op.name for tensor in constant.inputs}
    return frozenset(
        name for name, tensor in zip(names, constant.outputs, strict=True) if _reaches(tensor.op.name, inputs, nodes)
    )


def _reaches(start: str, targets: set[str], nodes: dict[str, NodeDef]) -> bool:
    seen, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in targets:
            return True
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].op not in _SHAPES:
            waiting += [each.partition(":")[0] for each in nodes[name].input if not each.startswith("^")]
    return False
