"""Repositories in object stores: an S3 on a socket, and a store in memory that has no conditions of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard.artifact import (
    MANIFEST_NAME,
    STAGING_PREFIX,
    RemotePath,
    collect,
    describe_model,
    find_version,
    list_models,
    list_versions,
    locate,
    promote,
    read_labels,
    remove_version,
    set_label,
    verify_version,
)
from modelyard.cli import main
from modelyard.errors import ArtifactError, ConfigurationError, IntegrityError, ModelNotFoundError
from tests.support.certificates import self_signed
from tests.support.models import publish_affine
from tests.support.object_store import s3, s3_over_tls
from tests.support.waiting import until


@pytest.fixture(scope="module")
def store() -> Iterator[None]:
    with s3("artifacts"):
        yield


def test_what_a_location_is() -> None:
    assert locate("/models") == Path("/models") == locate("file:///models") == locate(Path("/models"))
    place = locate("memory://bucket/models/")
    assert isinstance(place, RemotePath) and str(place / "m") == "memory://bucket/models/m"
    assert (place.name, str(place.parent), locate(place)) == ("models", "memory://bucket", place)


def test_the_variables_of_tensorflow_s_s3_file_system(
    store: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> bytes:
        return (RemotePath("s3://artifacts/variables") / "object").read_bytes()

    (RemotePath("s3://artifacts/variables") / "object").write_bytes(b"content")
    plain = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    monkeypatch.setenv("S3_ENDPOINT", "127.0.0.1:9")
    # AWS's own wins.
    assert read() == b"content"
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ArtifactError, match="https://127.0.0.1:9/.*S3_ENDPOINT"):
        read()
    monkeypatch.setenv("S3_ENDPOINT", plain)
    assert read() == b"content"
    monkeypatch.setenv("S3_ENDPOINT", plain.removeprefix("http://"))
    monkeypatch.setenv("S3_USE_HTTPS", "0")
    assert read() == b"content"
    monkeypatch.setenv("S3_USE_HTTPS", "1")
    key, certificate = self_signed(tmp_path)
    with s3_over_tls(key, certificate) as endpoint:
        monkeypatch.setenv("S3_ENDPOINT", endpoint)
        with pytest.raises(ArtifactError, match="CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            read()
        monkeypatch.setenv("S3_CA_FILE", str(certificate))
        assert read() == b"content"
        monkeypatch.setenv("S3_CA_FILE", "")
        monkeypatch.setenv("S3_VERIFY_SSL", "0")
        assert read() == b"content"


def test_gs_is_google_s_store() -> None:
    place = locate("gs://bucket/models")
    assert isinstance(place, RemotePath) and (str(place / "m"), place.protocol) == ("gs://bucket/models/m", "gs")
    assert type(place._fs).__module__.partition(".")[0] == "gcsfs"


@pytest.mark.parametrize(("url", "package"), [("gs://b/m", "gcsfs"), ("s3://b/m", "s3fs"), ("gs://b/m", "fsspec")])
def test_what_is_not_installed_is_named_with_what_to_install(url: str, package: str) -> None:
    # In a process of its own: fsspec remembers the file systems that it has found.
    code = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from modelyard.cli import main\n"
        f"sys.exit(main(['repo', 'ls', {url!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert package in done.stderr and "pip install 'modelyard[remote]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "nowhere://b/m",
        "s4://b/m",
        "http://localhost/m",
        "ftp://localhost/m",
        "local:///etc",
        "simplecache::http://localhost/m",
        "s3://b/m::http://localhost",
    ],
)
def test_a_url_of_no_known_store(url: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{url} is not on a file system that is known here"):
        locate(url)


def test_a_store_without_conditions_of_its_own() -> None:
    repository = RemotePath("memory://shelf/models")
    model = repository / "m"
    with pytest.raises(FileNotFoundError):
        list_versions(model)
    with pytest.raises(ModelNotFoundError, match="memory://shelf/models has no model 'm'"):
        describe_model(model)
    numbers = [publish_affine(model, slope=float(number), intercept=0.0).number for number in range(3)]
    assert numbers == [1, 2, 3] and list_models(repository) == ("m",)
    assert promote(model, "2").number == 2 and read_labels(model) == {"stable": 2}
    assert [info.labels for info in describe_model(model)] == [(), ("stable",), ()]
    assert collect(model, keep=1).versions == (1,)
    with pytest.raises(ModelNotFoundError):
        find_version(model, "1")
    set_label(model, "stable", "latest")
    remove_version(model, "2")
    (model / "3" / "onnx" / "serving_default.onnx").write_bytes(b"x")
    with pytest.raises(IntegrityError, match="memory://shelf/models/m/3/onnx/serving_default.onnx has 1 bytes"):
        verify_version(find_version(model, "latest"))
    (model / "3" / "onnx" / "serving_default.onnx").unlink()
    with pytest.raises(IntegrityError, match="lacks onnx/serving_default.onnx"):
        verify_version(find_version(model, "latest"))
    (model / "labels.json").write_bytes(b"{")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_labels(model)


@pytest.mark.parametrize("name", ["m/1/x::y", "x::y/1/manifest.json", "/x"])
def test_names_of_objects_that_are_no_urls_of_ours(store: None, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who may write an object anywhere in a repository keeps nobody from the models there."""
    import s3fs

    repository = RemotePath(f"s3://artifacts/{len(name)}")
    for model in ("m", "m", "n", "n"):
        publish_affine(repository / model, slope=1.0, intercept=0.0)
    s3fs.S3FileSystem().pipe_file(f"artifacts/{len(name)}/{name}", b"x")
    assert set(list_models(repository)) >= {"m", "n"}
    assert main(["repo", "gc", str(repository), "--keep", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("versions removed: 1;") == 2 and not captured.err
    left = {path for path in repository.tree() if not path.startswith(("x::y", "/"))}
    assert left == {f"{model}/2/{file}" for model in "mn" for file in ("manifest.json", "onnx/serving_default.onnx")}


def test_claims_of_no_number_are_nobody_s() -> None:
    """A model's folder may have them as it may have any object, and claims are removed all the same."""
    model = RemotePath("memory://claims/m")
    publish_affine(model, slope=1.0, intercept=0.0)
    for name in ("", "first", "2", "1_0"):
        (model / f"{STAGING_PREFIX}{name}").write_bytes(b"x")
    (model / "2" / "half").write_bytes(b"x")
    assert collect(model, keep=1, stale_s=0).staging == (f"{STAGING_PREFIX}2",)
    left = {path for path in model.tree() if not path.startswith("1/")}
    assert left == {f"{STAGING_PREFIX}{name}" for name in ("", "first", "1_0")}


def _publish_some(url: str, count: int) -> None:
    for number in range(count):
        publish_affine(RemotePath(url), slope=float(number), intercept=float(os.getpid()))


def test_exporters_at_once_lose_nothing(store: None) -> None:
    url = "s3://artifacts/models/shared"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_publish_some, args=(url, 3)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    versions = list_versions(RemotePath(url))
    assert len(versions) == 6
    manifests = [verify_version(version) for version in versions]
    assert len({entry.sha256 for manifest in manifests for entry in manifest.files}) == 6
    assert not [name for name in RemotePath(url).tree() if name.startswith(STAGING_PREFIX)]


#: Publishes until it has written the first file of one version: there it waits to be killed.
SCRIPT = """
import sys, time
from modelyard.artifact import RemotePath
from tests.support.models import publish_affine

def stops(path, source, upload=RemotePath.upload):
    upload(path, source)
    if f"/{sys.argv[2]}/" in str(path):
        time.sleep(60)

RemotePath.upload = stops
while True:
    publish_affine(RemotePath(sys.argv[1]), slope=1.0, intercept=0.0)
"""


def test_a_killed_exporter_leaves_whole_versions_only(store: None) -> None:
    model = RemotePath("s3://artifacts/models/killed")

    def begun() -> set[str]:
        """Versions of which there are some files, and a claim to write the others."""
        tree = model.tree()
        return {name.partition("/")[0] for name in tree if f"{STAGING_PREFIX}{name.partition('/')[0]}" in tree}

    half: set[str] = set()
    for turn in range(3):
        # The first is killed in its first version, the others in their second.
        number = str(2 * turn + 1)
        command = [sys.executable, "-c", SCRIPT, str(model), number]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as process:
            try:
                until(lambda number=number: number in begun(), 60)  # type: ignore[misc]
            finally:
                process.kill()
        half |= begun()
    assert half == {"1", "3", "5"}
    versions = list_versions(model)
    assert [version.number for version in versions] == [2, 4]
    for version in versions:
        verify_version(version)
    time.sleep(1.1)
    collect(model, keep=len(versions), stale_s=0)
    left = model.tree()
    assert {name.partition("/")[0] for name in left} == {str(version.number) for version in versions}
    assert sum(name.endswith(MANIFEST_NAME) for name in left) == len(versions)
