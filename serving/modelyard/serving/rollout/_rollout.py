"""Traffic rules at work: requests are spread, shadows compared, and targets rolled back."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from modelyard.artifact import Signature
from modelyard.errors import (
    DeadlineExceededError,
    InvalidModelSpecError,
    ModelNotFoundError,
    ModelyardError,
    OverloadedError,
    RequestCancelledError,
    UnavailableError,
)
from modelyard.serving.batching import Done
from modelyard.serving.config import Complaints, TrafficOptions, TrafficRule, read_traffic_file
from modelyard.serving.metrics import Metrics
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import Arrays, Caller, ModelSpec, Prediction, PredictRequest, once
from modelyard.serving.rollout._compare import Comparison
from modelyard.serving.rollout._rows import TrafficRow, json_of, row_of, texts_of
from modelyard.serving.rollout._shadow import Shadow, ShadowJob
from modelyard.serving.rollout._state import RuleState, TargetState
from modelyard.serving.rollout._store import RolledBack, read_rolled_back, write_rolled_back
from modelyard.wire import grpc_status_of

if TYPE_CHECKING:
    import modelyard_core

_LOG = logging.getLogger("modelyard.serving")

#: Seconds between two looks at the file, the labels and the limits.
_STEP_S = 1.0
#: Failures that say nothing of the version that was to answer.
_NOT_ITS_FAULT = (
    InvalidModelSpecError, ModelNotFoundError, OverloadedError, RequestCancelledError, UnavailableError,
)  # fmt: skip


class Rollout:
    """The rules in force."""

    def __init__(self, manager: ModelManager, metrics: Metrics, options: TrafficOptions) -> None:
        self._manager = manager
        self._metrics = metrics
        self._options = options
        self._shadow = Shadow(manager)
        #: Held while rules change, so that what :meth:`rows` tells is in force in the core, too.
        self._changing = threading.Lock()
        self._core: modelyard_core.Server | None = None
        #: By model; replaced, never changed, so that requests need no lock.
        self._states: Mapping[str, RuleState] = {}
        #: The file's, of which some may wait for their stable version.
        self._wanted: Mapping[str, TrafficRule] = {}
        self._complaints = Complaints(_LOG)
        self._remembered = read_rolled_back(options.state_file)
        metrics.before_reading(self._fetch)
        metrics.watch_all(":modelyard:serving:traffic_share", self._shares)
        metrics.watch_all(":modelyard:serving:shadow_max_error", self._errors)
        self._want(read_traffic_file(options.path))

    def attach(self, core: modelyard_core.Server) -> None:
        """Has the native core spread the requests that it answers itself."""
        self._core = core
        self._publish()

    def begin(
        self, request: PredictRequest, encode: Callable[[Prediction], object], done: Done
    ) -> tuple[PredictRequest, Callable[[Prediction], object], Done]:
        """Chooses the version of a prediction, has it counted, and computed once more where a shadow is to.

        Returns what takes the place of the arguments; a request that names a version or a label stays as it is.
        """
        state = self._states.get(request.spec.name)
        if state is None or request.spec.version is not None or request.spec.label is not None:
            return request, encode, done
        target = self._choose(state, request.caller)
        ended = self._counter(state, target, request.caller)
        spec = replace(target.spec(request.spec.name), signature=request.spec.signature)
        inputs: list[Arrays] = []
        predictions: list[Prediction] = []

        def kept_inputs(signature: Signature) -> Arrays:
            inputs.append(request.inputs(signature))
            return inputs[0]

        def kept_outputs(prediction: Prediction) -> object:
            predictions.append(prediction)
            return encode(prediction)

        def finished(result: object, error: BaseException | None) -> None:
            done(result, error)
            ended(error)
            if error is None and predictions:
                self._compare(state, predictions[0].spec, inputs[0], predictions[0].outputs)

        # Not for secrets: it picks requests.
        if random.random() < state.shadow_share:  # noqa: S311
            return replace(request, spec=spec, inputs=kept_inputs), kept_outputs, finished
        return replace(request, spec=spec), encode, finished

    @contextmanager
    def chosen(self, spec: ModelSpec, caller: Caller | None) -> Iterator[ModelSpec]:
        """Chooses the version of a call that is no prediction, and counts it."""
        state = self._states.get(spec.name)
        if state is None or spec.version is not None or spec.label is not None:
            yield spec
            return
        target = self._choose(state, caller)
        ended = self._counter(state, target, caller)
        if caller is not None:
            caller.given_up = ended
        try:
            yield replace(target.spec(spec.name), signature=spec.signature)
        except Exception as exc:
            ended(exc)
            raise
        ended(None)

    def shadow(self, model: str, *, version: int, signature: str, inputs: Arrays, outputs: Arrays) -> None:
        """Has a request computed once more that the native core has answered."""
        state = self._states.get(model)
        if state is not None:
            self._compare(state, ModelSpec(name=model, version=version, signature=signature), inputs, outputs)

    def rows(self) -> tuple[TrafficRow, ...]:
        """What the rules do at present: a row for each target of each model."""
        with self._changing:
            return self._rows()

    def _rows(self) -> tuple[TrafficRow, ...]:
        self._fetch()
        waiting = [RuleState(rule=rule) for name, rule in self._wanted.items() if not self._in_force(name)]
        states = [(state, False) for state in self._states.values()] + [(state, True) for state in waiting]
        return tuple(
            row_of(state, target, self._manager.resolve, waiting=waits)
            for state, waits in sorted(states, key=lambda item: (item[0].rule.model, item[1]))
            for target in state.targets.values()
        )

    def table(self, model: str) -> Sequence[Mapping[str, str]]:
        """What a model's rule does at present, as people read it: text by heading, the same headings in each row."""
        return [texts_of(row) for row in self.rows() if row.model == model]

    def rows_json(self) -> str:
        return json.dumps({"targets": [json_of(row) for row in self.rows()]}, indent=2) + "\n"

    async def watch(self) -> None:
        """Looks at the file, the labels and the limits, again and again."""
        while True:
            await asyncio.sleep(_STEP_S)
            try:
                await asyncio.to_thread(self.step)
            # If this task ended, nothing would be rolled back, without a sign of it.
            except Exception:
                _LOG.exception("traffic rules could not be looked at; trying again")

    def step(self) -> None:
        """Looks once at the file, the labels and the limits."""
        with self._changing:
            self._step()

    def _step(self) -> None:
        with self._complaints.about("traffic rules stay as they were"):
            self._want(read_traffic_file(self._options.path))
        self._fetch()
        changed = False
        for state in self._states.values():
            changed |= self._follow(state)
            for target, limit, reason in state.judge():
                target.rolled_back = reason
                changed = True
                self._tell(state, target, limit)
            for target in state.targets.values():
                target.window.move(time.monotonic())
        if changed:
            self._publish()
            self._remember()

    def close(self) -> None:
        self._shadow.close()

    def _choose(self, state: RuleState, caller: Caller | None) -> TargetState:
        named = state.named(caller)
        if named is not None:
            return named
        target = state.draw(caller)
        if target is not state.stable and self._manager.resolve(target.spec(state.rule.model)) is None:
            return state.stable
        return target

    def _counter(
        self, state: RuleState, target: TargetState, caller: Caller | None
    ) -> Callable[[BaseException | None], None]:
        """Begins a request to a target; what it returns counts how it ended, by the first call."""
        serving, begun = target.serving, time.perf_counter()

        def ended(error: BaseException | None) -> None:
            if error is None and caller is not None and caller.late:
                error = DeadlineExceededError("The deadline passed before the answer was there.")
            status = (
                "OK" if error is None else grpc_status_of(error) if isinstance(error, ModelyardError) else "INTERNAL"
            )
            labels = {"model": state.rule.model, "target": target.name, "status": status}
            self._metrics.count(":modelyard:serving:traffic_requests", labels)
            # What another version did says nothing of the one that it is now.
            if serving in (None, target.serving) and not isinstance(error, (*_NOT_ITS_FAULT, asyncio.CancelledError)):
                timed = error is None or isinstance(error, DeadlineExceededError)
                target.window.request(ok=error is None, seconds=time.perf_counter() - begun if timed else None)

        return once(ended)

    def _compare(self, state: RuleState, answered: ModelSpec, inputs: Arrays, outputs: Arrays) -> None:
        shadow, rule = state.shadow, state.rule.shadow
        if shadow is None or rule is None or answered.version is None:
            return
        if self._manager.resolve(shadow.spec(answered.name)) in (None, answered.version):
            return
        spec = replace(shadow.spec(answered.name), signature=answered.signature)
        report = partial(self._compared, shadow, answered.name)
        job = ShadowJob(
            spec=spec, answered=answered.version, inputs=inputs, outputs=outputs, tolerance=rule.tolerance,
            report=report,
        )  # fmt: skip
        if not self._shadow.submit(job):
            self._count_shadow(answered.name, shadow, "dropped")

    def _compared(self, shadow: TargetState, model: str, found: Comparison | None) -> None:
        self._count_shadow(model, shadow, "failed" if found is None else "compared")
        if found is None:
            # One that cannot answer is no better than one that answers otherwise.
            shadow.window.shadow(rows=1, disagreed=1, max_error=0.0)
            return
        shadow.window.shadow(rows=found.rows, disagreed=found.disagreed, max_error=found.max_error)
        for result, rows in (("agreed", found.rows - found.disagreed), ("disagreed", found.disagreed)):
            labels = {"model": model, "target": shadow.name, "result": result}
            self._metrics.count(":modelyard:serving:shadow_rows", labels, rows)

    def _count_shadow(self, model: str, shadow: TargetState, result: str) -> None:
        labels = {"model": model, "target": shadow.name, "result": result}
        self._metrics.count(":modelyard:serving:shadow_requests", labels)

    def _fetch(self) -> None:
        """Takes over what the core has counted."""
        for model, name, statuses, latencies, sum_us in self._core.take_traffic() if self._core is not None else ():
            state = self._states.get(model)
            target = None if state is None else state.targets.get(name)
            if target is not None:
                target.window.requests(latencies, sum_us, late=statuses.get("DEADLINE_EXCEEDED", 0))
            for status, count in statuses.items():
                labels = {"model": model, "target": name, "status": status}
                self._metrics.count(":modelyard:serving:traffic_requests", labels, count)

    def _want(self, rules: Mapping[str, TrafficRule]) -> None:
        """Takes over the file's rules, each as soon as its stable version can answer."""
        if rules != self._wanted:
            _LOG.info("traffic rules: %s", "; ".join(_describe(rule) for rule in rules.values()) or "none")
        self._wanted = rules
        self._complain_of_names(rules)
        states = {name: state for name, state in self._states.items() if name in rules}
        for name, rule in rules.items():
            known = states.get(name)
            same = known is not None and known.rule == rule
            if same and known is not None and known.stable.serving is not None:
                continue
            loaded = self._manager.ready(name) or self._manager.is_settled(name)
            if loaded and self._manager.resolve(_spec(rule)) is None:
                # Until then requests are answered as before: neither by errors, nor all by a canary.
                self._complaints.say(name, f"model {name}: its traffic rule begins when {rule.stable.name} can answer")
                if same:
                    del states[name]
                continue
            self._complaints.say(name, "")
            if not same:
                states[name] = RuleState(rule=rule)
                self._restore(states[name])
        if states != self._states:
            self._fetch()
            self._states = states
            self._remember()
            self._publish()
        # Behind the new rules: a version that they do not need any more is unloaded when no request is sent to it.
        self._manager.prefer(
            {
                name: (
                    _spec(states[name].rule) if name in states else None,
                    rule.versions | (states[name].rule.versions if name in states else frozenset()),
                )
                for name, rule in rules.items()
            }
        )

    def _complain_of_names(self, rules: Mapping[str, TrafficRule]) -> None:
        served = self._manager.names
        unknown = ", ".join(repr(name) for name in rules if name not in served)
        self._complaints.say(
            "names",
            unknown
            and f"--version_traffic_file={self._options.path} has rules for models that are not served: {unknown}; the "
            f"models here are: {', '.join(map(repr, served)) or 'none'}. Correct the field name; where such a model "
            "comes later, its rule begins then.",
        )

    def _in_force(self, name: str) -> bool:
        return name in self._states and self._states[name].rule == self._wanted.get(name)

    def _follow(self, state: RuleState) -> bool:
        """Sees where labels have moved: another version begins anew. Whether one has."""
        moved = False
        for target in state.targets.values():
            number = self._manager.resolve(target.spec(state.rule.model))
            if number is None or number == target.serving:
                continue
            if target.serving is not None:
                target.window.clear()
                if target.rolled_back:
                    _LOG.info(
                        "model %s: %s is version %d now: it is not rolled back any more",
                        state.rule.model, target.name, number,
                    )  # fmt: skip
                    target.rolled_back = ""
            target.serving, moved = number, True
        return moved

    def _tell(self, state: RuleState, target: TargetState, limit: str) -> None:
        model = state.rule.model
        self._metrics.count(
            ":modelyard:serving:traffic_rollbacks", {"model": model, "target": target.name, "limit": limit}
        )
        version = "" if target.target.version is not None else f" (version {target.serving})"
        instead = f"{state.stable.name} answers instead" if target in state.split else "it computes nothing"
        _LOG.warning(
            "model %s: %s%s is rolled back: %s; %s until the rule in %s changes",
            model, target.name, version, target.rolled_back, instead, self._options.path,
        )  # fmt: skip

    def _shares(self) -> Iterator[tuple[Mapping[str, str], float]]:
        for name, state in self._states.items():
            for target in state.targets.values():
                yield {"model": name, "target": target.name}, state.share(target, self._manager.resolve)

    def _errors(self) -> Iterator[tuple[Mapping[str, str], float]]:
        for name, state in self._states.items():
            if state.rule.shadow is not None:
                target = state.targets[state.rule.shadow.target.name]
                yield {"model": name, "target": target.name}, target.window.total().max_error

    def _restore(self, state: RuleState) -> None:
        """Takes over what a run before has rolled back, by just this rule."""
        for found in self._remembered:
            target = state.targets.get(found.target)
            if target is not None and (found.model, found.rule) == (state.rule.model, state.rule.digest):
                target.serving, target.rolled_back = found.version, found.reason
                _LOG.warning("model %s: %s stays rolled back: %s", found.model, found.target, found.reason)

    def _remember(self) -> None:
        """Keeps what is rolled back for the next run."""
        # Of rules that wait for their stable version, what was rolled back before stays so.
        waits = {name: rule.digest for name, rule in self._wanted.items() if not self._in_force(name)}
        waiting = tuple(each for each in self._remembered if waits.get(each.model) == each.rule)
        self._remembered = waiting + tuple(
            RolledBack(
                model=name,
                target=target.name,
                version=target.serving,
                rule=state.rule.digest,
                reason=target.rolled_back,
            )  # fmt: skip
            for name, state in self._states.items()
            for target in state.targets.values()
            if target.rolled_back
        )
        write_rolled_back(self._options.state_file, self._remembered)

    def _publish(self) -> None:
        if self._core is None:
            return
        self._core.set_traffic([state.for_core for state in self._states.values()])


def _spec(rule: TrafficRule) -> ModelSpec:
    return ModelSpec(name=rule.model, version=rule.stable.version, label=rule.stable.label)


def _describe(rule: TrafficRule) -> str:
    split = ", ".join(f"{target.name} {share:.4g}" for target, share in rule.split)
    shadow = "" if rule.shadow is None else f", shadow {rule.shadow.target.name} {rule.shadow.share:g}"
    return f"{rule.model}: {split}{shadow}"
