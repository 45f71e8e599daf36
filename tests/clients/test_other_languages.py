"""clients/examples: programs in other languages, against a real server, where their toolchain is installed."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modelyard.training.data import load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.server import RunningServer, serve

EXAMPLES = Path(__file__).resolve().parents[2] / "clients" / "examples"


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "fashion"
    publish_classifier(folder, load_fashion_mnist())
    return folder


@pytest.fixture(scope="module")
def server(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve(fashion, model="fashion", log_dir=tmp_path_factory.mktemp("log")) as running:
        yield running


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Trousers that the classifier is right about.
    data = load_fashion_mnist()
    path = tmp_path_factory.mktemp("image") / "trousers.png"
    Image.fromarray(data.test_images[int((data.test_labels == 1).argmax())].reshape(28, 28)).save(path)
    return path


def run(folder: str, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, cwd=EXAMPLES / folder, capture_output=True, text=True, timeout=600, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs_packages() -> None:
    if os.environ.get("MODELYARD_EXAMPLES_INSTALL") != "1":
        pytest.skip("it downloads packages: MODELYARD_EXAMPLES_INSTALL=1 allows that")


def test_curl(server: RunningServer, image: Path) -> None:
    assert '"label": "Trouser"' in run("curl", "sh", "predict.sh", str(image), server.rest_url)


def test_curl_tells_an_error(server: RunningServer, image: Path) -> None:
    with pytest.raises(AssertionError, match="returned error: 404"):
        run("curl", "sh", "predict.sh", str(image), server.rest_url, "shoes")


def test_fetch(server: RunningServer, image: Path) -> None:
    assert run("node", "node", "rest.mjs", str(image), server.rest_url).startswith("Trouser ")


def test_node_over_grpc(server: RunningServer, image: Path) -> None:
    needs_packages()
    run("node", "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    answer = run("node", "node", "grpc.mjs", str(image), server.grpc_address)
    assert answer == run("node", "node", "rest.mjs", str(image), server.rest_url)


def test_go(server: RunningServer, image: Path) -> None:
    needs_packages()
    run("go", "go", "version")
    run("go", "sh", "generate.sh", f"{sys.executable} -m grpc_tools.protoc")
    assert run("go", "go", "run", ".", str(image), server.grpc_address) == "Trouser\n"


def test_java_over_rest(server: RunningServer, image: Path) -> None:
    assert '"label": "Trouser"' in run("java", "java", "Rest.java", str(image), server.rest_url)


def test_java(server: RunningServer, image: Path) -> None:
    needs_packages()
    arguments = f"-Dexec.args={image} {server.grpc_address}"
    # Maven resets the terminal's colours, before and after.
    assert "Trouser\n" in run("java", "mvn", "-q", "-B", "compile", "exec:java", arguments)


def test_cpp(server: RunningServer, image: Path) -> None:
    needs_packages()
    if shutil.which("grpc_cpp_plugin") is None:
        pytest.skip("libgrpc++-dev and protobuf-compiler-grpc are not installed")
    run("cpp", "sh", "build.sh")
    assert run("cpp", str(EXAMPLES / "cpp" / "predict"), str(image), server.grpc_address) == "Trouser\n"


def test_the_page_that_computes_in_the_browser(fashion: Path, image: Path, tmp_path: Path) -> None:
    needs_packages()
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    run("browser", "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts")
    for name in ("index.html", "node_modules"):
        (tmp_path / name).symlink_to(EXAMPLES / "browser" / name)
    (tmp_path / "model").symlink_to(fashion / "1")
    # The classes of a dark image, and of its negative: photographs are light.
    pixels = np.asarray(Image.open(image))
    Image.fromarray(255 - pixels).resize((280, 280), Image.Resampling.NEAREST).save(tmp_path / "light.png")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as files,
        playwright.sync_playwright() as driver,
    ):
        thread = threading.Thread(target=files.serve_forever)
        thread.start()
        try:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{files.server_port}/index.html")
            answer = page.get_by_role("status")
            for path in (image, tmp_path / "light.png"):
                playwright.expect(answer).to_be_empty(timeout=60_000)
                page.get_by_label("image file").set_input_files(path)
                playwright.expect(answer).to_have_text(re.compile(r"^Trouser, \d+\.\d %$"), timeout=60_000)
                page.get_by_role("button", name="Clear").click()
            canvas = page.get_by_label("drawing of 28 by 28 pixels")
            box = canvas.bounding_box()
            page.mouse.move(box["x"] + 140, box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + 140, box["y"] + 240, steps=20)
            page.mouse.up()
            playwright.expect(answer).to_have_text(re.compile(r"^[A-Z].*, \d+\.\d %$"), timeout=60_000)
            browser.close()
        finally:
            files.shutdown()
            thread.join()
