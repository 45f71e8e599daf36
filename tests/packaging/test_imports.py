"""Dependencies point one way, and importing is cheap."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, library_files, room_of

#: What each room may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "wire": {"errors"},
    "clients": {"errors", "console", "wire"},
    "cli": {"errors", "console"},
    "console": {"errors", "lazy"},
    "lazy": {"errors"},
    "artifact": {"errors", "console", "lazy", "wire"},
    "reports": {"errors", "lazy"},
    "batch": {"errors", "console", "lazy", "wire", "artifact", "clients", "serving"},
    "deploy": {"errors", "lazy"},
    "mlflow": {"errors", "lazy", "artifact", "batch"},
    "serving": {"errors", "console", "lazy", "wire", "artifact", "clients"},
    # Its one use of export is TrainResult.export(), when it is called.
    "training": {"errors", "console", "lazy", "wire", "artifact", "export"},
    "export": {"errors", "console", "lazy", "wire", "artifact", "reports", "training"},
    "pipeline": {"errors", "console", "lazy", "wire", "artifact", "clients", "training", "export", "serving"},
    "loadtests": {"errors", "console", "lazy", "wire", "clients", "artifact", "reports", "training"},
}
ROOMS_OF_FOLDERS = ("clients", "export", "loadtests", "serving", "training")
#: The packages of the server, from the bottom: each may import those before it.
SERVER = (
    "machine",
    "requests",
    "backends",
    "config",
    "access",
    "metrics",
    "telemetry",
    "servables",
    "repository",
    "batching",
    "rollout",
    "prediction",
    "transports",
    "handlers",
    "runtime",
)
FRAMEWORKS = {"tensorflow", "keras", "tf2onnx", "tensorflow_serving"}
MAY_USE_FRAMEWORKS = ("training/modelyard/training", "export/modelyard/export", "serving/modelyard/serving/backends")
#: Rooms of the base install and of [serving]: TensorFlow may be nowhere near them.
FREE_OF_TENSORFLOW = (
    "modelyard.errors",
    "modelyard.wire",
    "modelyard.clients",
    "modelyard.cli",
    "modelyard.console",
    "modelyard.artifact",
    "modelyard.reports",
    "modelyard.batch",
    "modelyard.deploy",
    "modelyard.mlflow",
    "modelyard.serving",
    "modelyard.serving.backends",
    "modelyard.serving.handlers.console",
    "modelyard.serving.handlers.grpc",
    "modelyard.serving.handlers.openapi",
    "modelyard.serving.handlers.rest",
    "modelyard.serving.transports.asgi",
    "modelyard.serving.transports.grpc",
    "modelyard.loadtests",
    "modelyard.training",
    "modelyard.training.data",
)


@functools.cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """Every module that a file imports: its name, the line, and whether at import time."""
    found: list[tuple[str, int, bool]] = []

    def look(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            found.extend((f"{node.module}.{alias.name}", node.lineno, at_import) for alias in node.names)
        elif not isinstance(node, ast.expr):
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_type_checking(node)
            for child in ast.iter_child_nodes(node):
                look(child, at_import and not inner)

    look(ast.parse(path.read_text("utf-8")), True)
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_rooms_import_only_what_they_may() -> None:
    found = []
    for path in library_files():
        room = room_of(path)
        for name, line, _ in imports(path):
            parts = name.split(".")
            if parts[0] == "modelyard" and parts[1] != room and parts[1] not in ALLOWED[room]:
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert found == []


def test_rooms_use_each_others_public_packages() -> None:
    found = []
    for path in library_files():
        for name, line, _ in imports(path):
            parts = name.split(".")
            if (
                parts[0] == "modelyard"
                and parts[1] != room_of(path)
                and any(part.startswith("_") for part in parts[2:])
            ):
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert found == []


def test_no_private_name_crosses_a_package() -> None:
    found = []
    for path in library_files():
        if room_of(path) not in ROOMS_OF_FOLDERS:
            continue
        package = path.relative_to(ROOT).parent.parts[1:]
        for name, line, _ in imports(path):
            parts = name.split(".")
            private = next((index for index, part in enumerate(parts) if part.startswith("_")), None)
            if parts[0] == "modelyard" and private is not None and tuple(parts[:private]) != package:
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert found == []


def test_packages_of_the_server_import_what_is_below_them() -> None:
    found = []
    for path in library_files():
        parts = path.relative_to(ROOT).parts
        if room_of(path) != "serving" or len(parts) < 5:
            continue
        for name, line, at_import in imports(path):
            other = name.split(".")[2] if name.startswith("modelyard.serving.") else parts[3]
            if at_import and other != parts[3] and SERVER.index(other) > SERVER.index(parts[3]):
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert found == []


def test_frameworks_stay_in_their_rooms() -> None:
    found = []
    for path in library_files():
        place = path.relative_to(ROOT).as_posix()
        for name, line, at_import in imports(path):
            if name.split(".")[0] not in FRAMEWORKS:
                continue
            allowed = place.startswith(MAY_USE_FRAMEWORKS)
            lazily = not place.startswith("serving/") or not at_import
            if not (allowed and lazily):
                found.append(f"{place}:{line} imports {name}")
    assert found == []


def test_locust_is_imported_by_locusts_own_process_only() -> None:
    """Importing locust patches sockets and threads of the whole process."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in library_files()
        for name, line, _ in imports(path)
        if name.split(".")[0] in ("locust", "gevent") and room_of(path) != "loadtests"
    ]
    assert found == []


