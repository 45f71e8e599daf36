"""The user's own loop: what the trainer does around a step, as calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import keras
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from modelyard.training.checkpoint import Checkpoints, RunState, list_checkpoints, list_weights, read_state
from modelyard.training.distribute import Peers, check_devices
from modelyard.training.loop._compiled_step import CompiledStep
from modelyard.training.loop._coordinated import make_loop
from modelyard.training.loop._loop import DeviceLoop, Totals, share_out
from modelyard.training.run import Goal, InterruptGuard, LoopOptions, change_options, check_config
from modelyard.training.user import describe_models, evaluation

_NAME = "loop"
#: Options that decide the numbers: a loop may only go on with the same.
_DECIDE = ("seed", "accumulate_steps", "clip_norm", "precision")


class Loop:
    """What the trainer does around a step, as calls, for a ``for`` loop of your own.

    Strategy, devices, compiled steps, accumulation, clipping, precision, checkpoints, exact resume and a Ctrl-C that
    waits for the end of the step: the trainer is built on it. Enter it, and it ends a run after the current step, with
    a checkpoint, where the process is told to end.

    Args:
        options: None for the defaults.
        strategy: Runs the steps on its replicas; None for one.
        changes: Fields of :class:`LoopOptions` to set on top of ``options``.

    Attributes:
        state: Where the loop is: ``state.step`` and ``state.epoch``.
        checkpoints: Those of this loop; None without ``model_dir``.
        peers: The other processes of the strategy.

    Raises:
        ConfigurationError: A field is unknown or out of its range, or does not work with a strategy.

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
        self._tracked: dict[str, object] = {}
        self.checkpoints: Checkpoints | None = None
        #: Of this loop, or what it goes on from.
        self._newest: tuple[int, Path] | None = None
        self._weights: list[tf.Variable] = []
        self._steps: list[CompiledStep] = []
        self._guard = InterruptGuard()

    @contextmanager
    def building(self) -> Iterator[None]:
        """Where models are built: seeded, in the strategy's scope and the precision, on the first device."""
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

    def track(self, /, *, keep_best: Goal | None = None, **models: object) -> None:
        """Names what checkpoints hold.

        Args:
            keep_best: Keeps the checkpoint of the best evaluation as well; only the trainer has evaluations.
            models: Models, optimizers, metrics and variables, all of them built, by name.
        """
        folder = self.options.checkpoint_dir
        self._tracked, self._weights = dict(models), list_weights(models)
        if folder is not None:
            self.checkpoints = Checkpoints(
                self.peers.checkpoint_folder(folder),
                models,
                keep=self.options.keep_checkpoints,
                goal=keep_best,
                background=self.options.async_checkpoints and self.strategy is None,
            )

    def newest(self) -> Path | None:
        """The newest checkpoint; None where there is none."""
        folder = self.options.checkpoint_dir
        found = [] if folder is None else list_checkpoints(folder)
        return found[-1] if found else None

    def compile(
        self,
        step: Callable[[Any], Mapping[str, tf.Tensor]],
        element_spec: object,
        *,
        label: str,
        train: bool,
        **more: Any,
    ) -> DeviceLoop:
        """The device loop of a step, as the options say; ``more`` is as for :class:`DeviceLoop`.

        A step that does not train is neither cut nor compiled by XLA, and runs on the first device.
        """
        options = self.options
        how: dict[str, object] = {"devices": options.devices[:1]}
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

    def train_step(self, step: Callable[[Any], Mapping[str, tf.Tensor]]) -> CompiledStep:
        """Compiles a step that updates weights, by :func:`minimize` or :func:`apply_gradients`; a decorator.

        The step is for one replica, from a batch to values by name, ``loss`` among them.
        """
        return self._compiled(step, train=True)

    def eval_step(self, step: Callable[[Any], Mapping[str, tf.Tensor]]) -> CompiledStep:
        """Compiles a step that updates no weights, otherwise as for :meth:`train_step`; a decorator."""
        return self._compiled(step, train=False)

    def _compiled(self, step: Callable[[Any], Mapping[str, tf.Tensor]], *, train: bool) -> CompiledStep:
        made = CompiledStep(self, step, train=train)
        self._steps.append(made)
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left of so many in all, from 0.

        Where the process was told to end, it saves and ends between two epochs.
        """
        while self.state.epoch < count:
            yield self.state.epoch
            self._end_if_told()
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
            self._end_if_told()

    def _end_if_told(self) -> None:
        if any(self.peers.any(self._guard.requested)):
            if self.checkpoints is not None:
                self.save()
            raise self._guard.stop()

    def eval_batches(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        """Batches that do not count."""
        return self._read(dataset)

    def _read(self, dataset: tf.data.Dataset) -> Iterator[object]:
        spec, options = dataset.element_spec, self.options
        device = options.devices[0] if options.prefetch_to_device else None
        for batch in share_out(dataset, self.strategy, prefetch_to=device):
            for step in self._steps:
                step.spec = spec
            yield batch

    def resume(self) -> bool:
        """Goes on from the newest checkpoint, where there is one; returns whether there was one.

        Raises:
            CheckpointError: It is damaged, does not fit, or is of a task or of other options.
        """
        path = self.newest()
        self.peers.check_same_step(0 if path is None else read_state(path).step, self.options.checkpoint_dir)
        if path is None or self.checkpoints is None:
            return False
        state = read_state(path)
        if state.task != _NAME:
            raise CheckpointError(f"The checkpoint {path} is of the task {state.task!r}; expected one of a Loop.")
        check_config(state, self.state.config, path)
        self.checkpoints.clean()
        self.state = self.checkpoints.restore(path)
        self._newest = self.state.step, path
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
        """Writes a checkpoint, in the background where it can, removes the oldest ones, and returns its folder.

        Call it after a batch was used: it counts as done. Where there was no batch since the last one, it is that one.

        Raises:
            CheckpointError: It cannot be written.
            ConfigurationError: There is no ``model_dir``, or nothing is tracked.
            NonFiniteLossError: A weight is NaN or infinite.
        """
        if self.checkpoints is None:
            raise ConfigurationError("save() needs model_dir, and track() before it.")
        if not self.weights_are_finite():
            raise NonFiniteLossError(
                f"The weights are no longer finite after step {self.state.step}. The last good checkpoint is "
                f"{self.newest()}. Lower the learning rate, or look for NaN and extreme values in the input."
            )
        if self._newest is not None and self._newest[0] == self.state.step:
            return self._newest[1]
        sums = {f"{step.label}/{name}": total for step in self._steps for name, total in step.totals.sums.items()}
        self.state = replace(self.state, totals=Totals(sums=sums))
        path = self.checkpoints.save(self.state)
        if self.peers.layout.workers > 1:
            self.checkpoints.wait()
            self.peers.discard(path)
        self._newest = self.state.step, (self.options.checkpoint_dir or path.parent) / path.name
        return self._newest[1]

    def __enter__(self) -> Self:
        """From here on the first Ctrl-C or SIGTERM waits for the end of a batch."""
        self._guard.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the checkpoint that is being written; ends the process where it was told to after the last batch.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, in the last evaluation for example.
            SystemExit: The same after SIGTERM. The exit code is 143.
        """
        told = kind is None and self._guard.requested
        try:
            if self.checkpoints is not None:
                # Processes side by side save together, and the others may not have been told.
                if told and self.peers.layout.workers == 1:
                    self.save()
                self.checkpoints.wait()
        finally:
            self._guard.__exit__(kind, error, trace)
            self.peers.close()
        # Asked again: it may have come during the wait. Who pressed Ctrl-C does not want what comes after training.
        if kind is None and self._guard.requested:
            raise self._guard.stop()


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
