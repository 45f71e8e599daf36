"""What a task has where it says nothing: its models, the step of evaluation, what it serves and its examples."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    AnyFunction,
    EncodedImageFunction,
    ExampleFunction,
    SignatureFunction,
    TensorSpec,
    VerificationData,
)
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.data import Arrays, DataExamples, DataSource, Stream
from modelyard.training.user._probabilities import ends_in_softmax, takes_probabilities
from modelyard.training.user._step import refusal

if TYPE_CHECKING:
    from modelyard.training.user._task import Task

IMAGE, IMAGE_BYTES, EXAMPLES = "image", "image_bytes", "examples"
_STATELESS = (keras.optimizers.Optimizer, keras.metrics.Metric, tf.random.Generator)
_KINDS = (*_STATELESS, keras.Layer, tf.Module, tf.Variable, keras.Variable)
#: Whether what a model returns are probabilities already.
_PROBABILITIES: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
#: What the task remembers of itself: how it was made, and its data.
_BOOKS = ("_constructed", "_sources")
_ASSIGNS = re.compile(r"Assign\w*VariableOp|Resource(Apply|SparseApply|Scatter|Strided)\w*")
#: What Keras calls an input without a name; the number is another one in each process.
_UNNAMED = re.compile(r"(keras_tensor|input_layer|input)(_\d+)?")


def find_models(attributes: Mapping[str, object]) -> dict[str, Any]:
    """What holds variables in the attributes of a task, in lists and mappings of any depth.

    Of a mapping the keys are the names; where two mappings have the same key, the attribute's name is before it.
    """
    own = {name: value for name, value in attributes.items() if name not in _BOOKS}
    found = [(name, *each) for name, value in own.items() for each in _held(name, value)]
    times = Counter(short for _, short, _ in found)
    return {short if times[short] == 1 or short == name else f"{name}_{short}": item for name, short, item in found}


def _held(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _KINDS):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _held(str(key), item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(f"{name}_{index}", item)


def exported_models(task: Task) -> dict[str, Any]:
    """The models of a task without what only training needs."""
    found = {name: item for name, item in task.models.items() if not isinstance(item, _STATELESS)}
    if not found:
        raise TrainingError(
            f"The task {task.name!r} has no model yet; call build(), run a Trainer, or restore() first."
        )
    return found


def build(task: Task) -> None:
    """Builds a task, and the slots of its optimizer where it has one and has not done so."""
    task.build()
    optimizers = [item for item in task.models.values() if isinstance(item, keras.optimizers.Optimizer)]
    if len(optimizers) == 1 and not optimizers[0].built:
        models = exported_models(task).values()
        optimizers[0].build([value for item in models for value in getattr(item, "trainable_variables", ())])


def step_without_updates(task: Task, batch: object) -> Mapping[str, Any]:
    """The training step as one of evaluation: metrics count, and nothing else changes."""
    before = _assignments()
    root = tf.train.Checkpoint(objects=dict(task.models))
    nodes = tf.train.TrackableView(root).descendants()
    listed = [variable for item in task.models.values() for variable in getattr(item, "variables", ())]
    variables = {id(each): each for each in (*listed, *nodes) if isinstance(each, keras.Variable)}
    mapping = [(variable, variable.value) for variable in variables.values()]
    # Keras keeps what would be assigned to its variables; those of tf.Variable are in the graph. A regularizer finds
    # the values of what it penalizes in the scope alone.
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        given = dict(scope.state_mapping)
        values = task.train_step(batch)
    changed = {key: value for key, value in scope.state_mapping.items() if value is not given.get(key)}
    metrics = [item for item in task.models.values() if isinstance(item, keras.metrics.Metric)]
    counted = {id(variable): variable for metric in metrics for variable in metric.variables}
    if _assignments() - before or set(changed) - set(counted):
        raise refusal(
            f"train_step of task {task.name!r} is its step of evaluation as well, and changes variables in it. Call "
            "models with training=self.training and update weights with modelyard.training.minimize, which do "
            "nothing in evaluation; or write eval_step."
        )
    for identity, value in changed.items():
        counted[identity].assign(value)
    return values


def _assignments() -> set[str]:
    """The ops of the graph that is being traced, and of its functions, that change variables."""
    if tf.executing_eagerly():
        return set()
    graph = tf.compat.v1.get_default_graph().as_graph_def()
    nodes = [("", node) for node in graph.node]
    nodes += [(each.signature.name, node) for each in graph.library.function for node in each.node_def]
    return {f"{place}/{node.name}" for place, node in nodes if _ASSIGNS.match(node.op)}


def fitted_source(task: Task, split: str) -> DataSource:
    """The data of a task, in the form that its model takes."""
    data = getattr(task, split) if split in vars(task) or hasattr(type(task), split) else None
    if data is None:
        raise ConfigurationError(
            f"The task {task.name!r} has no {split} data. Give it {split}=, a tf.data.Dataset, arrays, "
            f"ImageFolder(path) or Records(pattern); or write {'eval' if split == 'test' else split}_dataset()."
        )
    # Kept: a source knows what it has counted and listed.
    source = vars(task).setdefault("_sources", {}).setdefault(split, None) or make_source(data)
    vars(task)["_sources"][split] = source
    inputs = getattr(_first(task.models), "inputs", None)
    names = () if split == "train" or task.train is None else make_source(task.train).class_names
    return source.fitted([tuple(tensor.shape) for tensor in tf.nest.flatten(inputs or [])], class_names=names)


def make_source(data: object) -> DataSource:
    """Data of any kind as a source.

    Args:
        data: A source, a ``tf.data.Dataset``, or arrays.
    """
    if isinstance(data, DataSource):
        return data
    return Stream(data) if isinstance(data, tf.data.Dataset) else Arrays(data)


def predict(task: Task, inputs: Any) -> dict[str, Any]:
    """The outputs of a task's first model, by the names that clients expect."""
    model: Any = _first(task.exported)

    def call(inputs: Any) -> Any:
        return model(inputs, training=False) if isinstance(model, keras.Layer) else model(inputs)

    outputs = call(inputs)
    if isinstance(outputs, Mapping):
        return dict(outputs)
    parts = tf.nest.flatten(outputs)
    names = list(getattr(model, "output_names", ()))
    if len(parts) > 1:
        if len(names) != len(parts):
            names = [f"output_{index}" for index in range(len(parts))]
        return dict(zip(names, parts, strict=True))
    if not _is_classifier(task, outputs):
        return {"output": outputs}
    outputs = tf.cast(outputs, tf.float32)
    if model not in _PROBABILITIES:
        _PROBABILITIES[model] = takes_probabilities(vars(task).get("_loss")) or ends_in_softmax(call, inputs)
    class_id = tf.argmax(outputs, axis=-1, output_type=tf.int64)
    class_names = _class_names(task)
    return {
        "class_id": class_id,
        **({"label": tf.gather(tf.constant(class_names), class_id)} if class_names else {}),
        "probabilities": outputs if _PROBABILITIES[model] else tf.nn.softmax(outputs),
    }


