"""What becomes of a model that has no room in its container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from modelyard.errors import ArtifactError, LoadError
from modelyard.serving.backends import _files, check_room
from tests.support.admin import available
from tests.support.control_groups import MB, contained_server
from tests.support.models import publish_affine
from tests.support.namespaces import needs_namespaces
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import serve

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups are Linux'")


def test_a_file_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "free_bytes", lambda: 1_500)
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1_000))
    check_room(path, times=1)
    with pytest.raises(LoadError, match="has 1,000 bytes, is held 2 times while it is loaded, and 1,500 bytes of mem"):
        check_room(path, times=2)
    (tmp_path / "more").write_bytes(bytes(501))
    with pytest.raises(LoadError, match=f"{tmp_path} has 1,501 bytes and 1,500 bytes of mem"):
        check_room(tmp_path, times=1)
    with pytest.raises(ArtifactError, match="cannot be read"):
        check_room(tmp_path / "none", times=1)


def _program(group: Path, *, left_mb: int = 30) -> tuple[str, ...]:
    return contained_server(group, limit=(200 + left_mb - 25) * MB, used=200 * MB)


@needs_namespaces
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_version_without_room_leaves_the_last_good_one(tmp_path: Path, runtime: str) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    large = tmp_path / "affine" / "2" / "model.onnx"
    large.parent.mkdir()
    large.touch()
    os.truncate(large, 20 * MB)
    program, flags = _program(tmp_path / "group"), [f"--runtime={runtime}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, program=program, flags=flags) as server:
        assert available(server, "affine") == {1}
        text = server.get("/v1/models/affine")[1]
        assert "has 20,971,520 bytes, is held 2 times while it is loaded, and 31,457,280 bytes of memory are" in text


@needs_namespaces
def test_so_does_a_saved_model(tmp_path: Path) -> None:
    for version in ("1", "2"):
        save_tf1_half_plus_two(tmp_path / "half" / version)
    # A part that no variable is in: the version would be loaded.
    large = tmp_path / "half" / "2" / "variables" / "variables.data-00001-of-00002"
    large.touch()
    os.truncate(large, 40 * MB)
    program = _program(tmp_path / "group")
    with serve(tmp_path / "half", model="half", log_dir=tmp_path, program=program) as server:
        assert available(server, "half") == {1}
        assert "variables has 41,9" in server.get("/v1/models/half")[1]


@needs_namespaces
def test_a_probe_may_take_what_is_left(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    # Python, its libraries and a runtime have 120 MB of writable memory, and half of it before the model is loaded.
    program, flags = _program(tmp_path / "group", left_mb=95), ["--probe_loads"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, program=program, flags=flags) as server:
        assert "its probe took" in server.log_text()
