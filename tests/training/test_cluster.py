from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training import Cluster
from modelyard.training.cli._join import add_distribution_arguments, join, start_local_cluster
from modelyard.training.distribute import LocalClusterOptions, parse_cluster, run_local_cluster
from modelyard.training.distribute._local_cluster import local_clusters

TWO = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
SHOW = "import os; print(os.environ['TF_CONFIG'])"


def test_tf_config_comes_and_goes() -> None:
    cluster = Cluster.from_json(TWO)
    assert cluster == Cluster(addresses={"worker": ("a:1", "b:2")}, job="worker", index=1)
    assert (cluster.name, cluster.chief, cluster.is_chief, cluster.size) == ("worker 1", "worker 0", False, 2)
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_the_environment_has_one_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", TWO)
    assert Cluster.from_environment() == Cluster.from_json(TWO)
    monkeypatch.delenv("TF_CONFIG")
    assert Cluster.from_environment() is None


def test_flags_give_the_same() -> None:
    assert parse_cluster(["worker=a:1,b:2"], "worker:1") == Cluster.from_json(TWO)
    whole = parse_cluster(["chief=c:1", "worker=a:1", "ps=p:9"], "chief:0")
    assert whole.is_chief and whole.size == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"cluster": {"worker": ["a:1"]}}', "cannot be read .KeyError: 'task'"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "is worker 1, but .* 1 worker"),
        ('{"cluster": {"master": ["a:1"]}, "task": {"type": "master", "index": 0}}', "a job 'master'; expected chief"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "address 'a'; expected HOST:PORT"),
    ],
)
def test_a_bad_tf_config_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Cluster.from_json(text)


