"""Builds and runs images for tests: with Docker where an engine answers, otherwise with buildah and Linux namespaces.

Both run a container as ``docker run --read-only`` does: the image's entry point, user and environment, a process
namespace of its own, a root file system that nothing can write to.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.server import free_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BASE = "python:3.11-slim-bookworm"
#: Where that cannot be had; another number where its content changes, for machines keep it.
STAND_IN = "localhost/modelyard/base:2"
GRPC_PORT, REST_PORT = 8500, 8501


class NoEngineError(Exception):
    """Neither engine works here."""


class Container(Protocol):
    """A started container."""

    @property
    def grpc_port(self) -> int:
        """On this machine."""

    @property
    def rest_port(self) -> int:
        """On this machine."""

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs one more command in it."""

    def terminate(self) -> None:
        """Sends the image's stop signal to process 1."""

    def wait(self, timeout_s: float) -> int:
        """Its exit code."""

    def logs(self) -> str:
        """What it wrote so far."""

    def close(self) -> None:
        """Ends and removes it."""


class Engine(Protocol):
    """Builds images and starts containers."""

    name: str

    def build(self, target: str) -> str:
        """Builds a target of the Dockerfile, the default one for an empty name; returns the image's name."""

    def sizes(self, image: str) -> tuple[int, int]:
        """Bytes of the image's files and of its base's."""

    def config(self, image: str) -> dict[str, Any]:
        """The image's configuration, as Docker writes it."""

    def run(
        self,
        image: str,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        repository: Path | None = None,
        runs: Path | None = None,
        network: bool = True,
        host: bool = False,
        tmp: bool = False,
        entrypoint: Sequence[str] | None = None,
    ) -> Container:
        """Starts a container on a read-only root, with the repository mounted read-only at /models.

        A folder ``runs`` is mounted at /runs, where the container may write. With ``host`` the network is this
        machine's, without ``network`` there is none. With ``tmp`` there is a /tmp in memory.
        """


def find_engine() -> Engine:
    """The engine to use; buildah is installed where that is possible.

    Raises:
        NoEngineError: Neither works, and why.
    """
    wanted = os.environ.get("MODELYARD_IMAGE_ENGINE", "")
    if wanted in ("", "docker") and shutil.which("docker"):
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False)
        if done.returncode == 0:
            return Docker()
    if wanted == "docker":
        raise NoEngineError("MODELYARD_IMAGE_ENGINE=docker, but no Docker engine answers")
    if os.geteuid() != 0:
        raise NoEngineError("no Docker engine answers, and buildah needs root")
    for tool, package in (("buildah", "buildah"), ("unshare", "util-linux"), ("ip", "iproute2")):
        _need(tool, package)
    probe = ["unshare", "--mount", "--pid", "--net", "--fork", "mount", "-t", "proc", "proc", "/proc"]
    probed = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    if probed.returncode != 0:
        raise NoEngineError(f"no Docker engine answers, and namespaces are not allowed here: {probed.stderr.strip()}")
    return Buildah()


def _need(tool: str, package: str) -> None:
    if shutil.which(tool):
        return
    if not shutil.which("apt-get"):
        raise NoEngineError(f"no Docker engine answers, {tool} is not installed, and there is no apt-get to install it")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", package]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise NoEngineError(f"no Docker engine answers, and {' '.join(command)} failed:\n{done.stderr}")


def _output(*command: str, env: Mapping[str, str] | None = None, timeout_s: float = 1800) -> str:
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        tail = done.stdout[-4000:] + done.stderr[-4000:]
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
    return done.stdout


