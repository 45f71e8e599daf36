"""A step of the user's own loop, compiled for the batches that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from modelyard.errors import NonFiniteLossError
from modelyard.training.loop._loop import DeviceLoop, Totals
from modelyard.training.loop._modes import LOOP_MODES
from modelyard.training.user import describe_batch

if TYPE_CHECKING:
    from modelyard.training.loop._own_loop import Loop


class CompiledStep:
    """A step of a :class:`Loop`, traced on first use; ``totals`` is what :meth:`means` averages."""

    def __init__(self, loop: Loop, step: Callable[[Any], Mapping[str, tf.Tensor]], *, train: bool) -> None:
        self.label: str = getattr(step, "__name__", "step")
        self.spec: object = None
        self.totals = Totals(sums={})
        self._owner, self._step, self._train = loop, step, train
        self._compiled: dict[tuple[object, ...], DeviceLoop] = {}

    def __call__(self, batch: object) -> dict[str, float]:
        """Takes the step on a batch of :meth:`Loop.batches` or :meth:`Loop.eval_batches`; returns the averages over it.

        Raises:
            ConfigurationError: The step does not fit the batch or the options.
            NonFiniteLossError: The loss is NaN or infinite.
            TrainingError: An op failed.
        """
        spec = tf.nest.map_structure(tf.type_spec_from_value, batch) if self.spec is None else self.spec
        key = tuple(tf.nest.flatten(spec))
        if key not in self._compiled:
            with self._owner.placed():
                self._compiled[key] = self._owner.compile(
                    self._step, spec, label=self.label, train=self._train, mode=LOOP_MODES["step"]
                )
        compiled = self._compiled[key]
        outcome = compiled.run(iter([batch]), 1, compiled.empty())
        if outcome.non_finite_at is not None:
            shown = f" The batch was: {describe_batch(batch)}." if self._owner.strategy is None else ""
            raise NonFiniteLossError(
                f"The loss of {self.label} is {outcome.bad_loss} at step {self._owner.state.step}.{shown} The newest "
                f"checkpoint is {self._owner.newest()}."
            )
        sums = dict(self.totals.sums)
        for name, (total, count) in outcome.totals.sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + count
        self.totals = Totals(sums=sums, examples=self.totals.examples + outcome.totals.examples)
        return outcome.totals.means()

    def means(self) -> dict[str, float]:
        """The averages over everything since the last call, also before a resume; begins anew."""
        found, self.totals = self.totals.means(), Totals(sums={})
        return found
