"""Real clusters on this machine: what they learn, what they save, and what happens when a process dies."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import InputRequest, Trainer, TrainerOptions, make_strategy, restore
from modelyard.training.checkpoint import list_checkpoints, read_state
from modelyard.training.data import FashionMnist
from modelyard.training.distribute import LocalClusterOptions, Peers, run_local_cluster
from modelyard.training.run._run_state import find_metrics
from modelyard.training.tasks import LinearTask, SiameseTask
from tests.support.devices import LOGICAL_CPUS, separate_replicas
from tests.support.server import free_port
from tests.support.waiting import until
from tests.training.cluster_task import ClusterTask, CountingTask, PoisonedTask
from tests.training.conftest import ROOT
from tests.training.toy_task import EXAMPLES, STEPS_PER_EPOCH

TASK = "tests.training.cluster_task:ClusterTask"
MAIN = "import sys; from modelyard.training.cli import main; sys.exit(main(sys.argv[1:]))"


class Cluster:
    """``modelyard train --local-cluster 2`` and what it writes."""

    def __init__(self, folder: Path, *flags: str, task: str = TASK, sleep_s: float = 0.0, shares: bool = False) -> None:
        self.model_dir, self.out = folder / "run", folder / "out"
        self.out.mkdir(exist_ok=True)
        self.log = folder / "log.txt"
        arguments = [task, "--local-cluster", "2", "--model-dir", str(self.model_dir), "--batch-size", "8", *flags]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                    "CLUSTER_TASK_OUT": str(self.out),
                    "CLUSTER_TASK_SLEEP": str(sleep_s),
                    "CLUSTER_TASK_SHARES": "yes" if shares else "",
                },
                stdout=log,
                stderr=log,
            )

    def text(self) -> str:
        return self.log.read_text("utf-8")

    def wait_for(self, pattern: str, timeout_s: float = 240) -> re.Match[str]:
        try:
            until(lambda: re.search(pattern, self.text()) or self.process.poll() is not None, timeout_s, poll_s=0.05)
            found = re.search(pattern, self.text())
            assert found is not None, f"no {pattern!r} in:\n{self.text()}"
        except AssertionError:
            self.end()
            raise
        return found

    def kill(self, name: str) -> None:
        os.kill(int(self.wait_for(rf"\[cluster\] {name} is process (\d+)")[1]), signal.SIGKILL)

    def result(self, timeout_s: float = 240) -> int:
        try:
            return self.process.wait(timeout_s)
        finally:
            self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            # Ends its processes as well.
            self.process.terminate()
            self.process.terminate()
            self.process.wait(60)

    def left(self, name: str) -> list[Any]:
        """What a process left after each of its epochs."""
        paths = sorted(self.out.glob(f"{name}-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
        return [json.loads(path.read_text("utf-8")) for path in paths]


def steps(model_dir: Path) -> list[int]:
    return [read_state(path).step for path in list_checkpoints(model_dir / "checkpoints")]


def test_two_workers_train_as_one_and_go_on_after_a_kill(tmp_path: Path) -> None:
    """Of a task with a metric, which the two merge."""
    counting = "tests.training.cluster_task:CountingTask"
    flags = ("--checkpoint-every", "4", "--steps-per-loop", "4")
    first = Cluster(tmp_path, "--epochs", "500", *flags, task=counting, sleep_s=0.5)
    first.wait_for(r"\[worker 0\] Epoch 2/500")
    first.kill("worker 1")
    assert first.result(120) == 1
    assert "[cluster] worker 1 was killed by SIGKILL; stopping the others." in first.text()
    saved = steps(first.model_dir)[-1]
    kept = re.escape(f"they go on from {first.model_dir}/checkpoints/step-{saved:09d}.")
    assert re.search(
        rf"\[worker 0\] .*Another process of the cluster is gone.* Start all processes .* {kept}", first.text()
    )
    assert "Traceback" not in first.text()
    epochs = saved // STEPS_PER_EPOCH + 2
    # Before, each worker made all batches and kept its part; from here on it makes only its part.
    assert {number for path in first.out.glob("*.json") for number in json.loads(path.read_text())["shards"]} == {1}
    for path in first.out.iterdir():
        path.unlink()
    second = Cluster(tmp_path, "--epochs", str(epochs), *flags, task=counting, shares=True)
    assert second.result() == 0, second.text()
    assert f"going on from step {saved}" in second.text()
    # The same numbers as one process that was never stopped, to 1e-5.
    alone = CountingTask()
    options = TrainerOptions(epochs=epochs, batch_size=8)
    whole = Trainer(alone, options).run()
    together = CountingTask()
    result = restore(second.model_dir, together)
    for value, expected in zip(together.values(), alone.values(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-5)
    assert result.metrics == pytest.approx(whole.metrics, rel=1e-4)
    error = np.abs(np.asarray(together.model(together.features))[:, 0] - together.targets).mean()
    assert result.metrics["test_error"] == pytest.approx(error, rel=1e-5)
    assert whole.history[-1].evaluation["loss"] < 0.5 * whole.history[0].evaluation["loss"]
    # Each worker saw its own part of every epoch, and has the same weights, bit for bit.
    ours, theirs = second.left("worker-0"), second.left("worker-1")
    assert len(ours) == len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        assert one["weights"] == other["weights"]
    assert sorted(ours[-1]["seen"] + theirs[-1]["seen"]) == list(range(EXAMPLES))
    assert ours[-1]["seen"] and theirs[-1]["seen"]
    assert set(ours[-1]["shards"] + theirs[-1]["shards"]) == {2}
    # Only the chief saves and reports.
    assert steps(second.model_dir)[-1] == epochs * STEPS_PER_EPOCH
    lines = [line for line in second.text().splitlines() if "Epoch" in line or "Checkpoint:" in line]
    assert lines and all(line.startswith("[worker 0]") for line in lines)


def test_a_process_whose_others_do_not_come_says_so(tmp_path: Path) -> None:
    addresses = "worker=127.0.0.1:9,127.0.0.1:10"
    flags = ["--cluster", addresses.replace("127.0.0.1:9", f"127.0.0.1:{free_port()}"), "--role", "worker:0"]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, TASK, *flags, "--join-timeout", "2", "--model-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert "modelyard train: worker 0 waited 2 s for the other processes of the cluster of 127.0.0.1:" in done.stderr
    assert not list(tmp_path.iterdir())


def test_workers_take_steps_on_the_weights_of_a_parameter_server(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "--strategy", "ps", "--epochs", "30", "--checkpoint-every", "4", sleep_s=0.1)
    cluster.wait_for(r"\[chief 0\] Epoch 2/30")
    cluster.kill("worker 1")
    assert cluster.result() == 0, cluster.text()
    assert "[cluster] worker 1 was killed by SIGKILL; the others go on without it." in cluster.text()
    task = ClusterTask()
    result = restore(cluster.model_dir, task)
    assert [epoch.epoch for epoch in result.history] == list(range(1, 31))
    # The worker's last step was done by the other one: every example once in every epoch.
    assert {epoch.train["row"] for epoch in result.history} == {np.mean(range(EXAMPLES))}
    assert result.history[-1].evaluation["loss"] < 0.2 * result.history[0].evaluation["loss"]
    # What the chief evaluated on the cluster is what was saved.
    predicted = np.asarray(task.model(task.features, training=False))[:, 0]
    assert result.history[-1].evaluation["loss"] == pytest.approx(np.mean((predicted - task.targets) ** 2), rel=1e-4)
    assert steps(cluster.model_dir)[-1] == 30 * STEPS_PER_EPOCH
    assert {path.name.rpartition("-")[0] for path in cluster.out.iterdir()} == {"chief-0"}


def test_parameter_servers_refuse_metrics() -> None:
    task = CountingTask()
    task.build()
    # Of its class; the processes of a real one are for the next test.
    strategy = object.__new__(tf.distribute.ParameterServerStrategy)
    with pytest.raises(ConfigurationError, match="The task 'counting' has the metrics error. With parameter servers"):
        find_metrics(task, strategy)


#: The chief of a cluster tries two tasks.
TWO_TASKS = """\
from modelyard.errors import ModelyardError
from modelyard.training import Cluster, Trainer, make_strategy
from modelyard.training.distribute import serve_chief
from tests.training.cluster_task import PoisonedTask, UndeclaredTask

