"""A server whose models are in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from modelyard.artifact import MANIFEST_NAME, RemotePath, generate_key, load_signing_key, sign_version
from modelyard.cli import main
from tests.support.admin import ask, available
from tests.support.models import publish_affine, save_half_plus_two
from tests.support.object_store import s3, s3_at
from tests.support.server import RunningServer, free_port, run_to_end, serve

WAIT_S = 60
#: A store where nobody listens, and an SDK that does not ask it again for 10 s.
AWAY = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}


@pytest.fixture(scope="module")
def environment() -> Iterator[Mapping[str, str]]:
    with s3("models") as environment:
        yield environment


def error_of(server: RunningServer, version: int) -> str:
    rows = json.loads(server.get("/v1/models/m")[1]).get("model_version_status", [])
    return "".join(row["status"]["error_message"] for row in rows if row["version"] == str(version))


def put(source: Path, target: RemotePath, *names: str) -> None:
    """Copies a folder, or some files of it, as the store's own tools do."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and (not names or path.name in names):
            (target / path.relative_to(source).as_posix()).upload(path)


def put_altered(model_dir: RemotePath, number: int, part: bytes, content: bytes) -> None:
    """Puts a version in place that was altered elsewhere: a server that runs never sees it whole."""
    source = publish_affine(RemotePath(f"s3://models/elsewhere-{number}"), slope=1.0, intercept=0.0)
    target, name = model_dir / str(number), "onnx/serving_default.onnx"
    document = json.loads((source.path / MANIFEST_NAME).read_bytes())
    del document["sha256"]
    manifest = json.dumps({**document, "version": number}).encode()
    if part == b"manifest":
        manifest = manifest.replace(name.encode(), content)
    (target / name).write_bytes(content if part == b"onnx" else (source.path / name).read_bytes())
    (target / MANIFEST_NAME).write_bytes(manifest)


def test_versions_come_and_go_in_the_store(environment: Mapping[str, str], tmp_path: Path) -> None:
    model_dir = RemotePath("s3://models/models/m")
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    cache = tmp_path / "cache"
    flags = [f"--remote_cache_dir={cache}"]
    with serve("s3://models/models/m", model="m", log_dir=tmp_path, flags=flags, env=environment) as server:
        assert ask(server, "m") == 1.0
        # Files without a manifest are no version.
        (model_dir / "2" / "onnx" / "serving_default.onnx").write_bytes(b"half")
        third = publish_affine(model_dir, slope=3.0, intercept=0.0)
        assert third.number == 3
        server.wait_available(3)
        server.wait_until(lambda: ask(server, "m") == 3.0, WAIT_S, "answering from the newest version")
        assert main(["repo", "label", "s3://models/models/m", "stable", "1"]) == 0
        server.wait_until(lambda: ask(server, "m", where="/labels/stable") == 1.0, WAIT_S, "answering by label")

        # A damaged version is refused, and what was served before is served on.
        put_altered(model_dir, 4, b"onnx", b"no graph")
        server.wait_until(lambda: error_of(server, 4) != "", WAIT_S, "refusing version 4")
        assert error_of(server, 4).startswith("m/4/onnx/serving_default.onnx ")
        assert "s3://models/models/m/4/onnx/serving_default.onnx" in server.log_text()
        assert (ask(server, "m"), available(server, "m")) == (3.0, {1, 3})
        assert main(["repo", "rm", "s3://models/models/m", "4"]) == 0

        # So is a version whose manifest would write outside of the cache.
        put_altered(model_dir, 5, b"manifest", b"../../../../escaped")
        server.wait_until(lambda: "leaves the version" in error_of(server, 5), WAIT_S, "refusing version 5")
        assert not list(tmp_path.rglob("escaped"))
        assert main(["repo", "rm", "s3://models/models/m", "5"]) == 0
        # Copies of versions that are not served any more are gone.
        assert main(["repo", "label", "s3://models/models/m", "stable"]) == 0
        server.wait_until(lambda: available(server, "m") == {3}, WAIT_S, "unloading version 1")
        server.wait_until(lambda: len(list(cache.glob("m/*/*/manifest.json"))) == 1, WAIT_S, "removing the copy")
    # The copy of what is served outlives the server.
    (kept,) = cache.glob("m/*/3")
    assert (kept / MANIFEST_NAME).is_file()


