"""Ed25519 signatures: who made a version, and whether it is still that."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from modelyard import cli
from modelyard.artifact import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    ModelVersion,
    find_version,
    generate_key,
    load_signing_key,
    load_trusted_keys,
    sign_version,
    verify_version,
)
from modelyard.errors import ArtifactError, ConfigurationError, IntegrityError, ManifestError, MissingDependencyError
from tests.support.models import publish_affine


def main(arguments: list[str]) -> int:
    return cli.main(["repo", *arguments])


@pytest.fixture
def key(tmp_path: Path) -> Path:
    generate_key(tmp_path / "key.pem")
    return tmp_path / "key.pem"


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> ModelVersion:
    version = publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    sign_version(tmp_path / "m", "1", load_signing_key(key))
    return version


def test_a_key_pair(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    (trusted,) = load_trusted_keys([key.with_suffix(".pub.pem")])
    assert len(bytes.fromhex(trusted.public)) == 32 and len(trusted.fingerprint) == 16
    with pytest.raises(ConfigurationError, match="exists; expected a new file"):
        generate_key(key)
    key.with_suffix(".pub.pem").unlink()
    with pytest.raises(ConfigurationError, match="Expected a new file"):
        generate_key(key)


def test_a_signed_version(signed: ModelVersion, key: Path) -> None:
    keys = load_trusted_keys([key.with_suffix(".pub.pem")])
    assert verify_version(signed, trusted_keys=keys).version == 1
    # Who asks for no signature is not disturbed by one.
    assert verify_version(signed).version == 1
    if shutil.which("openssl"):
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(key.with_suffix(".pub.pem")), "-rawin"]
        files = ["-in", str(signed.path / MANIFEST_NAME), "-sigfile", str(signed.path / SIGNATURE_NAME)]
        result = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert "Verified Successfully" in result.stdout, result.stderr


def test_what_is_refused(tmp_path: Path, signed: ModelVersion, key: Path) -> None:
    keys = load_trusted_keys([key.with_suffix(".pub.pem")])
    manifest, signature = signed.path / MANIFEST_NAME, signed.path / SIGNATURE_NAME
    other = load_trusted_keys([generate_key(tmp_path / "other.pem")])
    with pytest.raises(IntegrityError, match="somebody else signed it"):
        verify_version(signed, trusted_keys=other)
    assert verify_version(signed, trusted_keys=[*other, *keys]).version == 1

    whole = manifest.read_bytes()
    manifest.write_bytes(whole.replace(b'"created": "2026', b'"created": "2027'))
    with pytest.raises(IntegrityError, match="its manifest was altered"):
        verify_version(signed, trusted_keys=keys)
    manifest.write_bytes(whole)

    graph = signed.path / "onnx" / "serving_default.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="was damaged"):
        verify_version(signed, trusted_keys=keys)
    graph.write_bytes(content)

    (signed.path / "onnx" / "more.onnx").write_bytes(content)
    with pytest.raises(ManifestError, match="files that its manifest does not list: onnx/more.onnx"):
        verify_version(signed, trusted_keys=keys)
    (signed.path / "onnx" / "more.onnx").unlink()

    # A copy of an old version under a new number is no new version.
    shutil.copytree(signed.path, tmp_path / "m" / "2")
    with pytest.raises(ManifestError, match="renamed or copied"):
        verify_version(find_version(tmp_path / "m", "2"), trusted_keys=keys)

    for wrong in (b"", b"x" * 64, signature.read_bytes()[:-1]):
        signature.write_bytes(wrong)
        with pytest.raises(IntegrityError, match="is not by"):
            verify_version(signed, trusted_keys=keys)
    signature.unlink()
    with pytest.raises(IntegrityError, match="is not signed"):
        verify_version(signed, trusted_keys=keys)


def test_a_damaged_version_is_not_signed(tmp_path: Path, key: Path) -> None:
    version = publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    graph = version.path / "onnx" / "serving_default.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(IntegrityError, match="was damaged"):
        sign_version(tmp_path / "m", "1", load_signing_key(key))
    assert not (version.path / SIGNATURE_NAME).exists()


def test_what_is_signed_is_what_was_verified(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody replaces the manifest while the files are read, by one of another version's files."""
    version = publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    manifest = version.path / MANIFEST_NAME
    other = publish_affine(tmp_path / "other", slope=9.0, intercept=0.0).path / MANIFEST_NAME
    digest = hashlib.file_digest

    def replacing(file: Any, name: str) -> Any:
        shutil.copyfile(other, manifest)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", replacing)
    with pytest.raises(ArtifactError, match="changed while it was verified"):
        sign_version(tmp_path / "m", "1", load_signing_key(key))
    assert not (version.path / SIGNATURE_NAME).exists()


