"""``--autotune`` and ``--flagfile``: measured, written, read, served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.serving.runtime._autotune import Trial, choose, shapes
from tests.support.admin import config_text, model_text
from tests.support.models import publish_affine, publish_slow
from tests.support.server import run_to_end, serve

LINE = re.compile(r"# +(\d+) +(\d+) +(\d+) +([\d,]+) +([\d.]+) ms *(chosen|too slow|)")


def trial(rows: int, examples_per_s: float, batch_ms: float) -> Trial:
    return Trial(threads=1, instances=1, rows=rows, examples_per_s=examples_per_s, batch_s=batch_ms / 1e3)


def test_the_most_within_the_limit_is_chosen_and_of_equals_the_fastest() -> None:
    trials = [trial(1, 100, 1), trial(2, 190, 2), trial(4, 300, 4), trial(8, 310, 8), trial(16, 900, 16)]
    # A request may wait for a batch, and takes another: 16 ms are over the limit of 20.
    assert choose(trials, 0.020).rows == 4
    assert choose(trials, 0.032).rows == 16
    assert choose(trials, 0.004).rows == 2
    with pytest.raises(ConfigurationError, match=r"within 1 ms: the fastest takes 2\.0 ms"):
        choose(trials, 0.001)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (1, 2), (2, 1)]),
        (6, [(1, 1), (1, 6), (2, 1), (2, 3), (4, 1), (6, 1)]),
    ],
)
def test_no_shape_uses_more_cpus_than_there_are(cpus: int, expected: list[tuple[int, int]]) -> None:
    assert list(shapes(cpus)) == expected


def test_what_is_written_is_what_was_best_and_is_served(tmp_path: Path) -> None:
    publish_slow(tmp_path / "slow", loops=20, tried=True)
    file = tmp_path / "tuned.flags"
    model = ["--model_name=slow", f"--model_base_path={tmp_path / 'slow'}"]
    code, log = run_to_end(*model, f"--autotune={file}", "--autotune_latency_ms=2000")
    assert code == 0, log
    assert f"Review it, and serve with --flagfile={file}" in log
    rows = [match.groups() for match in map(LINE.match, file.read_text().splitlines()) if match]
    (best,) = [row for row in rows if row[5] == "chosen"]
    rates = [float(row[3].replace(",", "")) for row in rows if row[5] != "too slow"]
    assert float(best[3].replace(",", "")) >= 0.94 * max(rates)
    options = parse_flags([*model, f"--flagfile={file}"])
    assert (str(options.load.threads), str(options.threads), str(options.max_batch_rows)) == best[:3]
    with serve(tmp_path / "slow", model="slow", log_dir=tmp_path, flags=[f"--flagfile={file}"]) as server:
        status, answer = server.get("/v1/models/slow/metadata")
        assert (status, '"x"' in answer) == (200, True)


def test_a_limit_that_nothing_keeps_writes_nothing(tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    flags = [f"--autotune={tmp_path / 'f'}", "--autotune_latency_ms=0.0001", f"--model_base_path={tmp_path / 'm'}"]
    code, log = run_to_end(*flags)
    assert (code, (tmp_path / "f").exists()) == (1, False)
    assert "No configuration answers within 0.0001 ms" in log


def test_what_cannot_be_tuned_is_said(tmp_path: Path) -> None:
    tune = f"--autotune={tmp_path / 'f'}"
    (tmp_path / "empty").mkdir()
    code, log = run_to_end(tune, f"--model_base_path={tmp_path / 'empty'}")
    assert (code, "holds no version" in log) == (1, True)
    config = tmp_path / "models.config"
    config.write_text(config_text(*(model_text(name, tmp_path / name) for name in "ab")))
    code, log = run_to_end(tune, f"--model_config_file={config}")
    assert (code, "--autotune is for one model; there are 2" in log) == (1, True)
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    code, log = run_to_end(f"--autotune={tmp_path / 'no' / 'f'}", f"--model_base_path={tmp_path / 'm'}")
    # Before anything is measured.
    assert (code, "--autotune cannot write" in log, "examples/s" in log) == (1, True, False)
    before = set(tmp_path.iterdir())
    code, log = run_to_end(f"--autotune={tmp_path / 'm'}", f"--model_base_path={tmp_path / 'm'}")
    assert (code, f"--autotune cannot write {tmp_path / 'm'}: Is a directory" in log) == (1, True)
    assert set(tmp_path.iterdir()) == before


def test_flags_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text("--rest_api_port=1\n--port=2\n")
    (tmp_path / "outer").write_text(f"# a comment\n\n  --port=3\n--flagfile={tmp_path / 'inner'}\n--model_name=a b\n")
    base = ["--model_base_path=/nowhere", "--flagfile", str(tmp_path / "outer")]
    options = parse_flags([*base, "--rest_api_port=4"])
    assert (options.port, options.rest_api_port, options.models[0].name) == (2, 4, "a b")
    # What stands before the file gives way to it.
    assert parse_flags(["--rest_api_port=4", *base]).rest_api_port == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--port 8500", "line 1 is '--port 8500'; expected --flag=value"),
        ("# one\n\nport=8500", "line 3 is 'port=8500'"),
        ("--flagfile={self}", "more than 8 deep"),
        ("--flagfile={self}.none", "cannot be read"),
        ("--port=1\n--rest_api_prt=1", "f, line 2: Unknown argument --rest_api_prt. Did you mean --rest_api_port?"),
    ],
)
def test_files_of_flags_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "f"
    file.write_text(text.format(self=file))
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_flags([f"--flagfile={file}"])