def make_signatures(task: Task) -> dict[str, AnyFunction]:
    """The signatures of a task's first model."""
    structure, specs = _inputs(task)
    names = [spec.name for spec in specs]

    def function(**tensors: tf.Tensor) -> Mapping[str, Any]:
        return task.predict(tf.nest.pack_sequence_as(structure, [tensors[name] for name in names]))

    found: dict[str, AnyFunction] = {DEFAULT_SIGNATURE: SignatureFunction(inputs=specs, function=function)}
    source = None if task.train is None else task.data_source("train")
    preprocess = task.preprocess or (None if source is None else source.preprocess)
    if preprocess is not None and len(specs) == 1:
        channels: Any = 1 if source is not None and source.channels == 1 else 3
        found[IMAGE_BYTES] = EncodedImageFunction(
            compute=DEFAULT_SIGNATURE, preprocess=preprocess, input=IMAGE_BYTES, channels=channels
        )
    if source is not None and source.features:
        found[EXAMPLES] = ExampleFunction(
            features=source.features, function=lambda **tensors: task.predict(source.from_features(tensors))
        )
    return found


def make_verification_data(task: Task, count: int) -> VerificationData:
    """Examples of a task's data for its signatures."""
    if count < 1:
        raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
    taken: list[DataExamples] = []
    said = []
    for split in ("test", "train"):
        left = count - sum(examples.count for examples in taken)
        if left and getattr(task, split) is not None:
            taken.append(task.data_source(split).examples(left))
            said.append(f"{taken[-1].count} {'training' if split == 'train' else split}")
    if not taken:
        task.data_source("test")
    signatures = task.signatures()
    inputs: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for name, signature in signatures.items():
        if isinstance(signature, SignatureFunction):
            parts = [tf.nest.flatten(examples.inputs) for examples in taken]
            arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
            if len(arrays) != len(signature.inputs):
                raise ConfigurationError(
                    f"Signature {name!r} of task {task.name!r} takes {len(signature.inputs)} inputs, and its data has "
                    f"{len(arrays)}. Write verification_data(), which returns examples for each signature."
                )
            inputs[name] = {spec.name: array for spec, array in zip(signature.inputs, arrays, strict=True)}
        else:
            kind = "image" if isinstance(signature, EncodedImageFunction) else "example"
            inputs[name] = {signature.input: np.concatenate([_encoded(task, kind, each.encoded) for each in taken])}
    labels = [examples.labels for examples in taken]
    known = [each for each in labels if each is not None]
    names = _class_names(task)
    source = task.data_source("test" if task.test is not None else "train")
    return VerificationData(
        inputs=inputs,
        labels=np.concatenate(known).astype(np.int64) if known and len(known) == len(labels) else None,
        class_names=names,
        description=f"{' and '.join(said)} examples; {source.description}",
    )


