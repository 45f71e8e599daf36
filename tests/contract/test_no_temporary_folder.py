"""A root file system that is read-only, as deploy/kubernetes has it: no folder takes temporary files."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.admin import ask
from tests.support.certificates import self_signed
from tests.support.models import publish_affine
from tests.support.server import serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no files in memory")


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that finds no folder for temporary files, which root may write everywhere."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'absent')!r}\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_versions_are_probed(tmp_path: Path, nowhere: dict[str, str]) -> None:
    publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=["--probe_loads"], env=nowhere) as server:
        assert ask(server, "m") == 2.0
        assert "its probe took" in server.log_text()


def test_ports_speak_tls(tmp_path: Path, nowhere: dict[str, str]) -> None:
    publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    key, certificate = self_signed(tmp_path)
    pair = tmp_path / "pair"
    pair.mkdir()
    key.rename(pair / "tls.key")
    authority = certificate.rename(pair / "tls.crt")
    context = ssl.create_default_context(cafile=str(authority))
    flags = [f"--ssl_config_file={pair}"]
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=flags, env=nowhere, wait=False) as server:

        def live() -> bool:
            url = f"https://localhost:{server.rest_port}/v2/health/live"
            with urllib.request.urlopen(url, context=context, timeout=10) as response:
                return bool(response.status == 200)

        server.wait_until(live, 60, "live over TLS")
