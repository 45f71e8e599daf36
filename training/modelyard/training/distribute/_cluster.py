"""Which processes train together, and which of them this one is. Plain numbers; needs no TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modelyard.errors import ConfigurationError

TF_CONFIG = "TF_CONFIG"
StrategyName = Literal["one", "mirrored", "multiworker", "ps", "tpu"]
#: Where the replicas of a step run, in the words of ``--help``.
STRATEGIES: dict[StrategyName, str] = {
    "one": "one device",
    "mirrored": "all GPUs of this machine",
    "multiworker": "processes that take every step together",
    "ps": "workers that take steps one by one, on weights that parameter servers keep",
    "tpu": "all cores of a TPU",
}
#: In the order in which TensorFlow and people list them.
JOBS = ("chief", "worker", "ps")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of one training run, and the place of this one among them.

    Attributes:
        addresses: ``host:port`` of every process, by job: ``chief``, ``worker``, ``ps``.
        job: The job of this process.
        index: Its number in that job, from 0.

    Raises:
        ConfigurationError: There is no such process, an unknown job, or an address that is none.
    """

    addresses: Mapping[str, tuple[str, ...]]
    job: str
    index: int

    def __post_init__(self) -> None:
        for job, members in self.addresses.items():
            if job not in JOBS:
                raise ConfigurationError(f"The cluster has a job {job!r}; expected {', '.join(JOBS)}.")
            for address in members:
                host, _, port = address.rpartition(":")
                if not host or not port.isdecimal():
                    raise ConfigurationError(f"The cluster has the address {address!r}; expected HOST:PORT.")
        if not 0 <= self.index < len(self.addresses.get(self.job, ())):
            sizes = ", ".join(f"{len(members)} {job}" for job, members in self.addresses.items()) or "none"
            raise ConfigurationError(f"This process is {self.name}, but the cluster has {sizes}.")

    @property
    def name(self) -> str:
        """Such as ``worker 1``, for people."""
        return f"{self.job} {self.index}"

    @property
    def chief(self) -> str:
        """The name of the process that saves checkpoints and reports: the chief, or worker 0 where there is none."""
        return "chief 0" if self.addresses.get("chief") else "worker 0"

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.name == self.chief

    @property
    def size(self) -> int:
        """Number of processes."""
        return sum(len(members) for members in self.addresses.values())

    def to_json(self) -> str:
        """The text of ``TF_CONFIG``."""
        cluster = {job: list(members) for job, members in self.addresses.items() if members}
        return json.dumps({"cluster": cluster, "task": {"type": self.job, "index": self.index}})

    @classmethod
    def from_json(cls, text: str) -> Cluster:
        """Parses ``TF_CONFIG``, as Kubeflow, ``deploy/image/tf_config.py`` and others make it.

        Raises:
            ConfigurationError: It is not what TensorFlow documents.
        """
        try:
            document: Any = json.loads(text)
            addresses = {str(job): tuple(map(str, members)) for job, members in document["cluster"].items()}
            task = document["task"]
            job, index = str(task["type"]), int(task["index"])
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise ConfigurationError(
                f"{TF_CONFIG} is {text!r}, which cannot be read ({type(exc).__name__}: {exc}); expected "
                '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}.'
            ) from exc
        return cls(addresses=addresses, job=job, index=index)

    @classmethod
    def from_environment(cls) -> Cluster | None:
        """The cluster of the environment's ``TF_CONFIG``; None without one. Raises as :meth:`from_json` does."""
        text = os.environ.get(TF_CONFIG)
        return cls.from_json(text) if text else None


def parse_cluster(addresses: Sequence[str], role: str | None) -> Cluster:
    """A cluster from flags."""
    jobs: dict[str, tuple[str, ...]] = {}
    for text in addresses:
        job, equals, members = text.partition("=")
        if not equals or not members:
            raise ConfigurationError(f"--cluster is {text!r}; expected JOB=HOST:PORT,HOST:PORT.")
        jobs[job] = (*jobs.get(job, ()), *members.split(","))
    if role is None:
        raise ConfigurationError("--cluster needs --role, which says which of the processes this one is: worker:0.")
    job, colon, index = role.partition(":")
    if not colon or not index.isdecimal():
        raise ConfigurationError(f"--role is {role!r}; expected JOB:INDEX, such as worker:0.")
    if not jobs:
        raise ConfigurationError(f"--role is {role!r}, and --cluster, whose processes it is one of, is not given.")
    return Cluster(addresses=jobs, job=job, index=int(index))