@pytest.mark.parametrize(
    ("addresses", "role", "message"),
    [
        (["worker"], "worker:0", "--cluster is 'worker'; expected JOB=HOST:PORT"),
        (["worker=a:1"], None, "--cluster needs --role"),
        (["worker=a:1"], "worker", "--role is 'worker'; expected JOB:INDEX"),
        ([], "worker:0", "--role is 'worker:0', and --cluster, whose processes it is one of, is not given"),
        (["chief=a:1"], "worker:0", "is worker 0, but the cluster has"),
    ],
)
def test_bad_flags_are_errors(addresses: list[str], role: str | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_cluster(addresses, role)


def test_a_local_cluster_has_a_port_for_each_process() -> None:
    clusters = local_clusters(LocalClusterOptions(workers=2, parameter_servers=1))
    assert [cluster.name for cluster in clusters] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert [cluster.name for cluster in clusters if cluster.is_chief] == ["chief 0"]
    assert len({address for members in clusters[0].addresses.values() for address in members}) == 4
    assert local_clusters(LocalClusterOptions(workers=2))[0].chief == "worker 0"
    with pytest.raises(ConfigurationError, match="--local-cluster is 0; expected at least one worker"):
        LocalClusterOptions(workers=0)
    with pytest.raises(ConfigurationError, match="parameter_servers is -1"):
        LocalClusterOptions(workers=1, parameter_servers=-1)


def run(code: str, options: LocalClusterOptions) -> tuple[int, list[str]]:
    output = io.StringIO()
    exit_code = run_local_cluster([sys.executable, "-c", code], options, output=output, environment={"EXTRA": "7"})
    return exit_code, output.getvalue().splitlines()


def test_every_process_has_its_place_and_its_name_before_its_lines() -> None:
    code, lines = run(
        SHOW + "; import sys; sys.stderr.write(os.environ['EXTRA'] + ' no newline')", LocalClusterOptions(workers=2)
    )
    assert code == 0
    configs = {line.partition("] ")[0][1:]: line.partition("] ")[2] for line in lines if '"task"' in line}
    assert {name: Cluster.from_json(text).name for name, text in configs.items()} == {
        "worker 0": "worker 0", "worker 1": "worker 1",
    }  # fmt: skip
    assert "[worker 1] 7 no newline" in lines
    assert sum("is process" in line for line in lines) == 2


def test_the_exit_code_is_the_chiefs_and_others_do_not_outlive_it() -> None:
    wait = (
        "import os, sys, time; 'chief' in os.environ['TF_CONFIG'].split('task')[1] and sys.exit({}) or time.sleep(60)"
    )
    options = LocalClusterOptions(workers=1, parameter_servers=1)
    assert run(wait.format(3), options)[0] == 3
    assert run(wait.format(0), options)[0] == 0


def test_a_death_stops_the_others_within_the_grace() -> None:
    die = (
        "import json, os, signal, time\n"
        "json.loads(os.environ['TF_CONFIG'])['task']['index'] and os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    code, lines = run(die, LocalClusterOptions(workers=2, grace_s=0.2))
    assert code == 1
    assert "[cluster] worker 1 was killed by SIGKILL; stopping the others." in lines
    assert "[cluster] killing worker 0." in lines


def test_a_workers_death_is_no_matter_to_a_chief_with_servers(tmp_path: Path) -> None:
    script = (
        "import json, os, sys, time\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "if task == {'type': 'worker', 'index': 1}: sys.exit(5)\n"
        f"while task['type'] != 'chief' or not os.path.exists({str(tmp_path / 'told')!r}): time.sleep(0.01)"
    )

    class Told(io.StringIO):
        """Ends the chief when the death has been told."""

        def write(self, text: str) -> int:
            if "worker 1 ended with exit code 5; the others go on without it." in text:
                (tmp_path / "told").touch()
            return super().write(text)

    options = LocalClusterOptions(workers=2, parameter_servers=1)
    assert run_local_cluster([sys.executable, "-c", script], options, output=Told()) == 0
    assert (tmp_path / "told").exists()


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_all_processes(number: int, expected: int) -> None:
    script = (
        "import signal, sys, time\n"
        "def leave(number, frame):\n"
        "    print('got', number, flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGINT, leave); signal.signal(signal.SIGTERM, leave)\n"
        "print('ready', flush=True); time.sleep(60)"
    )

    class Presses(io.StringIO):
        """Presses Ctrl-C when both processes are ready."""

        def write(self, text: str) -> int:
            count = super().write(text)
            if "ready" in text and self.getvalue().count("ready") == 2:
                threading.Thread(target=os.kill, args=(os.getpid(), number)).start()
            return count

    output = Presses()
    before = signal.getsignal(number)
    code = run_local_cluster([sys.executable, "-c", script], LocalClusterOptions(workers=2), output=output)
    assert code == expected
    assert output.getvalue().count(f"got {int(number)}") == 2
    assert signal.getsignal(number) is before


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TrainingError, match="worker 0 could not be started"):
        run_local_cluster(["/no/such/program"], LocalClusterOptions(workers=1), output=io.StringIO())


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_distribution_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    ("flags", "config", "message"),
    [
        (["--local-cluster", "2", "--strategy", "mirrored"], "", "for the strategies multiworker and ps, not mirrored"),
        (["--local-cluster", "2"], TWO, "There is a cluster already"),
        (["--local-cluster", "2", "--parameter-servers", "1"], "", "--parameter-servers is for --strategy ps"),
        (["--local-cluster", "0"], "", "expected at least one worker"),
        (["--strategy", "multiworker"], "", "'multiworker' needs a cluster: set TF_CONFIG"),
        (["--strategy", "ps"], "", "'ps' needs a cluster"),
        (["--tpu", "mine"], "", "--tpu is for --strategy tpu; the strategy is one"),
        (["--strategy", "ps", "--cluster", "chief=a:1", "--role", "chief:0"], "", "at least one worker and at least"),
        (["--strategy", "multiworker", "--cluster", "worker=a:1", "--cluster", "ps=b:1", "--role", "worker:0"], "",
         "'multiworker' has no parameter servers"),
    ],
)  # fmt: skip
def test_flags_that_contradict_each_other_are_errors(
    flags: list[str], config: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    arguments = parse(*flags)
    with pytest.raises(ConfigurationError, match=message):
        assert start_local_cluster(arguments, flags) is None
        join(arguments)


def test_one_process_needs_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert join(parse()) == (None, True)
    # Two processes that somebody wants to train one by one, on purpose.
    monkeypatch.setenv("TF_CONFIG", TWO)
    assert join(parse("--strategy", "one")) == (None, True)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}')
    assert join(parse()) == (None, True)


def test_what_a_local_cluster_started_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_LOCAL_CLUSTER", "1")
    monkeypatch.setenv("TF_CONFIG", TWO)
    assert start_local_cluster(parse("--local-cluster", "2"), []) is None
