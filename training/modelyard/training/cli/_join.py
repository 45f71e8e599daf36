"""The flags of ``modelyard train`` that say where it runs."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modelyard.errors import ConfigurationError
from modelyard.training.cli._command import add_flags
from modelyard.training.distribute import STRATEGIES, TF_CONFIG, Cluster, parse_cluster

if TYPE_CHECKING:
    import tensorflow as tf

#: Tells a process that ``--local-cluster`` has started it.
_STARTED = "MODELYARD_LOCAL_CLUSTER"
_AGAIN = "import sys; from modelyard.training.cli import main; sys.exit(main(sys.argv[1:]))"

_WATCHER = """\
import os, select, signal, sys
seconds, message, watched = sys.argv[1:]
if not select.select([0], [], [], float(seconds))[0]:
    sys.stderr.write(message)
    sys.stderr.flush()
    os.kill(int(watched), signal.SIGKILL)
"""

EXAMPLES = """\
  modelyard train fashion --strategy mirrored
      One replica on each GPU of this machine.
  modelyard train fashion --local-cluster 2
      Two processes on this machine that take every step together.
  modelyard train fashion --local-cluster 2 --strategy ps
      A chief, two workers and a parameter server on this machine.
  modelyard train fashion --cluster worker=a:2222,b:2222 --role worker:0
      The first of two processes on two machines; TF_CONFIG does the same.
"""


def add_distribution_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    group = parser.add_argument_group("where it runs")
    group.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="; ".join(f"{name}: {what}" for name, what in STRATEGIES.items())
        + " (default: one, or what fits the cluster)",
    )
    group.add_argument(
        "--cluster",
        action="append",
        default=[],
        metavar="JOB=HOST:PORT,...",
        help="addresses of the chief, worker or ps processes; once for each job (default: TF_CONFIG)",
    )
    add_flags(
        group,
        (
            ("--local-cluster", int, "N", "start a cluster with N workers on this machine, and wait for it"),
            ("--parameter-servers", int, "N", "for --local-cluster --strategy ps (default: 1)"),
            ("--role", str, "JOB:INDEX", "which of the processes of --cluster this one is"),
            ("--join-timeout", float, "S", "how long processes wait for each other, in seconds (default: %(default)s)"),
            ("--tpu", str, "NAME", "name or address of the TPU (default: this machine's)"),
        ),
    )
    parser.set_defaults(join_timeout=600.0)


def start_local_cluster(arguments: argparse.Namespace, argv: Sequence[str]) -> int | None:
    """Starts the processes of ``--local-cluster``, where it is set, and waits for them."""
    if arguments.local_cluster is None or os.environ.get(_STARTED):
        return None
    from modelyard.training.distribute import LocalClusterOptions, run_local_cluster

    if arguments.strategy not in (None, "multiworker", "ps"):
        raise ConfigurationError(f"--local-cluster is for the strategies multiworker and ps, not {arguments.strategy}.")
    if os.environ.get(TF_CONFIG) or arguments.cluster:
        raise ConfigurationError("There is a cluster already, from TF_CONFIG or --cluster; leave out --local-cluster.")
    with_servers = arguments.strategy == "ps"
    if arguments.parameter_servers is not None and not with_servers:
        raise ConfigurationError("--parameter-servers is for --strategy ps.")
    servers = (1 if arguments.parameter_servers is None else arguments.parameter_servers) if with_servers else 0
    options = LocalClusterOptions(workers=arguments.local_cluster, parameter_servers=servers)
    return run_local_cluster([sys.executable, "-c", _AGAIN, *argv], options, environment={_STARTED: "1"})


def join(arguments: argparse.Namespace) -> tuple[tf.distribute.Strategy | None, bool]:
    """Takes this process's place. Workers and servers of a chief do their work in here and never come back."""
    cluster = _cluster(arguments)
    name: Any = arguments.strategy
    if name is None:
        # One process in TF_CONFIG, as Kubeflow writes it for a job of one, is no cluster.
        several = cluster is not None and cluster.size > 1
        name = "one" if cluster is None or not several else "ps" if cluster.addresses.get("ps") else "multiworker"
    if arguments.tpu is not None and name != "tpu":
        raise ConfigurationError(f"--tpu is for --strategy tpu; the strategy is {name}.")
    if name == "one":
        return None, True
    from modelyard.training.distribute import make_strategy, serve_chief

    if name == "ps" and cluster is not None and cluster.job != "chief":
        serve_chief(cluster)
    if name == "ps":
        # TensorFlow warns of each function that the chief traces for its workers.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    with _time_limit(cluster, arguments.join_timeout):
        strategy = make_strategy(name, cluster=cluster, tpu=arguments.tpu, join_timeout_s=arguments.join_timeout)
    return strategy, name != "multiworker" or cluster is None or cluster.is_chief


@contextmanager
def _time_limit(cluster: Cluster | None, seconds: float) -> Iterator[None]:
    """Kills this process when the others have not come: TensorFlow's leader would wait for them without a limit.

    It waits in C++ and gives no other thread of Python its turn, so a process outside has to do it.
    """
    if cluster is None:
        yield
        return
    addresses = ", ".join(address for members in cluster.addresses.values() for address in members)
    message = (
        f"modelyard train: {cluster.name} waited {seconds:g} s for the other processes of the cluster of {addresses}. "
        "Start all of them, or wait longer with --join-timeout.\n"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHER, str(seconds), message, str(os.getpid())], stdin=subprocess.PIPE
    )
    try:
        yield
    finally:
        # The end of its input is what it waits for.
        watcher.communicate()


def _cluster(arguments: argparse.Namespace) -> Cluster | None:
    if arguments.cluster or arguments.role:
        return parse_cluster(arguments.cluster, arguments.role)
    return Cluster.from_environment()
