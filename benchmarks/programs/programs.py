"""Random programs: drawn step by step, so that TensorFlow computes them for any batch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.programs.draw import Draw, Step
from benchmarks.programs.keras_steps import FUNCTIONS, LAYERS
from benchmarks.programs.tensorflow_steps import STEPS

Arrays = Mapping[str, npt.NDArray[Any]]
#: By name, dtype and shape of a row.
INPUTS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "x": ("float32", (6,)),
    "y": ("float32", (4, 3)),
    "image": ("float32", (6, 6, 2)),
    "i": ("int32", (5,)),
    "k": ("int32", ()),
    "long": ("int64", (4,)),
}
#: Kinds of examples: how many rows, and what is in them.
EXAMPLES = ("three", "one", "large", "halves", "small", "zeros")
_MOST_STEPS, _MOST_VALUES = 5, 20_000


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A step of a program: what it takes and how it chooses."""

    name: str
    step: Step
    takes: Sequence[str]
    seed: int
    layers: list[keras.Layer] = field(default_factory=list)

    def compute(self, tensors: Mapping[str, Any]) -> Any:
        draw = Draw(self.seed, self.layers)
        return tf.convert_to_tensor(self.step.compute(draw, *(tensors[name] for name in self.takes)))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of a seed.

    Attributes:
        inputs: Names of what it takes, of :data:`INPUTS`.
        outputs: Names of what no step takes any more.
    """

    seed: int
    inputs: Sequence[str]
    lines: Sequence[_Line]
    outputs: Sequence[str]

    def __str__(self) -> str:
        steps = (f"{line.name}({', '.join(line.takes)})" for line in self.lines)
        return f"program {self.seed}: {'; '.join(f't{number} = {text}' for number, text in enumerate(steps))}"

    @tf.autograph.experimental.do_not_convert
    def compute(self, **tensors: Any) -> dict[str, Any]:
        """The outputs."""
        return self.nudged(0.0, 0, tensors)

    def nudged(self, by: float, seed: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs, with each float on the way changed by a part of its own, at random."""
        known = {name: _moved(by, seed, x) for name, x in tensors.items()}
        for number, line in enumerate(self.lines):
            known[f"t{number}"] = _moved(by, seed + number, line.compute(known))
        return {name: tf.identity(known[name]) for name in self.outputs}

    @property
    def module(self) -> tf.Module:
        """What holds the layers."""
        module = tf.Module()
        module.layers = [layer for line in self.lines for layer in line.layers]
        return module


def _moved(by: float, seed: int, x: Any) -> Any:
    if not by or not x.dtype.is_floating:
        return x
    return x * (1 + by * np.random.default_rng(seed).uniform(-1, 1, x.shape).astype(np.float32))


def examples(names: Sequence[str], kind: str, seed: int) -> Arrays:
    """A batch of examples, without zeros that are negative."""
    numbers = np.random.default_rng([seed, EXAMPLES.index(kind)])
    rows = {"one": 1, "large": 5, "zeros": 2}.get(kind, 3)
    found = {}
    for name in names:
        dtype, shape = INPUTS[name]
        whole = dtype != "float32"
        scale = {"large": 5.0, "small": 1.0 if whole else 1e-3, "zeros": 0.0}.get(kind, 1.0)
        values = numbers.normal(size=(rows, *shape)) * 2 * scale
        if whole:
            values = np.round(values)
        elif kind == "halves":
            values = np.round(values) / 2
        # No zero is negative.
        found[name] = (values + 0.0).astype(dtype)
    return found


def draw(seed: int) -> Program:
    """The program of a seed; each step is tried with batches of several sizes, and left out where it fails."""
    chosen = random.Random(seed)
    inputs = chosen.sample(sorted(INPUTS), 3)
    known = [
        {name: tf.constant(array) for name, array in examples(inputs, kind, seed).items()} for kind in EXAMPLES[:4]
    ]
    lines: list[_Line] = []
    wanted = chosen.randint(1, _MOST_STEPS)
    for attempt in range(60):
        if len(lines) == wanted:
            break
        table = chosen.choice((STEPS, STEPS, FUNCTIONS, LAYERS))
        name = chosen.choice(sorted(table))
        takes = [_pick(chosen, kind, table[name], known[0]) for kind in table[name].kinds]
        if None in takes:
            continue
        line = _Line(name=name, step=table[name], takes=[each for each in takes if each], seed=seed * 100 + attempt)
        if _tried(line, known, f"t{len(lines)}"):
            lines.append(line)
    used = {name for line in lines for name in line.takes}
    outputs = [f"t{number}" for number in range(len(lines)) if f"t{number}" not in used]
    return Program(seed=seed, inputs=inputs, lines=lines, outputs=outputs)


def _pick(chosen: random.Random, kind: str, step: Step, known: Mapping[str, Any]) -> str | None:
    """One of the tensors that are of a kind, more often a late one."""
    names = [name for name, x in known.items() if step.takes(kind, x)]
    return chosen.choices(names, range(1, len(names) + 1))[0] if names else None


def _tried(line: _Line, known: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether a step can be computed, and gives numbers that a runtime has; adds them to what is known then."""
    try:
        found = [line.compute(tensors) for tensors in known]
    # What is drawn need not make sense, and Keras and TensorFlow say so by any kind of exception.
    except Exception:
        return False
    if any(not tf.size(x) or tf.size(x) > _MOST_VALUES or not _is_known(x) for x in found):
        return False
    for tensors, x in zip(known, found, strict=True):
        tensors[name] = x
    return True


def _is_known(x: Any) -> bool:
    if x.dtype.is_floating:
        return bool(x.dtype == tf.float32 and tf.reduce_all(tf.math.is_finite(x)))
    return x.dtype in (tf.bool, tf.int32, tf.int64)
