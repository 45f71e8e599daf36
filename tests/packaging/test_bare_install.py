"""A machine of its own: the wheel in an empty environment, once with the clients alone, once as a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import serve

ROOT = Path(__file__).resolve().parents[2]
#: Of another environment, whose path follows.
PIP = (sys.executable, "-m", "pip", "--python")
CALL = """
import sys
from pathlib import Path
import numpy as np
from modelyard.clients import connect
for url in sys.argv[1:3]:
    with connect(url) as client:
        png = Path(sys.argv[3]).read_bytes()
        encoded = client.predict("fashion", {"image_bytes": [png]}, signature="image_bytes")
        plain = client.predict("fashion", {"image": np.zeros((2, 28, 28, 1), np.float32)})
        print(encoded["label"][0].decode(), plain["probabilities"].shape)
print(sorted(name for name in ("tensorflow", "onnxruntime", "PIL", "uvicorn") if name in sys.modules))
"""


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """A fresh virtual environment with the wheel; its Python."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    # Most of what is installed is never imported here, and need not be compiled.
    install = [*PIP, str(python), "install", "--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt")]
    result = subprocess.run([*install, f"{wheel}{extra}"], capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0 and "No matching distribution" in result.stderr:
        pytest.skip("no package index is reachable, so nothing can be installed into an empty environment")
    assert result.returncode == 0, result.stderr
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def installed(python: Path) -> set[str]:
    command = [*PIP, str(python), "list", "--format=freeze"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {line.partition("==")[0].lower() for line in result.stdout.splitlines()}


def test_a_server_and_a_client_with_no_tensorflow(wheel: Path, tmp_path: Path, fashion_model_dir: Path) -> None:
    from PIL import Image

    from modelyard.training.data import load_fashion_mnist

    server_python = environment(tmp_path / "server", wheel, "[serving]")
    client_python = environment(tmp_path / "client", wheel, "")
    assert not {"tensorflow", "keras"} & installed(server_python)
    assert not {"tensorflow", "keras", "onnxruntime", "uvicorn", "pillow"} & installed(client_python)
    data = load_fashion_mnist()
    # A trouser: no model that learned anything takes it for something else.
    index = int((data.test_labels == 1).argmax())
    Image.fromarray(data.test_images[index]).save(tmp_path / "trouser.png")
    with serve(fashion_model_dir, model="fashion", log_dir=tmp_path, python=str(server_python)) as server:
        urls = [f"grpc://{server.grpc_address}", server.rest_url]
        command = [str(client_python), "-c", CALL, *urls, str(tmp_path / "trouser.png")]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["Trouser (2, 10)", "Trouser (2, 10)", "[]"]