class Docker:
    """A Docker engine."""

    name = "docker"

    def build(self, target: str) -> str:
        image = f"modelyard/{target or 'default'}:test"
        _output("docker", "build", "-q", "-t", image, *(["--target", target] if target else []), ".")
        return image

    def sizes(self, image: str) -> tuple[int, int]:
        _output("docker", "pull", "-q", BASE)
        size, base = (int(_output("docker", "image", "inspect", "-f", "{{.Size}}", name)) for name in (image, BASE))
        return size, base

    def config(self, image: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(_output("docker", "image", "inspect", image))[0]["Config"]
        return found

    def run(
        self,
        image: str,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        repository: Path | None = None,
        runs: Path | None = None,
        network: bool = True,
        host: bool = False,
        tmp: bool = False,
        entrypoint: Sequence[str] | None = None,
    ) -> DockerContainer:
        grpc_port, rest_port = free_port(), free_port()
        options = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        options += [f"-e={key}={value}" for key, value in (environment or {}).items()]
        options += [f"-v={repository}:/models:ro"] if repository else []
        options += [f"-v={runs}:/runs"] if runs else []
        options += ["--tmpfs=/tmp"] if tmp else []
        published = (
            [f"-p=127.0.0.1:{grpc_port}:{GRPC_PORT}", f"-p=127.0.0.1:{rest_port}:{REST_PORT}"]
            if network
            else ["--network=none"]
        )
        options += ["--network=host"] if host else published
        tail = [*arguments]
        if entrypoint:
            options.append(f"--entrypoint={entrypoint[0]}")
            tail = [*entrypoint[1:], *arguments]
        identity = _output("docker", "run", "-d", *options, image, *tail).strip()
        return DockerContainer(identity=identity, grpc_port=grpc_port, rest_port=rest_port)


@dataclass(frozen=True, kw_only=True)
class DockerContainer:
    """A container of a Docker engine."""

    identity: str
    grpc_port: int
    rest_port: int

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        call = ["docker", "exec", self.identity, *command]
        return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)

    def terminate(self) -> None:
        _output("docker", "kill", "--signal=TERM", self.identity)

    def wait(self, timeout_s: float) -> int:
        return int(_output("docker", "wait", self.identity, timeout_s=timeout_s))

    def logs(self) -> str:
        done = subprocess.run(["docker", "logs", self.identity], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def close(self) -> None:
        _output("docker", "rm", "-f", self.identity)


class Buildah:
    """buildah to build, namespaces of Linux to run."""

    name = "buildah"

    def __init__(self) -> None:
        self._environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        # A storage that exists keeps its driver; a new one takes the driver that works inside containers too.
        self._environment.setdefault("STORAGE_DRIVER", "vfs")

    def _buildah(self, *arguments: str) -> str:
        return _output("buildah", *arguments, env=self._environment)

    def _ensure_base(self) -> str:
        for name in (STAND_IN, f"docker.io/library/{BASE}"):
            done = subprocess.run(
                ["buildah", "inspect", "--type=image", name], env=self._environment, capture_output=True, check=False
            )
            if done.returncode == 0:
                return name
        pulled = subprocess.run(
            ["buildah", "pull", "-q", f"docker.io/library/{BASE}"],
            env=self._environment, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        if pulled.returncode == 0:
            return f"docker.io/library/{BASE}"
        self._make_stand_in()
        return STAND_IN

    def _make_stand_in(self) -> None:
        """Debian's own Python where the official image cannot be had: the same system, the same Python version."""
        _need("debootstrap", "debootstrap")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "root"
            packages = "ca-certificates,python3,python3-venv,python3-pip"
            _output("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(root))
            for path in [
                *root.glob("var/cache/apt/archives/*.deb"),
                *root.glob("usr/lib/python3.*/EXTERNALLY-MANAGED"),
            ]:
                path.unlink()
            shutil.rmtree(root / "var/lib/apt/lists")
            (root / "usr/bin/python").symlink_to("python3")
            # Where the network is behind a proxy with a certificate of its own, this machine trusts it.
            shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "usr/local/share/host-ca.crt")
            (root / "etc/pip.conf").write_text("[global]\ncert = /usr/local/share/host-ca.crt\n")
            (root / "root/.cargo").mkdir()
            (root / "root/.cargo/config.toml").write_text('[http]\ncainfo = "/usr/local/share/host-ca.crt"\n')
            container = self._buildah("from", "scratch").strip()
            self._buildah("add", "-q", container, str(root), "/")
            self._buildah(
                "config", "--env=PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", container
            )
            self._buildah("commit", "-q", container, STAND_IN)
            self._buildah("rm", container)

    def build(self, target: str) -> str:
        image = f"localhost/modelyard/{target or 'default'}:test"
        arguments = [
            "bud",
            "-q",
            "--format=docker",
            "--pull-never",
            f"--build-arg=BASE={self._ensure_base()}",
        ]
        arguments += [f"--target={target}"] if target else []
        self._buildah(*arguments, "-t", image, ".")
        return image

    def sizes(self, image: str) -> tuple[int, int]:
        return self._size(image), self._size(self._ensure_base())

    def _size(self, image: str) -> int:
        container = self._buildah("from", "--pull-never", image).strip()
        try:
            root = Path(self._buildah("mount", container).strip())
            return sum(path.lstat().st_size for path in root.rglob("*") if path.is_symlink() or path.is_file())
        finally:
            self._buildah("rm", container)

    def config(self, image: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._buildah("inspect", "--type=image", image))["Docker"]["config"]
        return found

    def run(
        self,
        image: str,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        repository: Path | None = None,
        runs: Path | None = None,
        network: bool = True,
        host: bool = False,
        tmp: bool = False,
        entrypoint: Sequence[str] | None = None,
    ) -> BuildahContainer:
        config = self.config(image)
        grpc_port, rest_port = (free_port(), free_port()) if network else (GRPC_PORT, REST_PORT)
        command = [*(entrypoint or config["Entrypoint"])]
        if network and not entrypoint:
            # The network is this machine's: other ports than the image's, by flags appended to its own.
            command += [f"--port={grpc_port}", f"--rest_api_port={rest_port}"]
        command += list(arguments) or ([] if entrypoint else config["Cmd"] or [])
        variables = [*config["Env"], *(f"{key}={value}" for key, value in (environment or {}).items())]
        container = self._buildah("from", "--pull-never", image).strip()
        root = self._buildah("mount", container).strip()
        return BuildahContainer(
            remove=lambda: self._buildah("rm", container),
            root=root,
            user=config["User"],
            variables=variables,
            command=command,
            repository=repository,
            runs=runs,
            tmp=tmp,
            network=network,
            ports=(grpc_port, rest_port),
        )


#: Inside new namespaces: $1 the root, $2 the repository, $3 the place for runs, either may be empty, $4 whether /tmp
#: is to be had, $5 whether the network is new, $6 the user, and the command.
_ENTER = """
set -eu
root=$1 repository=$2 runs=$3 tmp=$4 own_network=$5 user=$6; shift 6
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mkdir -p "$root/models"
if [ -n "$repository" ]; then mount --bind "$repository" "$root/models"; mount -o remount,ro,bind "$root/models"; fi
if [ -n "$runs" ]; then mount --bind "$runs" "$root/runs"; fi
if [ "$tmp" = yes ]; then mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"; fi
# What a container runtime writes too: names of this machine.
printf '127.0.0.1 localhost\\n::1 localhost\\n' > "$root/etc/hosts"
if [ "$own_network" = yes ]; then ip link set lo up; fi
mount -o remount,ro,bind "$root"
exec chroot --userspec="$user" --groups= "$root" "$@"
"""


class BuildahContainer:
    """A process on an image's files, in namespaces of its own, process 1 there."""

    def __init__(
        self,
        *,
        remove: Any,
        root: str,
        user: str,
        variables: Sequence[str],
        command: Sequence[str],
        repository: Path | None,
        runs: Path | None,
        tmp: bool,
        network: bool,
        ports: tuple[int, int],
    ) -> None:
        self.grpc_port, self.rest_port = ports
        self._remove, self._root, self._user, self._variables = remove, root, user, variables
        self._log = Path(tempfile.gettempdir()) / f"container-{uuid.uuid4().hex}.log"
        spaces = ["--mount", "--pid", *([] if network else ["--net"]), "--fork", "--kill-child"]
        enter = [
            "sh",
            "-c",
            _ENTER,
            "sh",
            root,
            str(repository or ""),
            str(runs or ""),
            "yes" if tmp else "no",
            "no" if network else "yes",
            user,
        ]
        with self._log.open("wb") as output:
            self._outer = subprocess.Popen(
                ["unshare", *spaces, *enter, "env", "-i", *variables, *command], stdout=output, stderr=output
            )
        self._pid = self._first_child()

    def _first_child(self) -> int:
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        return int(until(lambda: children.read_text().split(), 10, self.logs)[0])

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--target={self._pid}", "--mount", "--pid", "--net", "--"]
        inside = [
            "chroot",
            f"--userspec={self._user}",
            "--groups=",
            self._root,
            "env",
            "-i",
            *self._variables,
            *command,
        ]
        return subprocess.run([*enter, *inside], capture_output=True, text=True, timeout=120, check=False)

    def terminate(self) -> None:
        os.kill(self._pid, signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        return self._outer.wait(timeout_s)

    def logs(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        if self._outer.poll() is None:
            os.kill(self._pid, signal.SIGKILL)
            self._outer.wait(30)
        self._log.unlink()
        self._remove()