def _encoded(task: Task, kind: str, encoded: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    if encoded is None:
        raise ConfigurationError(
            f"The data of task {task.name!r} has no encoded {kind}s to verify a signature with. Write "
            "verification_data(), which returns examples for each signature."
        )
    return encoded


def _first(models: Mapping[str, object]) -> Any:
    """The model that is served where nothing else is said."""
    found = {name: item for name, item in models.items() if not isinstance(item, _STATELESS) and callable(item)}
    return found.get("model", next(iter(found.values()), None))


def _class_names(task: Task) -> tuple[str, ...]:
    return () if task.train is None else make_source(task.train).class_names


def _is_classifier(task: Task, outputs: tf.Tensor) -> bool:
    """Whether the outputs are a score for each class of the task's labels."""
    if task.train is None or outputs.shape.rank != 2 or (outputs.shape[-1] or 1) < 2 or not outputs.dtype.is_floating:
        return False
    labels = task.data_source("train").labels_spec
    names = _class_names(task)
    return labels is not None and (not names or len(names) == outputs.shape[-1])


def _inputs(task: Task) -> tuple[object, tuple[TensorSpec, ...]]:
    """The structure of what the first model takes, and a spec for each tensor of it."""
    model = _first(task.exported)
    source = None if task.train is None else task.data_source("train")
    if getattr(model, "inputs", None):
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    elif source is not None:
        structure = source.inputs_spec
    else:
        raise ConfigurationError(
            f"The input of the first model of task {task.name!r} is not known: the model has no spec, and the task no "
            "train data. Write signatures()."
        )
    leaves = tf.nest.flatten(structure)
    # A nest is flattened in the order of its names.
    names = sorted(structure) if isinstance(structure, dict) else [getattr(leaf, "name", None) or "" for leaf in leaves]
    unnamed = IMAGE if task.preprocess or (source and source.preprocess) else "x"
    names = [
        (unnamed if len(leaves) == 1 else f"{unnamed}_{index}") if _UNNAMED.fullmatch(name or "input") else name
        for index, name in enumerate(names)
    ]
    specs = tuple(
        TensorSpec(
            name=name,
            dtype=tf.as_dtype(leaf.dtype).name,
            shape=(-1, *(-1 if size is None else int(size) for size in tuple(leaf.shape)[1:])),
        )
        for name, leaf in zip(names, leaves, strict=True)
    )
    return structure, specs
