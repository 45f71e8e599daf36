"""docs/securing.md: its first example runs, its file is one, its flags are flags, and its table has every API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from modelyard.errors import PermissionDeniedError, UnauthenticatedError
from modelyard.serving.access import Access, Credentials
from modelyard.serving.config import FLAGS
from tests.support.access import GRPC
from tests.support.models import publish_affine
from tests.support.pages import ROOT, blocks
from tests.support.server import free_port

PAGE = "docs/securing.md"
TEXT = (ROOT / PAGE).read_text("utf-8")


def test_from_a_key_to_a_refused_call(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "half", slope=0.5, intercept=2.0)
    port = free_port()
    script = blocks(PAGE, "bash")[0].replace("--rest_api_port=8501", f"--rest_api_port={port} --port={free_port()}")
    script = "trap 'kill %1; wait' EXIT\n" + script.replace("localhost:8501", f"127.0.0.1:{port}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line not in ("{", "}")]
    assert '"predictions": [2.5' in done.stdout, done.stderr
    assert any("This needs credentials with the scope 'predict'" in line for line in said)
    assert any("'shop' has no scope 'admin'" in line for line in said)
    assert "myd_" not in done.stdout + done.stderr


def test_the_file(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    # There is no such issuer.
    file.write_text(blocks(PAGE, "toml")[0].replace("https://login.example.com/.well-known/jwks.json", "jwks.json"))
    key = json.loads(RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 2048).public_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**key, "kid": "1"}]}))
    access = Access(file)
    shop = Credentials(authorization="Bearer test")
    assert access.identify(shop, "predict").name == "shop"
    access.admit(shop, "predict", "fashion_v2").release()
    assert access.identify(Credentials(), "metrics").name == ""
    with pytest.raises(PermissionDeniedError):
        access.admit(shop, "predict", "shoes")
    with pytest.raises(UnauthenticatedError):
        access.identify(Credentials(), "predict")


def test_the_flags() -> None:
    known = {flag.name for flag in FLAGS}
    others = {"build-arg", "requests-per-second", "scope", "silent", "fail"}
    named = set(re.findall(r"--([a-z][a-z_-]+)", TEXT))
    assert named - known == others


def test_the_table_has_every_method() -> None:
    rows = {
        cells[1].strip().strip("`"): cells[2]
        for cells in (line.split("|") for line in TEXT.splitlines())
        if len(cells) == 5 and "`" in cells[2]
    }
    for path, scope in GRPC.items():
        service, _, method = path.strip("/").partition("/")
        row = rows[scope or "none"]
        assert f"`{method}`" in row or f"`{service}`" in row, path
