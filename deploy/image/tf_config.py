"""Starts a command with the ``TF_CONFIG`` of one pod of an indexed Job, or of one process of any group.

    python /opt/tf_config.py --job train --service train --workers 2 -- python train.py
    python /opt/tf_config.py --hosts-file /opt/ml/input/config/resourceconfig.json -- python train.py

Indices are workers first. With parameter servers, index 0 is the chief, then come the workers, then the servers:
a Job's ``successPolicy`` can then end the group when index 0 is done.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def render(*, addresses: list[str], workers: int, parameter_servers: int, index: int) -> dict[str, Any]:
    """What TensorFlow's cluster resolver reads from ``TF_CONFIG``.

    Args:
        addresses: ``host:port`` of every process, by index.
        workers: How many of them are workers.
        parameter_servers: How many hold variables; 0 for none, and no chief.
        index: This process.

    Raises:
        ValueError: The numbers do not fit together.
    """
    sizes = {"chief": 1 if parameter_servers else 0, "worker": workers, "ps": parameter_servers}
    if workers < 1 or len(addresses) != sum(sizes.values()) or not 0 <= index < len(addresses):
        raise ValueError(f"{len(addresses)} addresses, index {index}; expected {sizes}, with at least one worker.")
    cluster: dict[str, list[str]] = {}
    task: dict[str, Any] = {}
    start = 0
    for kind, size in sizes.items():
        if size:
            cluster[kind] = addresses[start : start + size]
        if start <= index < start + size:
            task = {"type": kind, "index": index - start}
        start += size
    return {"cluster": cluster, "task": task}


def main(argv: list[str]) -> int:
    """Becomes the command.

    Args:
        argv: Arguments without the program's name.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", help="name of the Job, from which Kubernetes makes the pods' host names")
    parser.add_argument("--service", help="name of the headless service over the pods")
    parser.add_argument("--port", type=int, default=2222, help="port of every process (default 2222)")
    parser.add_argument("--addresses", help="host:port of every process, comma-separated, instead of --job's")
    parser.add_argument(
        "--hosts-file", type=Path, help='JSON with "hosts" and "current_host", as SageMaker has it: all are workers'
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--parameter-servers", type=int, default=0)
    parser.add_argument("--index", type=int, default=os.environ.get("JOB_COMPLETION_INDEX"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.hosts_file is not None:
        hosts = json.loads(args.hosts_file.read_text())
        args.workers, args.index = len(hosts["hosts"]), hosts["hosts"].index(hosts["current_host"])
        args.addresses = ",".join(host if ":" in host else f"{host}:{args.port}" for host in hosts["hosts"])
    addressed = args.addresses or (args.job and args.service)
    if not command or args.workers is None or args.index is None or not addressed:
        parser.error(
            "needs a command after --, and --hosts-file, or --workers, JOB_COMPLETION_INDEX or --index, and "
            "--addresses or --job and --service"
        )
    size = args.workers + (args.parameter_servers + 1 if args.parameter_servers else 0)
    pods = [f"{args.job}-{index}.{args.service}:{args.port}" for index in range(size)]
    try:
        config = render(
            addresses=args.addresses.split(",") if args.addresses else pods,
            workers=args.workers,
            parameter_servers=args.parameter_servers,
            index=args.index,
        )
    except ValueError as exc:
        parser.error(str(exc))
    os.environ["TF_CONFIG"] = json.dumps(config)
    os.execvp(command[0], command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
