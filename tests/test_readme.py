"""README's code blocks, executed in order as a reader would, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.exports import MEASURE_BRIEFLY
from tests.support.pages import ROOT, all_blocks
from tests.support.server import free_port
from tests.support.waiting import until


def python(code: str, folder: Path) -> str:
    environment = {**os.environ, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def write_photos(folder: Path) -> None:
    """Noise in three colours, in sizes of their own."""
    random = np.random.default_rng(0)
    for split, count in (("train", 100), ("test", 30)):
        for channel, label in enumerate(("blue", "green", "red")):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 120, (*random.integers(50, 80, 2), 3))
                pixels[..., 2 - channel] += 100
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / label / f"{number:03}.jpeg")


def test_the_three_uses(tmp_path: Path) -> None:
    found = all_blocks("README.md")
    assert [kind for kind, _ in found] == ["console", "python", "bash", "console", "python"]
    _, pipeline, server, container, client = (text for _, text in found)
    # tests/deploy/image_checks.py runs the image itself.
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    for command in container.replace(" -e MODEL_NAME=photos", "").splitlines():
        assert command.removeprefix("$ ") in dockerfile

    write_photos(tmp_path / "photos")
    assert "max_steps=5_000, eval_every_steps=500" in pipeline
    steps = "max_steps=20, eval_every_steps=10"
    pipeline = pipeline.replace("max_steps=5_000, eval_every_steps=500", steps)
    out = python(MEASURE_BRIEFLY + pipeline + "print(f\"accuracy {run.metrics['test_accuracy']}\")", tmp_path)
    assert re.search(r"repository/photos/1 max error \d", out)
    assert float(out.rsplit(maxsplit=1)[1]) > 0.9

    ports = {"8500": str(free_port()), "8501": str(free_port())}
    for port, free in ports.items():
        server, client = server.replace(port, free), client.replace(port, free)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    log = (tmp_path / "server.log").open("wb")
    with log, subprocess.Popen(["bash", "-c", f"exec {server}"], cwd=tmp_path, env=environment, stderr=log) as process:
        try:
            said = (tmp_path / "server.log").read_text
            until(lambda: "listening" in said() or process.poll() is not None, 60, said)
            assert process.poll() is None, said()
            label, probability = python(client, tmp_path).rsplit(maxsplit=1)
            assert label in ("blue", "green", "red")
            assert 0.33 <= float(probability) <= 1
            rest = client.replace(f"grpc://localhost:{ports['8500']}", f"http://localhost:{ports['8501']}")
            assert python(rest, tmp_path).rsplit(maxsplit=1)[0] == label
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0


def test_the_first_lines_are_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.index("![") < text.index("make demo") < text.index("make test") < text.index("## Three uses")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", (ROOT / "README.md").read_text("utf-8")):
        assert (ROOT / target).exists(), target


def test_links_to_every_page() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    pages = [
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
    ]
    assert [page for page in pages if f"]({page})" not in text] == []