def test_a_saved_model_that_others_put_there(environment: Mapping[str, str], tmp_path: Path) -> None:
    """As it was put there for TensorFlow Serving, with no manifest, and the store named by TensorFlow's variables."""
    import s3fs

    endpoint = environment["AWS_ENDPOINT_URL"].removeprefix("http://")
    named = {**environment, "AWS_ENDPOINT_URL": "", "S3_ENDPOINT": endpoint, "S3_USE_HTTPS": "0"}

    model_dir, saved = RemotePath("s3://models/foreign"), tmp_path / "saved"
    save_half_plus_two(saved)
    put(saved, model_dir / "00001")
    # As the store's console makes a folder.
    s3fs.S3FileSystem().call_s3("put_object", Bucket="models", Key="foreign/00001/assets/", Body=b"")
    flags = [f"--remote_cache_dir={tmp_path / 'cache'}"]
    with serve("s3://models/foreign", model="m", log_dir=tmp_path, flags=flags, env=named) as server:
        assert ask(server, "m") == 2.5
        # Somebody publishes, or has been interrupted.
        (model_dir / ".staging-2").write_bytes(b"claim")
        put(saved, model_dir / "2")
        put(saved, model_dir / "3", "saved_model.pb")
        server.wait_until(lambda: error_of(server, 3) != "", WAIT_S, "refusing half of version 3")
        assert (ask(server, "m"), available(server, "m")) == (2.5, {1})
        put(saved, model_dir / "3")
        server.wait_until(lambda: available(server, "m") == {3}, WAIT_S, "serving the whole of it")
        assert error_of(server, 2) == ""
        copies = tmp_path / "cache"
        server.wait_until(lambda: len(list(copies.glob("m/*/*"))) == 1, WAIT_S, "removing the copy of version 1")
    (kept,) = copies.glob("m/*/*")
    copied, there = ({path.name for path in folder.rglob("*") if path.is_file()} for folder in (kept, saved))
    assert copied == there and kept.name == "3"


