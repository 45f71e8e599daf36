"""The user's own loop: what the trainer does around a step, as calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from modelyard.training.checkpoint import Checkpoints, RunState, list_checkpoints, list_weights, read_state
from modelyard.training.distribute import Peers, check_devices
from modelyard.training.loop._coordinated import make_loop
from modelyard.training.loop._loop import DeviceLoop, Totals, share_out
from modelyard.training.run import Goal, InterruptGuard, LoopOptions, change_options, check_config
from modelyard.training.user import describe_batch, describe_models, evaluation

_NAME = "loop"
#: Options that decide the numbers: a loop may only go on with the same.
_DECIDE = ("seed", "accumulate_steps", "clip_norm", "precision")


class Loop:
    """What the trainer does around a step, as calls, for a ``for`` loop of your own.

    Strategy, devices, compiled steps, accumulation, clipping, precision,
    checkpoints, exact resume and a Ctrl-C that waits for the end of the step:
    the trainer is built on it. Enter it, and it ends a run after the step at
    hand, with a checkpoint, where the process is told to end.

    Args:
        options: None for the defaults.
        strategy: Runs the steps on its replicas; None for one.
        changes: Fields of :class:`LoopOptions` to set on top of ``options``.

    Attributes:
        options: Of this loop.
        strategy: Or None.
        peers: The other processes of the strategy.
        state: Where the loop is: ``state.step`` and ``state.epoch``.

    Raises:
        ConfigurationError: A field is unknown or out of its range, or does not
            work with a strategy.

    Example:
        >>> loop = Loop(model_dir="runs/mine", clip_norm=1.0)
        >>> with loop.building():
        ...     model, optimizer = make_model(), keras.optimizers.Adam(1e-3)
        ...     optimizer.build(model.trainable_variables)
        >>> loop.track(model=model, optimizer=optimizer)
        >>> @loop.train_step
        ... def train(batch):
        ...     ...
        ...     return {"loss": losses}
        >>> with loop:
        ...     loop.resume()
        ...     for epoch in loop.epochs(3):
        ...         for batch in loop.batches(dataset(epoch)):
        ...             values = train(batch)
        ...         loop.save()
    """

    def __init__(
        self, options: LoopOptions | None = None, *, strategy: tf.distribute.Strategy | None = None, **changes: Any
    ) -> None:
        self.options = change_options(options or LoopOptions(), changes)
        self.strategy = strategy
        self.peers = Peers(strategy)
        config = {name: getattr(self.options, name) for name in _DECIDE}
        self.state = RunState(
            task=_NAME, config=config, step=0, epoch=0, epoch_step=0, totals=Totals(sums={}), seconds=0.0, history=()
        )
        check_devices(self.options.devices)
        for name in ("jit_compile", "devices"):
            if strategy is not None and getattr(self.options, name):
                raise ConfigurationError(
                    f"{name} does not work with a strategy, which compiles and places steps itself; leave one of the "
                    f"two out (--{name.replace('_', '-')}, --strategy)."
                )
        self._tracked: dict[str, Any] = {}
        self._checkpoints: Checkpoints | None = None
        self._weights: list[Any] = []
        self._steps: list[CompiledStep] = []
        self._guard = InterruptGuard()

    def building(self) -> AbstractContextManager[None]:
        """Where models are built: seeded, in the strategy's scope and the precision, on the first device."""
        return self._building()

    @contextmanager
    def _building(self) -> Iterator[None]:
        options = self.options
        keras.utils.set_random_seed(options.seed)
        with self.placed():
            tf.random.set_global_generator(tf.random.Generator.from_seed(options.seed))
            with _precision(options.precision):
                yield

    @contextmanager
    def placed(self) -> Iterator[None]:
        """In the strategy's scope and on the first device, where one is named."""
        devices = self.options.devices
        with nullcontext() if self.strategy is None else self.strategy.scope():
            with tf.device(devices[0]) if devices else nullcontext():
                yield

    def track(self, /, *, keep_best: Goal | None = None, **models: Any) -> None:
        """Names what checkpoints hold.

        Args:
            keep_best: Keeps the checkpoint of the best evaluation as well; only the trainer has evaluations.
            models: Models, optimizers, metrics and variables, all of them built, by name.
        """
        folder = self.options.checkpoint_dir
        self._tracked, self._weights = dict(models), list_weights(models)
        if folder is not None:
            self._checkpoints = Checkpoints(
                self.peers.checkpoint_folder(folder),
                models,
                keep=self.options.keep_checkpoints,
                goal=keep_best,
                background=self.options.async_checkpoints and self.strategy is None,
            )

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Those of this loop; None without ``model_dir``."""
        return self._checkpoints

    def newest(self) -> Path | None:
        """The newest checkpoint; None where there is none."""
        folder = self.options.checkpoint_dir
        found = [] if folder is None else list_checkpoints(folder)
        return found[-1] if found else None

    def compile(
        self, step: Callable[[Any], Mapping[str, Any]], element_spec: Any, *, label: str, train: bool, **more: Any
    ) -> DeviceLoop:
        """The device loop of a step, as the options say.

        Args:
            step: From a batch to values by name, ``loss`` among them.
            element_spec: Spec of the batches.
            label: What to call it in messages.
            train: Whether it updates weights; other steps are neither cut nor
                compiled by XLA, and run on the first device.
            more: As for :class:`DeviceLoop`.

        Raises:
            ConfigurationError: As for :class:`DeviceLoop`.
        """
        options = self.options
        how: dict[str, Any] = {"devices": options.devices[:1]}
        if train:
            how = {
                "accumulate_steps": options.accumulate_steps,
                "clip_norm": options.clip_norm,
                "devices": options.devices,
                "jit_compile": options.jit_compile,
                "prefetch": options.prefetch_to_device,
            }
        models = describe_models(self._tracked)
        return make_loop(
            step if train else evaluation(step),
            element_spec,
            label=label,
            strategy=self.strategy,
            model_description=models,
            **how,
            **more,
        )

    def weights_are_finite(self) -> bool:
        """Whether no weight of any model is NaN or infinite."""
        return all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in self._weights)

    # What follows is for loops of one's own; the trainer has events and evaluations in these places.

    def train_step(self, step: Callable[[Any], Mapping[str, Any]]) -> CompiledStep:
        """Compiles a step that updates weights, by :func:`minimize` or :func:`apply_gradients`; a decorator.

        Args:
            step: For one replica, from a batch to values by name, ``loss`` among them.
        """
        return self._compiled(step, train=True)

    def eval_step(self, step: Callable[[Any], Mapping[str, Any]]) -> CompiledStep:
        """Compiles a step that updates no weights; a decorator.

        Args:
            step: For one replica, from a batch to values by name, ``loss`` among them.
        """
        return self._compiled(step, train=False)

    def _compiled(self, step: Callable[[Any], Mapping[str, Any]], *, train: bool) -> CompiledStep:
        made = CompiledStep(self, step, train=train)
        self._steps.append(made)
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, from 0.

        Args:
            count: Epochs in all.
        """
        while self.state.epoch < count:
            yield self.state.epoch
            self.state = replace(self.state, epoch=self.state.epoch + 1, epoch_step=0)

    def batches(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """The batches of this epoch that are left; each counts as one step.

        Where the process was told to end, it saves and ends between two batches.

        Args:
            dataset: The whole epoch, a pure function of the number of the epoch.
        """
        for batch in self._read(dataset.skip(self.state.epoch_step)):
            self.state = replace(self.state, step=self.state.step + 1, epoch_step=self.state.epoch_step + 1)
            yield batch
            if any(self.peers.any(self._guard.requested)):
                self.save()
                raise self._guard.stop()

    def eval_batches(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Batches that do not count.

        Args:
            dataset: Of batches.
        """
        return self._read(dataset)

    def _read(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        spec, options = dataset.element_spec, self.options
        device = options.devices[0] if options.prefetch_to_device else None
        for batch in share_out(dataset, self.strategy, prefetch_to=device):
            for step in self._steps:
                step.spec = spec
            yield batch

    def resume(self) -> bool:
        """Goes on from the newest checkpoint, where there is one.

        Returns:
            Whether there was one; ``state`` then is where it was made.

        Raises:
            CheckpointError: It is damaged, does not fit, or is of a task or of other options.
        """
        path = self.newest()
        self.peers.check_same_step(0 if path is None else read_state(path).step, self.options.checkpoint_dir)
        if path is None or self._checkpoints is None:
            return False
        state = read_state(path)
        if state.task != _NAME:
            raise CheckpointError(f"The checkpoint {path} is of the task {state.task!r}; expected one of a Loop.")
        check_config(state, self.state.config, path)
        self._checkpoints.clean()
        self.state = self._checkpoints.restore(path)
        for step in self._steps:
            step.totals = Totals(
                sums={
                    name.removeprefix(f"{step.label}/"): total
                    for name, total in self.state.totals.sums.items()
                    if name.startswith(f"{step.label}/")
                }
            )
        return True

    def save(self) -> Path:
        """Writes a checkpoint, in the background where it can, and removes the oldest ones.

        Call it after a batch was used: it counts as done.

        Returns:
            Its folder.

        Raises:
            CheckpointError: It cannot be written.
            ConfigurationError: There is no ``model_dir``, or nothing is tracked.
            NonFiniteLossError: A weight is NaN or infinite.
        """
        if self._checkpoints is None:
            raise ConfigurationError("save() needs model_dir, and track() before it.")
        if not self.weights_are_finite():
            raise NonFiniteLossError(
                f"The weights are no longer finite after step {self.state.step}. The last good checkpoint is "
                f"{self.newest()}. Lower the learning rate, or look for NaN and extreme values in the input."
            )
        sums = {f"{step.label}/{name}": total for step in self._steps for name, total in step.totals.sums.items()}
        self.state = replace(self.state, totals=Totals(sums=sums))
        path = self._checkpoints.save(self.state)
        if self.peers.layout.workers > 1:
            self._checkpoints.wait()
            self.peers.discard(path)
        return (self.options.checkpoint_dir or path.parent) / path.name

    def __enter__(self) -> Self:
        """From here on the first Ctrl-C or SIGTERM waits for the end of a batch."""
        self._guard.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the checkpoint that is being written."""
        try:
            if self._checkpoints is not None:
                self._checkpoints.wait()
        finally:
            self._guard.__exit__(kind, error, trace)
            self.peers.close()


class CompiledStep:
    """A step of a :class:`Loop`, traced on first use.

    Attributes:
        label: Its name.
        spec: Of the batches that it will get.
        totals: What :meth:`means` averages.
    """

    def __init__(self, loop: Loop, step: Callable[[Any], Mapping[str, Any]], *, train: bool) -> None:
        self.label: str = getattr(step, "__name__", "step")
        self.spec: Any = None
        self.totals = Totals(sums={})
        self._owner, self._step, self._train = loop, step, train
        self._compiled: dict[Any, DeviceLoop] = {}

    def __call__(self, batch: Any) -> dict[str, float]:
        """Takes the step.

        Args:
            batch: From :meth:`Loop.batches` or :meth:`Loop.eval_batches`.

        Returns:
            The averages over this batch.

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
                    self._step, spec, label=self.label, train=self._train, form="step"
                )
        compiled = self._compiled[key]
        outcome = compiled.run(iter([batch]), 1, compiled.empty())
        if outcome.non_finite_at is not None:
            shown = f" The batch was: {describe_batch(batch)}." if self._owner.strategy is None else ""
            raise NonFiniteLossError(
                f"The loss of {self.label} is {outcome.bad_loss} at step {self._owner.state.step}.{shown} The newest "
                f"checkpoint is {self._owner.newest()}."
            )
        before = self.totals.sums
        added = {name: (total, count) for name, (total, count) in outcome.totals.sums.items()}
        sums = {
            name: (before.get(name, (0.0, 0.0))[0] + total, before.get(name, (0.0, 0.0))[1] + count)
            for name, (total, count) in added.items()
        }
        self.totals = Totals(sums=sums, examples=self.totals.examples + outcome.totals.examples)
        return outcome.totals.means()

    def means(self) -> dict[str, float]:
        """The averages over everything since the last call, also before a resume; begins anew."""
        found, self.totals = self.totals.means(), Totals(sums={})
        return found


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """Keras' dtype policy for the time of a build; layers keep it."""
    if name == "float32":
        # What the user has set is left alone.
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
