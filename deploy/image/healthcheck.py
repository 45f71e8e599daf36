"""The image's HEALTHCHECK: exit code 0 where the server and all its models are ready, 1 where they are not.

It imports nothing of modelyard, for it starts every few seconds. Ports and TLS are
read from the flags of the container's first process, so that flags appended to
``docker run`` are heeded; where that process has none, from the image's defaults.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from pathlib import Path

TIMEOUT_S = 4.0
REST_PORT = 8501
GRPC_PORT = 8500


def flag_values(arguments: list[str]) -> dict[str, str]:
    """The flags of a command line; of a flag given twice, the last.

    Args:
        arguments: Such as ``["--rest_api_port=8501", "--port", "8500"]``.
    """
    values: dict[str, str] = {}
    for index, argument in enumerate(arguments):
        if not argument.startswith("--"):
            continue
        name, equals, value = argument[2:].partition("=")
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        values[name] = value if equals else "true" if following.startswith("--") else following
    return values


def check(values: dict[str, str]) -> str:
    """Asks the server.

    Args:
        values: Its flags.

    Returns:
        What is wrong; empty where nothing is.
    """
    rest_port = int(values.get("rest_api_port", REST_PORT))
    if rest_port == 0:
        return _check_grpc(int(values.get("port", GRPC_PORT)), tls=bool(values.get("ssl_config_file")))
    connection: http.client.HTTPConnection
    if values.get("ssl_config_file") and values.get("rest_api_ssl", "true").lower() not in ("false", "0"):
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
        arguments: Flags of the server, instead of those of process 1.
    """
    if not arguments:
        arguments = Path("/proc/1/cmdline").read_text().rstrip("\0").split("\0")
    wrong = check(flag_values(arguments))
    sys.stdout.write((wrong or "ready") + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