def _python(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_tensorflow_comes_in_with_the_light_rooms() -> None:
    names = ", ".join(FREE_OF_TENSORFLOW)
    script = f"import sys, {names}; print([n for n in ('tensorflow', 'keras', 'locust', 'gevent') if n in sys.modules])"
    assert _python(script) == "[]"


def test_importing_does_nothing_else() -> None:
    """No environment variable, no logging set up, no thread, no output, whichever of them comes in."""
    script = (
        "import importlib, logging, os, sys, threading\n"
        "before = dict(os.environ)\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    assert dict(os.environ) == before, f'{name}: environment'\n"
        "    assert not logging.getLogger().handlers, f'{name}: logging'\n"
        "    assert threading.active_count() == 1, f'{name}: threads'\n"
    )
    assert _python(script, *FREE_OF_TENSORFLOW) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_server_has_no_threads_of_numpy() -> None:
    """On its import OpenBLAS starts one for each CPU of the machine, and all spin: of a container's quota."""
    script = (
        "import os, modelyard.cli\n"
        "try:\n"
        "    modelyard.cli.main(['serve', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "import sys; assert 'numpy' in sys.modules\n"
        "print('\\n', os.environ['OPENBLAS_NUM_THREADS'], len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    assert _python(script, env=environment).splitlines()[-1].split() == ["1", "1"]
    # Whoever says otherwise has a reason.
    asked = _python(script, env={**environment, "OPENBLAS_NUM_THREADS": "2"})
    assert asked.splitlines()[-1].split()[0] == "2"


def test_the_client_imports_neither_transport() -> None:
    script = (
        "import sys, modelyard.clients; print([n for n in ('grpc', 'httpx', 'PIL', 'asyncio') if n in sys.modules])"
    )
    assert _python(script) == "[]"


def test_the_client_imports_at_most_twice_numpy_s_modules() -> None:
    # Times depend on what else the machine does: 0.3 s here when nothing else runs, of which numpy takes half.
    numpy, ours = (
        int(_python(f"import sys, {name}; print(len(sys.modules))")) for name in ("numpy", "modelyard.clients")
    )
    assert ours <= 2 * numpy


def test_onnxruntime_is_imported_without_its_telemetry() -> None:
    """It reads the variable when it is imported, so each module that does so sets it before."""
    using = []
    for path in library_files():
        functions = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
        lines = [line for name, line, _ in imports(path) if name.split(".")[0] == "onnxruntime"]
        if any(each.lineno <= line <= (each.end_lineno or 0) for each in functions for line in lines):
            using.append(path)
    assert len(using) > 4
    assert [path.name for path in using if "disable_telemetry()" not in path.read_text("utf-8")] == []
