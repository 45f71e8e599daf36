"""A machine of its own: the wheel in an empty environment, once with the clients alone, once as a server.

With the oldest versions that pyproject.toml allows: all other tests have those of constraints.txt.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.server import serve

ROOT = Path(__file__).resolve().parents[2]
#: Of another environment, whose path follows.
PIP = (sys.executable, "-m", "pip", "--python")
CALL = """
import sys
from pathlib import Path
import numpy as np
from modelyard.clients import connect
for url in sys.argv[1:5]:
    with connect(url) as client:
        png = Path(sys.argv[5]).read_bytes()
        encoded = client.predict("fashion", {"image_bytes": [png]}, signature="image_bytes")
        plain = client.predict("fashion", {"image": np.zeros((2, 28, 28, 1), np.float32)})
        described = client.metadata("fashion").signatures["serving_default"]
        print(encoded["label"][0].decode(), plain["probabilities"].shape, *described.inputs)
print(sorted(name for name in ("tensorflow", "onnxruntime", "PIL", "uvicorn") if name in sys.modules))
"""


def oldest(*extras: str) -> str:
    """Constraints: of what the wheel and extras of it ask for the oldest versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    requirements = [Requirement(line) for lines in lists for line in lines if not line.startswith("modelyard[")]
    return "".join(f"{each.name}{str(each.specifier).replace('>=', '==')}\n" for each in requirements)


def environment(folder: Path, wheel: Path, extra: str, constraints: str) -> Path:
    """A fresh virtual environment with the wheel; its Python."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    # Most of what is installed is never imported here, and need not be compiled.
    listed = folder / "constraints.txt"
    # Those were made for the Pythons of their time.
    listed.write_text(constraints if sys.version_info < (3, 12) else (ROOT / "constraints.txt").read_text())
    install = [*PIP, str(python), "install", "--quiet", "--no-compile", "--constraint", str(listed)]
    result = subprocess.run([*install, f"{wheel}{extra}"], capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0 and "No matching distribution" in result.stderr:
        pytest.skip("no package index is reachable, so nothing can be installed into an empty environment")
    assert result.returncode == 0, result.stderr
    return python


def installed(python: Path) -> set[str]:
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    return {each.name.lower() for each in distributions(path=[str(packages)])}


def test_a_server_and_a_client_with_no_tensorflow(wheel: Path, tmp_path: Path, fashion_model_dir: Path) -> None:
    from PIL import Image

    from modelyard.training.data import load_fashion_mnist

    server_python = environment(tmp_path / "server", wheel, "[serving]", oldest("serving", "server"))
    client_python = environment(tmp_path / "client", wheel, "", oldest())
    assert not {"tensorflow", "keras"} & installed(server_python)
    assert not {"tensorflow", "keras", "onnxruntime", "uvicorn", "pillow"} & installed(client_python)
    data = load_fashion_mnist()
    # A trouser: no model that learned anything takes it for something else.
    index = int((data.test_labels == 1).argmax())
    Image.fromarray(data.test_images[index]).save(tmp_path / "trouser.png")
    with serve(fashion_model_dir, model="fashion", log_dir=tmp_path, python=str(server_python)) as server:
        urls = [f"grpc{v2}://{server.grpc_address}" for v2 in ("", "+v2")]
        urls += [f"http{v2}://127.0.0.1:{server.rest_port}" for v2 in ("", "+v2")]
        command = [str(client_python), "-c", CALL, *urls, str(tmp_path / "trouser.png")]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [*["Trouser (2, 10) image"] * 4, "[]"]