cluster = Cluster.from_environment()
if not cluster.is_chief:
    serve_chief(cluster)
strategy = make_strategy("ps", cluster=cluster)
for task in (UndeclaredTask(), PoisonedTask()):
    try:
        Trainer(task, actions=lambda event: print(event.name), batch_size=8, strategy=strategy).run()
    except ModelyardError as exc:
        print(type(exc).__name__, exc.message)
"""


def test_parameter_servers_refuse_undeclared_metrics_and_name_the_step_whose_loss_is_not_finite() -> None:
    output = io.StringIO()
    code = run_local_cluster(
        [sys.executable, "-c", TWO_TASKS],
        LocalClusterOptions(workers=1, parameter_servers=1),
        output=output,
        environment={"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    text = output.getvalue()
    assert code == 0, text
    said = [line.removeprefix("[chief 0] ") for line in text.splitlines() if line.startswith("[chief 0] ")]
    refused = "ConfigurationError eval_step of task 'undeclared' updates the metric variable 'mean_absolute_error/"
    (first,) = [number for number, line in enumerate(said) if line.startswith(refused)]
    # Before it has trained.
    assert not {"start", "steps"} & set(said[:first]), text
    step = PoisonedTask.STEP
    message = rf"NonFiniteLossError .*loss of task 'poisoned' is nan at step {step} \(epoch 1, step {step} of 6\)\. "
    assert any(re.match(message + r"The batch was: .*, 1 NaN", line) for line in said[first + 1 :]), text


class FakeResolver:
    """Finds a TPU where there is none."""

    def __init__(self, tpu: str) -> None:
        self.tpu = tpu


class FakeTPUStrategy(tf.distribute.MirroredStrategy):
    """Two processors in place of a TPU's cores."""

    def __init__(self, resolver: FakeResolver) -> None:
        separate_replicas()
        super().__init__(LOGICAL_CPUS[:2])
        self.resolver = resolver


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(tf.distribute, "TPUStrategy", FakeTPUStrategy)
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", lambda resolver: made.append(f"connect {resolver.tpu}")
    )
    monkeypatch.setattr(
        tf.tpu.experimental, "initialize_tpu_system", lambda resolver: made.append(f"initialize {resolver.tpu}")
    )
    return made


