"""One cell of the table: a kind, a route, a format. Each is made in a process of its own, and judged in another."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["right", "refused", "fails", "unclear", "wrong", "skipped"]
#: Longest text that is still read as a sentence or two.
SENTENCE = 700
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A result.

    Attributes:
        kind: The kind of model.
        route: ``ours`` or ``plain``.
        form: The format.
        verdict: ``right``; ``refused`` with a sentence (ours); ``fails`` with an
            exception (plain); ``unclear``: the process ended, hung, or said
            something that is no sentence; ``wrong``: an artefact came out and
            computes something else; ``skipped``.
        why: What it said.
        seconds: How long it took.
    """

    kind: str
    route: str
    form: str
    verdict: Verdict
    why: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """A line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def prepare() -> None:
    """Loads the libraries once, in the process that the others are forked from."""
    _CONTEXT.set_forkserver_preload(["benchmarks.exporting._preload"])


def run_cell(name: str, route: str, form: str, *, limit_s: float) -> Cell:
    """Makes and judges one cell.

    Args:
        name: The kind.
        route: ``ours`` or ``plain``.
        form: The format.
        limit_s: Seconds that each of the two processes may take.

    Returns:
        The result.

    Raises:
        ValueError: The kind cannot be built or called.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        said, end = in_process(_make, (name, route, form, False), Path(folder), limit_s)
        if route == "ours" and end:
            # As everybody has it: what ends the process is told by the one that started it.
            said, end = in_process(_make, (name, route, form, True), Path(folder), limit_s)
        if "broken" in said:
            raise ValueError(f"The kind {name!r} itself does not work: {said['broken']}")
        verdict, why = classify(route, said, end, "making it")
        if verdict == "right":
            said, end = in_process(_judge, (form,), Path(folder), limit_s)
            verdict, why = classify(route, said, end, "running it")
    seconds = round(time.monotonic() - started, 1)
    return Cell(kind=name, route=route, form=form, verdict=verdict, why=why, seconds=seconds)


def classify(route: str, said: dict[str, str], end: str, stage: str) -> tuple[Verdict, str]:
    """What the end of a process means.

    Args:
        route: ``ours`` or ``plain``.
        said: What the process said last: one of ``done``, ``wrong``, ``refused``,
            ``raised``, ``skipped``; nothing where it died.
        end: How it died; empty where it did not.
        stage: What it did.

    Returns:
        The verdict and why.
    """
    if end or not said:
        return "unclear", f"{stage}: {end or 'the process said nothing'}"
    ((what, text),) = said.items()
    if what == "done":
        return "right", ""
    if what == "skipped":
        return "skipped", text
    if what == "wrong":
        return "wrong", text
    if route == "plain":
        return "fails", f"{stage}: {text}"
    clear = what == "refused" and stage == "making it" and is_sentence(text)
    return ("refused", text) if clear else ("unclear", f"{stage}: {text}")


def is_sentence(text: str) -> bool:
    """Whether a message is for people: no stack, no page of a converter's text."""
    return 0 < len(text) <= SENTENCE and "\n" not in text.strip() and "Traceback" not in text and 'File "' not in text


def in_process(
    work: Callable[..., dict[str, str]], arguments: tuple[Any, ...], folder: Path, limit_s: float
) -> tuple[dict[str, str], str]:
    """Runs a function in a process of its own.

    Args:
        work: Takes the folder and the arguments, returns what it has to say.
        arguments: Its other arguments.
        folder: Where it may write.
        limit_s: After so many seconds it is killed.

    Returns:
        What it said, and how it ended if that was not its own way.
    """
    said = folder / "said.json"
    said.unlink(missing_ok=True)
    process = _CONTEXT.Process(target=_child, args=(work, arguments, str(folder)))
    process.start()
    process.join(limit_s)
    if process.is_alive():
        _end(process)
        return {}, f"not ready after {limit_s:g} s"
    if process.exitcode:
        code = process.exitcode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
        return {}, f"the process ended ({how}) {' '.join(tail)[:300]}".strip()
    return (json.loads(said.read_text("utf-8")) if said.exists() else {}), ""


def _end(process: Any) -> None:
    """Ends a process and the children that it may have."""
    # It may not have a group of its own yet.
    process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _child(work: Callable[..., dict[str, str]], arguments: tuple[Any, ...], folder: str) -> None:
    os.setpgid(0, 0)
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(folder)
    tempfile.tempdir = folder
    said = work(Path(folder), *arguments)
    (Path(folder) / "said.json").write_text(json.dumps(said), "utf-8")
    sys.stdout.flush()
    # The verdict is written; native threads at the end of a process are not what is measured.
    os._exit(0)


def _make(folder: Path, name: str, route: str, form: str, isolate: bool) -> dict[str, str]:
    import importlib.util

    import keras

    from benchmarks.exporting._routes import make
    from benchmarks.exporting._source import answers
    from benchmarks.zoo import all_kinds
    from modelyard.errors import ModelyardError

    kind = all_kinds()[name]
    missing = [each for each in kind.needs if importlib.util.find_spec(each) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} is not installed"}
    keras.utils.set_random_seed(0)
    try:
        model = kind.build()
        calls = answers(kind, model)
    # Not a result: it is told, and the program ends.
    except Exception as exc:
        return {"broken": f"{type(exc).__name__}: {exc}"}
    try:
        made = make(kind, model, route, form, folder, isolate=isolate)  # type: ignore[arg-type]
    except ModelyardError as exc:
        return {"refused": exc.message}
    # Whatever a converter raises is the result.
    except Exception as exc:
        return {"raised": f"{type(exc).__name__}: {exc}"}
    (folder / "calls").write_bytes(pickle.dumps((made, calls, kind.stochastic, kind.tolerance)))
    return {"done": ""}


def _judge(folder: Path, form: str) -> dict[str, str]:
    from benchmarks.exporting._judge import judge

    made, calls, stochastic, tolerance = pickle.loads((folder / "calls").read_bytes())
    try:
        fault = judge(made, form, calls, stochastic=stochastic, tolerance=tolerance)
    # Whatever a runtime raises is the result.
    except Exception as exc:
        return {"raised": f"{type(exc).__name__}: {exc}"}
    return {"wrong": fault} if fault else {"done": ""}