def test_a_store_that_refuses(environment: Mapping[str, str], tmp_path: Path) -> None:
    """Nobody listens: the server says so, stays, and serves when the store is back."""
    publish_affine(RemotePath("s3://models/away"), slope=2.0, intercept=0.0)
    port, secret = free_port(), "what-nobody-is-told"
    away = {**environment, **AWAY, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_SECRET_ACCESS_KEY": secret}
    with serve("s3://models/away", model="m", log_dir=tmp_path, env=away, wait=False) as server:
        expected = "base path s3://models/away cannot be read"
        server.wait_until(lambda: expected in server.log_text(), WAIT_S, "saying that the store is away")
        assert "AWS_ENDPOINT_URL" in server.log_text()
        status, error = ask(server, "m")
        assert (status, "base path away cannot be read" in error) == (404, True), error
        with s3_at(port):
            server.wait_until(lambda: ask(server, "m") == 2.0, WAIT_S, "serving when the store is back")
        assert secret not in server.log_text()


@pytest.mark.parametrize("away", [True, False])
def test_a_repository_that_cannot_be_reached(environment: Mapping[str, str], away: bool) -> None:
    env = {**environment, **AWAY} if away else environment
    code, output = run_to_end("--model_repository=s3://nobucket/none", env=env)
    assert (code, "Traceback" in output) == (2, False), output
    assert output.splitlines()[-1].startswith("modelyard serve: --model_repository=s3://nobucket/none: "), output


def test_a_repository_in_the_store(environment: Mapping[str, str], tmp_path: Path) -> None:
    import s3fs

    publish_affine(RemotePath("s3://models/several/a"), slope=2.0, intercept=0.0)
    # Names that no model has keep nobody from those that are there.
    for name in ("x::y/1/manifest.json", "/x"):
        s3fs.S3FileSystem().call_s3("put_object", Bucket="models", Key=f"several/{name}", Body=b"")
    flags = ["--model_repository=s3://models/several"]
    with serve(None, model="a", log_dir=tmp_path, flags=flags, env=environment) as server:
        publish_affine(RemotePath("s3://models/several/b"), slope=3.0, intercept=0.0)
        server.wait_until(lambda: ask(server, "b") == 3.0, WAIT_S, "serving the new model")
        assert ask(server, "a") == 2.0


def test_a_configuration_in_the_store(environment: Mapping[str, str], tmp_path: Path) -> None:
    publish_affine(tmp_path / "a", slope=2.0, intercept=0.0)
    publish_affine(tmp_path / "b", slope=3.0, intercept=0.0)
    config = RemotePath("s3://models/configuration/models.config")

    def text(name: str) -> bytes:
        model = f'name: "{name}" base_path: "{tmp_path / name}" model_platform: "tensorflow"'
        return f"model_config_list {{ config {{ {model} }} }}".encode()

    config.write_bytes(text("a"))
    (config.parent / "batching.config").write_bytes(b"max_batch_size { value: 4 }")
    flags = [
        f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=1", "--enable_batching",
        f"--batching_parameters_file={config.parent}/batching.config",
    ]  # fmt: skip
    with serve(None, model="a", log_dir=tmp_path, flags=flags, env=environment) as server:
        assert ask(server, "a") == 2.0
        assert server.post("/v1/models/a:predict", b'{"instances": [1, 2, 3, 4, 5]}')[0] == 400
        config.write_bytes(text("b"))
        server.wait_until(lambda: ask(server, "b") == 3.0, WAIT_S, "serving what the file says now")
        config.unlink()
        server.wait_until(lambda: f"{config} cannot be read" in server.log_text(), WAIT_S, "missing the file")
        assert ask(server, "b") == 3.0


def test_only_what_a_trusted_key_signed(tmp_path: Path) -> None:
    model_dir, public = tmp_path / "m", generate_key(tmp_path / "key.pem")
    other = generate_key(tmp_path / "other.pem")
    publish_affine(model_dir, slope=1.0, intercept=0.0)
    sign_version(model_dir, "1", load_signing_key(tmp_path / "key.pem"))
    flags = [f"--trusted_key={public}", f"--trusted_key={other}"]
    with serve(model_dir, model="m", log_dir=tmp_path, flags=flags) as server:
        assert ask(server, "m") == 1.0
        publish_affine(model_dir, slope=2.0, intercept=0.0)
        server.wait_until(lambda: "is not signed" in error_of(server, 2), WAIT_S, "refusing what is not signed")
        assert ask(server, "m") == 1.0
        # Signing it is enough: the version is looked at again.
        sign_version(model_dir, "2", load_signing_key(tmp_path / "other.pem"))
        server.wait_until(lambda: ask(server, "m") == 2.0, WAIT_S, "serving what is signed")

        altered = publish_affine(model_dir, slope=3.0, intercept=0.0)
        generate_key(tmp_path / "stranger.pem")
        sign_version(model_dir, "3", load_signing_key(tmp_path / "stranger.pem"))
        server.wait_until(lambda: "somebody else signed it" in error_of(server, 3), WAIT_S, "refusing a stranger")
        manifest = altered.path / MANIFEST_NAME
        sign_version(model_dir, "3", load_signing_key(tmp_path / "key.pem"))
        server.wait_until(lambda: ask(server, "m") == 3.0, WAIT_S, "serving what is signed")
        manifest.write_bytes(manifest.read_bytes())
        assert available(server, "m") == {3}
        secret = "".join((tmp_path / "key.pem").read_text().splitlines()[1:-1])
        assert secret not in server.log_text()


def test_nothing_is_copied_that_no_trusted_key_signed(environment: Mapping[str, str], tmp_path: Path) -> None:
    """Or whoever may write to the store fills the disk of the server: what is told first is the signature."""
    model_dir, public = RemotePath("s3://models/trusted"), generate_key(tmp_path / "key.pem")
    publish_affine(model_dir, slope=2.0, intercept=0.0)
    sign_version(model_dir, "1", load_signing_key(tmp_path / "key.pem"))
    with serve(
        str(model_dir), model="m", log_dir=tmp_path, flags=[f"--trusted_key={public}"], env=environment
    ) as server:
        assert ask(server, "m") == 2.0
        put_altered(model_dir, 2, b"onnx", b"no graph")
        server.wait_until(lambda: error_of(server, 2) != "", WAIT_S, "refusing version 2")
        assert "trusted/2 is not signed" in error_of(server, 2)
        save_half_plus_two(tmp_path / "saved")
        put(tmp_path / "saved", model_dir / "3")
        server.wait_until(lambda: error_of(server, 3) != "", WAIT_S, "refusing version 3")
        assert "has no manifest.json" in error_of(server, 3)
        assert "trusted/2 is not signed" in error_of(server, 2) and ask(server, "m") == 2.0


def test_a_key_that_is_none(tmp_path: Path) -> None:
    code, output = run_to_end("--model_name=m", f"--model_base_path={tmp_path}", f"--trusted_key={tmp_path}/absent")
    assert code == 2 and "cannot be read" in output