def test_who_looks_while_a_version_is_signed_finds_it_whole(
    tmp_path: Path, signed: ModelVersion, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server would refuse one with a file that its manifest does not list."""
    keys = load_trusted_keys([key.with_suffix(".pub.pem")])
    seen: list[int] = []
    replace = os.replace

    def look(source: str, target: str) -> None:
        seen.append(verify_version(signed, trusted_keys=keys).version)
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", look)
        sign_version(tmp_path / "m", "1", load_signing_key(key))
    assert seen == [1]
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1"]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "onnx/../../secret", "C:/secret", "..\\secret", ""])
def test_a_signed_manifest_may_not_leave_its_directory_either(tmp_path: Path, key: Path, path: str) -> None:
    version = publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    manifest = version.path / MANIFEST_NAME
    document = json.loads(manifest.read_bytes())
    del document["sha256"]
    document["files"][0]["path"] = path
    manifest.write_text(json.dumps(document))
    (version.path / SIGNATURE_NAME).write_bytes(load_signing_key(key)(manifest.read_bytes()))
    with pytest.raises(ManifestError, match="leaves the version directory"):
        verify_version(version, trusted_keys=load_trusted_keys([key.with_suffix(".pub.pem")]))


@pytest.mark.parametrize("folder", [True, False])
def test_links_that_leave_the_directory(tmp_path: Path, signed: ModelVersion, key: Path, folder: bool) -> None:
    shutil.copytree(signed.path / "onnx", tmp_path / "elsewhere")
    shutil.rmtree(signed.path / "onnx")
    if folder:
        (signed.path / "onnx").symlink_to(tmp_path / "elsewhere")
    else:
        (signed.path / "onnx").mkdir()
        (signed.path / "onnx" / "serving_default.onnx").symlink_to(tmp_path / "elsewhere" / "serving_default.onnx")
    with pytest.raises(ManifestError, match="leaves the version directory"):
        verify_version(signed, trusted_keys=load_trusted_keys([key.with_suffix(".pub.pem")]))


def test_keys_that_do_not_fit(tmp_path: Path, key: Path) -> None:
    pem, raw = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    (tmp_path / "rsa.pem").write_bytes(weak.private_bytes(pem, raw, serialization.NoEncryption()))
    (tmp_path / "rsa.pub.pem").write_bytes(weak.public_key().public_bytes(pem, spki))
    locked = Ed25519PrivateKey.generate().private_bytes(pem, raw, serialization.BestAvailableEncryption(b"word"))
    (tmp_path / "locked.pem").write_bytes(locked)
    (tmp_path / "text.pem").write_text("secret words")
    for name in ("rsa.pem", "locked.pem", "text.pem", "key.pub.pem"):
        with pytest.raises(ConfigurationError, match="is no key that fits") as caught:
            load_signing_key(tmp_path / name)
        # Nothing of the file gets into a log.
        assert "secret words" not in caught.value.message and caught.value.__cause__ is None
    for name in ("rsa.pub.pem", "text.pem", "key.pem"):
        with pytest.raises(ConfigurationError, match="is no key that fits"):
            load_trusted_keys([tmp_path / name])
    for load in (load_signing_key, lambda path: load_trusted_keys([path])):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(tmp_path / "absent.pem")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, model = tmp_path / "key.pem", str(tmp_path / "m")
    assert main(["keygen", str(key)]) == 0
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    assert main(["sign", model, "1", "--signing-key", str(key)]) == 0
    capsys.readouterr()
    assert main(["verify", model, "--trusted-key", str(tmp_path / "key.pub.pem")]) == 1
    out = capsys.readouterr().out
    assert "ok       m 1 (1 file, signed)" in out and "DAMAGED  m 2: " in out and "is not signed" in out
    assert main(["verify", model]) == 0
    assert main(["sign", model, "2", "--signing-key", str(tmp_path / "absent.pem")]) == 2
    secret = "".join(key.read_text().splitlines()[1:-1])
    captured = capsys.readouterr()
    assert secret not in captured.out + captured.err


def test_a_signed_version_beside_the_models_hides_none_of_them(
    tmp_path: Path, signed: ModelVersion, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers of the repository take its models, not what lies beside them."""
    (tmp_path / "models").mkdir()
    (tmp_path / "m").rename(tmp_path / "models" / "m")
    shutil.copytree(tmp_path / "models" / "m" / "1", tmp_path / "models" / "1")
    (tmp_path / "models" / "m" / "1" / "onnx" / "serving_default.onnx").write_bytes(b"altered")
    trusted = ["--trusted-key", str(key.with_suffix(".pub.pem"))]
    assert main(["verify", str(tmp_path / "models"), *trusted]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "ok       models 1 (1 file, signed)" and second.startswith("DAMAGED  m 1: ")


def test_without_cryptography_every_entry_point_says_what_to_install(
    tmp_path: Path, key: Path, signed: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = load_trusted_keys([key.with_suffix(".pub.pem")])
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    entry_points: list[Callable[[], object]] = [
        lambda: generate_key(tmp_path / "other.pem"),
        lambda: load_signing_key(key),
        lambda: load_trusted_keys([key]),
        lambda: verify_version(signed, trusted_keys=trusted),
    ]
    for entry_point in entry_points:
        with pytest.raises(MissingDependencyError, match=r"cryptography.*pip install 'modelyard\[signing\]'"):
            entry_point()
    assert not (tmp_path / "other.pem").exists()
