"""Distribution strategies by name, and what the loop around a step must know about them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.eager import context

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.distribute._cluster import STRATEGIES, Cluster, StrategyName
from modelyard.training.run import first_line

#: How long processes wait for each other at the start, in seconds. TensorFlow would wait for an hour.
JOIN_TIMEOUT_S = 600.0
#: How long a process may be silent before it is taken for dead, in seconds.
_HEARTBEAT_S = 10.0


def make_strategy(
    name: StrategyName,
    *,
    cluster: Cluster | None = None,
    tpu: str | None = None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    make_resolver: Callable[..., tf.distribute.cluster_resolver.ClusterResolver] | None = None,
) -> tf.distribute.Strategy | None:
    """A distribution strategy, ready for a :class:`modelyard.training.Trainer`.

    Call it before anything else that uses TensorFlow: devices and connections are set up once for each process.

    Args:
        name: ``one``: one replica, on one device. ``mirrored``: one replica on each GPU of this machine.
            ``multiworker``: replicas in several processes that take each step together. ``ps``: workers that take steps
            one by one, on weights that parameter servers keep. ``tpu``: one replica on each core of a TPU.
        cluster: The processes, for ``multiworker`` and ``ps``.
        tpu: Name or address of the TPU; None for the one of this machine.
        join_timeout_s: How long the processes of ``multiworker`` wait for each other, in seconds.
        make_resolver: Stands in for ``TPUClusterResolver``.

    Returns:
        The strategy; None for ``one``.

    Raises:
        ConfigurationError: The name is unknown, the cluster is missing or has not what the strategy needs, or there is
            no such TPU.
        TrainingError: The processes did not find each other.
    """
    if name == "one":
        return None
    if name == "mirrored":
        return tf.distribute.MirroredStrategy()
    if name == "tpu":
        return _make_tpu(tpu, make_resolver or tf.distribute.cluster_resolver.TPUClusterResolver)
    if name not in STRATEGIES:
        raise ConfigurationError(f"The strategy is {name!r}; expected one of {', '.join(STRATEGIES)}.")
    if cluster is None:
        raise ConfigurationError(
            f"The strategy {name!r} needs a cluster: set TF_CONFIG, or --cluster and --role, or start all processes on "
            "this machine with --local-cluster."
        )
    servers = len(cluster.addresses.get("ps", ()))
    if name == "multiworker":
        if servers:
            raise ConfigurationError("The strategy 'multiworker' has no parameter servers; use the strategy 'ps'.")
        _limit_waiting(cluster, join_timeout_s)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=_resolver(cluster))
        except (tf.errors.OpError, RuntimeError) as exc:
            raise _not_together(cluster, exc) from exc
    if not servers or not cluster.addresses.get("worker") or cluster.chief != "chief 0":
        raise ConfigurationError(
            "The strategy 'ps' needs a chief, at least one worker and at least one ps; the cluster has "
            f"{', '.join(f'{len(members)} {job}' for job, members in cluster.addresses.items())}."
        )
    if not cluster.is_chief:
        raise ConfigurationError(f"{cluster.name} has no strategy of its own: it serves the chief, with serve_chief().")
    try:
        return tf.distribute.ParameterServerStrategy(_resolver(cluster))
    except (tf.errors.OpError, RuntimeError) as exc:
        raise _not_together(cluster, exc) from exc


def serve_chief(cluster: Cluster) -> NoReturn:
    """Serves the chief of a cluster with parameter servers, until the process is ended."""
    # TensorFlow waits in C++, where Python's handlers never get their turn.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({job: list(members) for job, members in cluster.addresses.items()}),
            job_name=cluster.job,
            task_index=cluster.index,
            protocol="grpc",
        )
    except tf.errors.OpError as exc:
        raise _not_together(cluster, exc) from exc
    server.join()
    raise TrainingError(f"The server of {cluster.name} ended by itself.")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the loop around a step must know about a strategy.

    ``workers`` run the loop side by side, ``worker`` is the number of this one; ``asynchronous`` sends steps to workers
    one by one (parameter servers); with ``fixed_shapes`` every batch must have the same shape (TPU).
    """

    workers: int = 1
    worker: int = 0
    asynchronous: bool = False
    fixed_shapes: bool = False

    @property
    def is_chief(self) -> bool:
        """Whether this process saves checkpoints and reports."""
        return self.worker == 0


def layout_of(strategy: tf.distribute.Strategy | None) -> Layout:
    """Finds out how a strategy spreads its work."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return Layout(asynchronous=True)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return Layout(fixed_shapes=True)
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Layout()
    resolver = strategy.cluster_resolver
    addresses = resolver.cluster_spec().as_dict()
    chiefs, workers = len(addresses.get("chief", ())), len(addresses.get("worker", ()))
    number = resolver.task_id if resolver.task_type == "chief" else resolver.task_id + chiefs
    return Layout(workers=max(chiefs + workers, 1), worker=number or 0)


def _resolver(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    spec = tf.train.ClusterSpec({job: list(members) for job, members in cluster.addresses.items()})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type=cluster.job, task_id=cluster.index, rpc_layer="grpc"
    )


def _limit_waiting(cluster: Cluster, timeout_s: float) -> None:
    """Sets up TensorFlow's coordination service as MultiWorkerMirroredStrategy would, but with a time limit."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.chief.split()[0]}/replica:0/task:0",
        cluster_register_timeout_in_ms=int(timeout_s * 1000),
        heartbeat_timeout_in_ms=int(_HEARTBEAT_S * 1000),
        coordinated_jobs=[
            CoordinatedJob(name=job, num_tasks=len(members)) for job, members in cluster.addresses.items() if members
        ],
    )


def _make_tpu(
    tpu: str | None, make_resolver: Callable[..., tf.distribute.cluster_resolver.ClusterResolver]
) -> tf.distribute.Strategy:
    where = "local" if tpu is None else tpu
    try:
        resolver = make_resolver(tpu=where)
        if where != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as exc:
        raise ConfigurationError(f"There is no TPU {where!r}: {first_line(exc)}") from exc


def _not_together(cluster: Cluster, exc: Exception) -> TrainingError:
    addresses = ", ".join(address for members in cluster.addresses.values() for address in members)
    return TrainingError(f"{cluster.name} could not join the cluster of {addresses}: {first_line(exc)}")
