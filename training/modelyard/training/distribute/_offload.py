"""Optimizer state in host memory: slot variables visit the device only for the weight update.

Adam keeps two numbers for every weight, so its state is twice as large as the model. The step itself, forwards and
backwards, needs none of it: kept in host memory, it leaves that part of the device to activations.

The idea is ZeRO-Offload's (Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv:2101.06840,
2021), with one difference: there the host computes the update, here the device does, on slots that come over for it,
one variable after the other.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from modelyard.errors import ConfigurationError

HOST = "/CPU:0"
#: Variables whose slots may be on the device at once: one is updated while the next one's slots arrive.
_VISITORS = 2


def offload_slots(optimizer: keras.Optimizer, *, host: str = HOST) -> keras.Optimizer:
    """The same optimizer, with its slot variables in host memory.

    The numbers are those of the optimizer itself. Each weight is updated on the device it is on: its slots are copied
    there, and their new values back.

    Args:
        optimizer: From ``keras.optimizers``, not built yet. Where it scales losses (``LossScaleOptimizer``), wrap the
            optimizer inside.
        host: Device that keeps the slots.

    Returns:
        A new optimizer with the same configuration; build and use it in place of the given one.

    Raises:
        ConfigurationError: The optimizer is built already, or is one around other optimizers, or accumulates gradients
            itself, or a distribution strategy with several replicas is in scope.

    Example:
        >>> optimizer = offload_slots(keras.optimizers.Adam(1e-3))
        >>> optimizer.build(model.trainable_variables)
    """
    name = type(optimizer).__name__
    if optimizer.built:
        raise ConfigurationError(f"{name} is built already; offload its slots before build() creates them.")
    if hasattr(optimizer, "inner_optimizer") or hasattr(optimizer, "optimizers"):
        raise ConfigurationError(f"{name} has no slots of its own; offload those of the optimizer inside it.")
    if optimizer.gradient_accumulation_steps:
        raise ConfigurationError(
            f"{name} accumulates gradients in variables of its own, which every step needs; accumulate them outside of "
            "the optimizer (gradient_accumulation_steps=None)."
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ConfigurationError(f"Slots cannot be offloaded with {replicas} replicas; use the strategy 'one'.")
    kind = type(f"Offloaded{name}", (_Offloaded, type(optimizer)), {"placement": _Placement(host)})
    return kind.from_config(optimizer.get_config())  # type: ignore[attr-defined]


class _Placement:
    """Where the slots are. No dictionary of its own in the optimizer: Keras would save its variables twice."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.slots: dict[str, list[keras.Variable]] = {}
        #: What writes the slots back in the apply() at work, for each variable so far.
        self.returned: list[list[tf.Operation]] = []


class _Offloaded:
    """Comes before the optimizer's class and changes where its slots are, not what it computes."""

    placement: _Placement
    variables: list[tf.Variable]

    def add_variable(self, *args: Any, **kwargs: Any) -> keras.Variable:
        with tf.device(self.placement.host):
            return super().add_variable(*args, **kwargs)  # type: ignore[misc]

    def add_variable_from_reference(self, reference_variable: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        slot = super().add_variable_from_reference(reference_variable, *args, **kwargs)  # type: ignore[misc]
        self.placement.slots.setdefault(self._key(reference_variable), []).append(slot)
        return slot

    def apply(self, *args: Any, **kwargs: Any) -> None:
        self.placement.returned = []
        super().apply(*args, **kwargs)  # type: ignore[misc]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        placement = self.placement
        slots = placement.slots.get(self._key(variable), [])
        earlier = placement.returned[-_VISITORS] if len(placement.returned) >= _VISITORS else []
        with tf.control_dependencies(earlier), tf.device(placement.host):
            at_home = [slot.value.read_value() for slot in slots]
        with tf.device(variable.device):
            visiting = [tf.identity(value) for value in at_home]
            with keras.StatelessScope(state_mapping=list(zip(slots, visiting, strict=True))) as scope:
                super().update_step(gradient, variable, learning_rate)  # type: ignore[misc]
        with tf.device(placement.host):
            unchanged = {id(None), *map(id, visiting)}
            new = [(own, scope.get_current_value(own)) for own in self.variables]
            written = [own.value.assign(value, read_value=False) for own, value in new if id(value) not in unchanged]
        # Eager assignments are done and have no op.
        placement.returned.append([op for op in written if op is not None])

    # What an optimizer assigns to its own variables is taken by the scope of update_step.

    def assign(self, variable: tf.Variable, value: tf.Tensor) -> None:
        if not isinstance(variable, keras.Variable):
            super().assign(variable, value)  # type: ignore[misc]
        elif isinstance(value, tf.IndexedSlices):
            variable.assign(tf.tensor_scatter_nd_update(variable.value, value.indices[:, None], value.values))
        else:
            variable.assign(value)

    def assign_add(self, variable: tf.Variable, value: tf.Tensor) -> None:
        if isinstance(variable, keras.Variable):
            variable.assign_add(value)
        else:
            super().assign_add(variable, value)  # type: ignore[misc]

    def assign_sub(self, variable: tf.Variable, value: tf.Tensor) -> None:
        if isinstance(variable, keras.Variable):
            variable.assign_sub(value)
        else:
            super().assign_sub(variable, value)  # type: ignore[misc]

    def _key(self, variable: keras.Variable) -> str:
        return self._var_key(variable)  # type: ignore[attr-defined]
