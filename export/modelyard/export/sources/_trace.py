"""The source of an export: every signature traced once from the live model.

Converters start from these functions, and verification compares with them: the
truth is the model that was trained, not a file made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from modelyard.artifact import (
    CLASSIFY_METHOD,
    PREDICT_METHOD,
    PREPROCESS_SUFFIX,
    AnyFunction,
    EncodedImageFunction,
    ExampleDecode,
    ExampleFunction,
    ImageDecode,
    Signature,
    SignatureFunction,
    TensorSpec,
)
from modelyard.errors import ConversionError
from modelyard.export.formats import named, only_draws
from modelyard.export.sources._cut import cut_examples
from modelyard.export.sources._determinism import written_variables

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction

PIXELS = "pixels"


@dataclass(frozen=True, kw_only=True)
class TracedModel:
    """A model with its signatures traced.

    Attributes:
        root: What holds the variables.
        signatures: Descriptions by name, as a manifest stores them.
        graphs: What a foreign runtime has to compute, by graph name: one batched graph for each computing signature,
            one per-example graph for each preprocess step. Each is a ``tf.function`` with an input signature.
        serving: The whole of each signature, decode included, by name.
        files: Formats that exist already and are published as they are: by format, the file or directory.
    """

    root: tf.Module
    signatures: Mapping[str, Signature]
    graphs: Mapping[str, PolymorphicFunction]
    serving: Mapping[str, PolymorphicFunction]
    files: Mapping[str, Path] = field(default_factory=dict)


def trace(root: tf.Module, signatures: Mapping[str, AnyFunction], *, saved_model: Path | None = None) -> TracedModel:
    """Traces every signature of a model.

    A function over one string that parses ``tf.Example`` messages itself becomes a
    signature that decodes them: other runtimes get what follows the parse.

    Args:
        root: A ``tf.Module``, Keras model or other trackable that holds every
            variable the functions use; or several of them, by name.
        signatures: By name.
        saved_model: A SavedModel of all this that exists already, made by somebody
            else, whose methods are then taken as they are.

    Raises:
        ConversionError: A function cannot be traced, or does not fit its description.
    """
    if not signatures:
        raise ConversionError("There is no signature to export; expected at least one.")
    described: dict[str, Signature] = {}
    graphs: dict[str, PolymorphicFunction] = {}
    serving: dict[str, PolymorphicFunction] = {}
    for name, declared in signatures.items():
        if isinstance(declared, SignatureFunction):
            signature, serving[name] = _trace_compute(name, declared)
            if saved_model is None:
                check_method(name, signature)
            described[name], graphs[name] = _cut(signature, serving[name])
        elif isinstance(declared, ExampleFunction):
            described[name], graphs[name], serving[name] = _trace_examples(name, declared)
    _mark_stateful(described, serving)
    for name, declared in signatures.items():
        if isinstance(declared, EncodedImageFunction):
            target = described.get(declared.compute)
            if target is None or target.decode is not None:
                raise ConversionError(
                    f"Signature {name!r} ends in {declared.compute!r}, which is no computing signature; "
                    f"expected one of {', '.join(graphs) or '(there is none)'}."
                )
            graph = _trace_preprocess(name, declared, target)
            graphs[f"{name}{PREPROCESS_SUFFIX}"] = graph
            serving[name] = _trace_encoded(name, declared, graph, graphs[declared.compute])
            described[name] = Signature(
                inputs=(TensorSpec(name=declared.input, dtype="string", shape=(-1,)),),
                outputs=target.outputs,
                compute=declared.compute,
                method=target.method,
                decode=ImageDecode(input=declared.input, channels=declared.channels),
                preprocess=f"{name}{PREPROCESS_SUFFIX}",
                stateful=target.stateful,
            )
    files = {} if saved_model is None else {"saved_model": saved_model}
    return TracedModel(root=_hold(root), signatures=described, graphs=graphs, serving=serving, files=files)


def _hold(root: tf.Module | Mapping[str, tf.Module]) -> tf.Module:
    if not isinstance(root, Mapping):
        return root
    if len(root) == 1:
        return next(iter(root.values()))
    module = tf.Module()
    for name, each in root.items():
        setattr(module, name, each)
    return module


def decode_in_graph(data: tf.Tensor, *, channels: int) -> tf.Tensor:
    """Decodes one encoded image, inside a graph.

    JPEG is decoded with the accurate inverse transform instead of TensorFlow's default, which is up to 12 levels off:
    only then do servers with and without TensorFlow see the same pixels (see ``modelyard.artifact.decode_image``).
    """
    pixels = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(data, channels=channels, expand_animations=False),
    )
    return tf.ensure_shape(pixels, [None, None, channels])


def graph_signature(source: TracedModel, graph: str) -> Signature:
    """Describes one graph: what a foreign runtime must show under that name."""
    described = source.signatures.get(graph)
    if described is not None and described.decode is None:
        return described
    function = source.graphs[graph]
    inputs = tuple(as_spec(spec.name, spec) for spec in function.input_signature)
    return Signature(inputs=inputs, outputs=_outputs(function), compute=graph)


def _trace_compute(name: str, declared: SignatureFunction) -> tuple[Signature, PolymorphicFunction]:
    if not declared.inputs:
        raise ConversionError(
            f"Signature {name!r} takes no input: what it answers is a constant, and no example can verify it. Choose "
            "other signatures, or give it an input."
        )
    names = [spec.name for spec in declared.inputs]

    def compute(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = declared.function(**dict(zip(names, tensors, strict=True)))
        if not isinstance(outputs, Mapping) or not outputs:
            raise ConversionError(
                f"Signature {name!r} returned {type(outputs).__name__}; expected a mapping from output name to tensor."
            )
        return {key: named(value, key) for key, value in outputs.items()}

    specs = [tf.TensorSpec(_tf_shape(spec), tf.as_dtype(spec.dtype), name=spec.name) for spec in declared.inputs]
    function = _traced(name, compute, specs)
    outputs = _outputs(function)
    return Signature(inputs=declared.inputs, outputs=outputs, compute=name, method=declared.method), function


def _mark_stateful(described: dict[str, Signature], serving: Mapping[str, PolymorphicFunction]) -> None:
    # A generator that draws anew in every call is verified by what it draws, and needs no turn of its own.
    writes = [(each, written_variables(each)) for each in serving.values()]
    written = frozenset[int]().union(*(found for each, found in writes if found and not only_draws(each)))
    for name, function in serving.items():
        # Also what only reads such a variable answers otherwise once another signature was called.
        if any(id(variable) in written for variable in function.get_concrete_function().variables):
            described[name] = replace(described[name], stateful=True)


def _cut(signature: Signature, function: PolymorphicFunction) -> tuple[Signature, PolymorphicFunction]:
    if [(spec.dtype, spec.shape) for spec in signature.inputs] != [("string", (-1,))]:
        return signature, function
    parts = cut_examples(function)
    return (signature, function) if parts is None else (replace(signature, decode=parts[0]), parts[1])


def _trace_examples(name: str, declared: ExampleFunction) -> tuple[Signature, PolymorphicFunction, PolymorphicFunction]:
    decode = ExampleDecode(input=declared.input, features=declared.features)
    dense = tuple(spec.tensor for spec in decode.features)
    compute = SignatureFunction(inputs=dense, function=declared.function)
    described, graph = _trace_compute(name, compute)
    signature = Signature(
        inputs=(TensorSpec(name=declared.input, dtype="string", shape=(-1,)),),
        outputs=described.outputs,
        compute=name,
        method=declared.method,
        decode=decode,
    )
    check_method(name, signature)

    def serve(data: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = parse_in_graph(data, decode)
        outputs = graph(*[parsed[spec.name] for spec in dense])
        return {key: named(value, key) for key, value in outputs.items()}

    return signature, graph, _traced(name, serve, [tf.TensorSpec([None], tf.string, name=declared.input)])


def _trace_preprocess(name: str, declared: EncodedImageFunction, target: Signature) -> PolymorphicFunction:
    if len(target.inputs) != 1:
        raise ConversionError(
            f"Signature {name!r} ends in {declared.compute!r}, which has {len(target.inputs)} inputs; expected one."
        )
    spec = target.inputs[0]

    def preprocess(pixels: tf.Tensor) -> dict[str, tf.Tensor]:
        example = tf.convert_to_tensor(declared.preprocess(pixels))
        if example.dtype != tf.as_dtype(spec.dtype):
            raise ConversionError(
                f"The preprocess of signature {name!r} returns {example.dtype.name}; input {spec.name!r} of "
                f"{declared.compute!r} is {spec.dtype}."
            )
        return {spec.name: named(tf.ensure_shape(example, _tf_shape(spec)[1:]), spec.name)}

    return _traced(
        f"{name}{PREPROCESS_SUFFIX}",
        preprocess,
        [tf.TensorSpec([None, None, declared.channels], tf.uint8, name=PIXELS)],
    )


def _trace_encoded(
    name: str, declared: EncodedImageFunction, preprocess: PolymorphicFunction, compute: PolymorphicFunction
) -> PolymorphicFunction:
    example = next(iter(preprocess.get_concrete_function().structured_outputs.values()))

    def encoded(data: tf.Tensor) -> dict[str, tf.Tensor]:
        def one(item: tf.Tensor) -> tf.Tensor:
            return next(iter(preprocess(decode_in_graph(item, channels=declared.channels)).values()))

        batch = tf.map_fn(one, data, fn_output_signature=tf.TensorSpec(example.shape, example.dtype))
        return {key: named(value, key) for key, value in compute(batch).items()}

    return _traced(name, encoded, [tf.TensorSpec([None], tf.string, name=declared.input)])


def _traced(name: str, function: Callable[..., Any], specs: list[tf.TensorSpec]) -> PolymorphicFunction:
    traced = tf.function(function, input_signature=specs)
    try:
        traced.get_concrete_function()
    except ConversionError:
        raise
    # The task's function may raise anything while it is traced: this is the boundary that maps it.
    except Exception as exc:
        raise ConversionError(f"Signature {name!r} cannot be traced: {exc}") from exc
    return traced


def _outputs(function: PolymorphicFunction) -> tuple[TensorSpec, ...]:
    outputs = function.get_concrete_function().structured_outputs
    return tuple(as_spec(key, outputs[key]) for key in sorted(outputs))


def as_spec(name: str, value: tf.TensorSpec | tf.Tensor) -> TensorSpec:
    """Name, dtype and shape of a tensor of TensorFlow's."""
    shape = value.shape
    sizes = None if shape.rank is None else tuple(-1 if size is None else size for size in shape.as_list())
    return TensorSpec(name=name, dtype=value.dtype.name, shape=sizes)


