"""The image's HEALTHCHECK: exit code 0 where the server and all its models are ready, 1 where they are not.

It imports nothing of modelyard, for it starts every few seconds. Ports and TLS are
read from the arguments of the server's process, and the files of flags that they
name, so that what is appended to ``docker run`` is heeded; where there is no such
process, from the image's defaults.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import sys
from pathlib import Path

TIMEOUT_S = 4.0
#: What the image's entry point says; the program itself has no REST port by default.
IMAGE_FLAGS = ["--port=8500", "--rest_api_port=8501"]
GRPC_PORT = 8500
#: SageMaker's port, where it names no other.
SAGEMAKER_PORT = 8080
#: The server refuses files of flags that name each other deeper than this.
MAX_FILES = 8


def server_command() -> list[str]:
    """The command line of the server: the container's first process, or one that a shell has started."""
    for number in sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()):
        # Another one may end meanwhile.
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")
            if "modelyard.serving" in command or "serve" in command:
                return command
    return []


def own_arguments(command: list[str]) -> list[str]:
    """The server's arguments, of a whole command line: what stands before them may have a ``serve``, too.

    Args:
        command: Such as ``["python", "-m", "modelyard.serving", "--port=8500"]`` or ``["modelyard", "serve"]``.
    """
    last = "modelyard.serving" if "modelyard.serving" in command else "serve"
    return command[command.index(last) + 1 :] if last in command else command


def flag_values(arguments: list[str], depth: int = 0) -> dict[str, str]:
    """The flags of a command line and of its files of flags; of a flag given twice, the last.

    Args:
        arguments: Such as ``["--rest_api_port=8501", "--port", "8500"]``; ``serve`` is SageMaker's word for
            ``--sagemaker``.
        depth: How many files of flags lead here.

    Raises:
        OSError: A file of flags cannot be read.
    """
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "serve":
            values["sagemaker"] = "true"
        if not argument.startswith("--"):
            continue
        name, equals, value = argument[2:].partition("=")
        if not equals:
            # A boolean flag may stand alone.
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if name == "flagfile" and depth < MAX_FILES:
            lines = [line.strip() for line in Path(value).read_text("utf-8").splitlines()]
            values.update(flag_values([line for line in lines if line.startswith("--")], depth + 1))
        values[name] = value
    return values


def is_true(text: str) -> bool:
    """Whether a boolean flag's value switches it on."""
    return text.lower() not in ("false", "0")


def rest_port_of(values: dict[str, str]) -> int:
    """The REST port, 0 for none; with SageMaker's contract the environment says it.

    Args:
        values: The server's flags.
    """
    if is_true(values.get("sagemaker", "false")):
        return int(os.environ.get("SAGEMAKER_BIND_TO_PORT") or SAGEMAKER_PORT)
    return int(values.get("rest_api_port", 0))


def check(values: dict[str, str]) -> str:
    """Asks the server.

    Args:
        values: Its flags.

    Returns:
        What is wrong; empty where nothing is.
    """
    rest_port = rest_port_of(values)
    if rest_port == 0:
        return _check_grpc(int(values.get("port", GRPC_PORT)), tls=bool(values.get("ssl_config_file")))
    connection: http.client.HTTPConnection
    if values.get("ssl_config_file") and is_true(values.get("rest_api_ssl", "true")):
        # The connection does not leave this container: its certificate need not be checked.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", rest_port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", rest_port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/v2/health/ready")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as exc:
        return f"no answer from REST port {rest_port}: {exc}"
    finally:
        connection.close()
    return "" if status == 200 else f"not ready: /v2/health/ready answers {status}"


def _check_grpc(port: int, *, tls: bool) -> str:
    if tls:
        return "with TLS and no REST port there is no way to ask; start the container with --no-healthcheck"
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as exc:
            return f"no answer from gRPC port {port}: {exc.code().name}"
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else "not ready: grpc.health.v1 says so"


def main(arguments: list[str]) -> int:
    """Runs the check.

    Args:
        arguments: Flags of the server, instead of those that it runs with.
    """
    if not arguments:
        command = server_command()
        arguments = own_arguments(command) if command else IMAGE_FLAGS
    try:
        wrong = check(flag_values(arguments))
    except OSError as exc:
        wrong = f"--flagfile={exc.filename} cannot be read: {exc.strerror}"
    sys.stdout.write((wrong or "ready") + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