def test_a_tpu_gets_batches_of_one_shape(calls: list[str]) -> None:
    strategy = make_strategy("tpu", tpu="grpc://10.0.0.2:8470", make_resolver=FakeResolver)
    assert calls == ["connect grpc://10.0.0.2:8470", "initialize grpc://10.0.0.2:8470"]
    layout = Peers(strategy).layout
    assert (layout.workers, layout.asynchronous, layout.fixed_shapes) == (1, False, True)

    class Shapes(ClusterTask):
        shapes: list[Any] = []

        def train_step(self, batch: Any) -> Any:
            self.shapes.append(batch[0].shape.as_list())
            return super().train_step(batch)

    result = Trainer(Shapes(), TrainerOptions(epochs=2, batch_size=8, eval_batch_size=22), strategy=strategy).run()
    # 44 examples make five whole batches, of which each of the two replicas gets a half.
    assert result.step == 10
    assert {tuple(shape) for shape in Shapes.shapes} <= {(4, 6), (8, 6)}
    assert (4, 6) in {tuple(shape) for shape in Shapes.shapes}
    assert result.history[1].evaluation["loss"] < result.history[0].evaluation["loss"]


def test_a_task_with_batches_of_several_shapes_cannot_go_to_a_tpu(calls: list[str]) -> None:
    class Ragged(ClusterTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return super().train_dataset(InputRequest(batch_size=request.batch_size))

    strategy = make_strategy("tpu", make_resolver=FakeResolver)
    assert calls == ["initialize local"]
    with pytest.raises(ConfigurationError, match="train_dataset of task 'cluster' has batches of the shapes .None, 6."):
        Trainer(Ragged(), TrainerOptions(epochs=1, batch_size=8), strategy=strategy).run()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 9}, "train_dataset of task 'cluster' has batches of 9 examples, of which 2 replicas cannot"),
        (
            {"batch_size": 8},
            "eval_dataset of task 'cluster' has not one full batch, .* eval_batch_size .--eval-batch-s",
        ),
        ({"batch_size": 46}, "train_dataset of task 'cluster' has not one full batch, .* batch_size .--batch-size"),
    ],
)
def test_a_tpu_needs_whole_batches_in_equal_shares(calls: list[str], sizes: dict[str, Any], message: str) -> None:
    strategy = make_strategy("tpu", make_resolver=FakeResolver)
    with pytest.raises(ConfigurationError, match=message):
        Trainer(ClusterTask(), TrainerOptions(epochs=1, **sizes), strategy=strategy).run()
    assert calls == ["initialize local"]


def test_tasks_of_the_zoo_take_batches_of_one_shape(calls: list[str], subset: FashionMnist) -> None:
    strategy = make_strategy("tpu", make_resolver=FakeResolver)
    result = Trainer(LinearTask(), TrainerOptions(epochs=2, batch_size=300), strategy=strategy).run()
    assert result.step == 2 * (1000 // 300)
    assert result.history[1].evaluation["loss"] < result.history[0].evaluation["loss"]
    options = TrainerOptions(epochs=2, batch_size=128, eval_batch_size=300)
    result = Trainer(SiameseTask(data=subset), options, strategy=strategy).run()
    assert result.step == 2 * (len(subset.train_images) // 128)
    assert result.history[1].evaluation["loss"] < result.history[0].evaluation["loss"]
    assert calls == ["initialize local"]


def test_no_tpu_is_an_error() -> None:
    def find_none(tpu: str) -> Any:
        raise ValueError(f"Please provide a TPU Name to connect to, not {tpu}.")

    with pytest.raises(ConfigurationError, match="There is no TPU 'mine': Please provide a TPU Name"):
        make_strategy("tpu", tpu="mine", make_resolver=find_none)


def test_one_and_mirrored_need_no_cluster() -> None:
    assert make_strategy("one") is None
    layout = Peers(None).layout
    assert (layout.workers, layout.asynchronous, layout.fixed_shapes) == (1, False, False)
    mirrored = make_strategy("mirrored")
    assert mirrored is not None and Peers(mirrored).layout.is_chief
    with pytest.raises(ConfigurationError, match="strategy is 'two'; expected one of one, mirrored, multiworker"):
        make_strategy("two")  # type: ignore[arg-type]