def _tf_shape(spec: TensorSpec) -> tf.TensorShape:
    return tf.TensorShape(None if spec.shape is None else [None if size == -1 else size for size in spec.shape])


_INPUT = "inputs"
_CLASSIFY = {"classes": "string", "scores": "float32"}
_REGRESS = "outputs"


def parse_in_graph(data: tf.Tensor, decode: ExampleDecode) -> dict[str, tf.Tensor]:
    """Parses serialized Examples, inside a graph."""
    features = {
        spec.name: tf.io.FixedLenFeature(
            spec.shape,
            tf.as_dtype(spec.dtype),
            None
            if spec.default is None
            else tf.reshape(tf.constant(spec.default, tf.as_dtype(spec.dtype)), spec.shape),
        )
        for spec in decode.features
    }
    parsed = tf.io.parse_example(data, features)
    return {spec.tensor.name: parsed[spec.name] for spec in decode.features}


def check_method(name: str, signature: Signature) -> None:
    """Checks that a classify or regress signature is one that TensorFlow Serving answers with.

    The rules are those of its classifier.cc and regressor.cc.
    """
    if signature.method == PREDICT_METHOD:
        return
    inputs = [(spec.name, spec.dtype) for spec in signature.inputs]
    if inputs != [(_INPUT, "string")]:
        raise ConversionError(
            f"Signature {name!r} has the method {signature.method} and the inputs {inputs}; expected one string input "
            f"{_INPUT!r} of serialized tf.Example messages. Declare it with ExampleFunction."
        )
    outputs = {spec.name: spec for spec in signature.outputs}
    if signature.method == CLASSIFY_METHOD:
        right = outputs.keys() <= _CLASSIFY.keys() and all(
            spec.dtype == _CLASSIFY[key] and spec.shape is not None and len(spec.shape) == 2
            for key, spec in outputs.items()
        )
        expected = "'classes' (string [N, K]), 'scores' (float32 [N, K]) or both"
    else:
        right = outputs.keys() == {_REGRESS} and _is_regression(outputs[_REGRESS])
        expected = f"{_REGRESS!r} (float32 [N] or [N, 1])"
    if not right:
        received = ", ".join(f"{spec.name!r} ({spec.dtype} {spec.shape})" for spec in signature.outputs)
        raise ConversionError(
            f"Signature {name!r} has the method {signature.method} and the outputs {received}; expected {expected}."
        )


def _is_regression(spec: TensorSpec) -> bool:
    shape = spec.shape or ()
    return spec.dtype == "float32" and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
