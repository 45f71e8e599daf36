"""SIGHUP: what comes from files is read again, and what is wrong with it changes nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.admin import ask, config_text, model_text
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port, serve
from tests.support.waiting import until

#: Nothing is looked at by itself.
ONCE = "--file_system_poll_wait_seconds=0"


def hang_up(server: RunningServer, says: str) -> None:
    before = server.log_text().count("reload: ")
    server.process.send_signal(signal.SIGHUP)
    server.wait_until(lambda: server.log_text().count("reload: ") > before, 20, "reloading")
    server.wait_until(lambda: says in server.log_text(), 20, f"saying {says!r}")


def test_a_config_file(tmp_path: Path) -> None:
    for name, slope in (("a", 2.0), ("b", 3.0), ("c", 4.0)):
        publish_affine(tmp_path / name, slope=slope, intercept=0.0)
    file = tmp_path / "models.config"
    a, b, c = (model_text(name, tmp_path / name) for name in "abc")
    file.write_text(config_text(a, b))
    flags = [f"--model_config_file={file}", ONCE]
    with serve(None, model="a", log_dir=tmp_path, flags=flags) as server:
        server.wait_until(lambda: ask(server, "b") == 3.0, 20, "serving b")
        hang_up(server, "reload: nothing changed")
        file.write_text(config_text(model_text("a", tmp_path / "a", policy="latest { num_versions: 2 }"), c))
        assert ask(server, "c")[0] == 404
        hang_up(server, "reload: models added: c; models removed: b; models changed: a")
        server.wait_until(lambda: ask(server, "c") == 4.0, 20, "serving c")
        assert ask(server, "b")[0] == 404
        # A bad file changes nothing.
        file.write_text("model_config_list { config { nme")
        hang_up(server, "what was in force stays")
        assert f"{file}" in server.log_text()
        assert (ask(server, "a"), ask(server, "c")) == (2.0, 4.0)
        # A version that came meanwhile is found, too.
        file.write_text(config_text(a, c))
        publish_affine(tmp_path / "c", slope=5.0, intercept=0.0)
        hang_up(server, "reload: models changed: a")
        server.wait_until(lambda: ask(server, "c") == 5.0, 20, "serving the new version of c")


def test_a_repository(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    publish_affine(folder / "a", slope=2.0, intercept=0.0)
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={folder}", ONCE]) as server:
        publish_affine(folder / "b", slope=3.0, intercept=0.0)
        hang_up(server, "reload: models added: b")
        server.wait_until(lambda: ask(server, "b") == 3.0, 20, "serving b")
        shutil.rmtree(folder)
        hang_up(server, "what was in force stays")
        assert (ask(server, "a"), ask(server, "b")) == (2.0, 3.0)


def test_a_terminal_that_is_gone_ends_the_server(tmp_path: Path) -> None:
    publish_affine(tmp_path / "a", slope=2.0, intercept=0.0)
    log = tmp_path / "log"
    flags = [f"--port={free_port()}", "--model_name=a", f"--model_base_path={tmp_path / 'a'}"]
    command = [sys.executable, "-m", "modelyard.serving", *flags]
    in_shell = ["sh", "-c", f'exec "$@" 2>{log}', "sh", *command]
    # The server has a terminal of its own, which ends with the process that holds its other side.
    holder = subprocess.Popen(
        [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])", *in_shell],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: log.exists() and "AVAILABLE" in log.read_text())
    holder.kill()
    holder.wait()
    until(lambda: log.read_text().rstrip().endswith("stopped"), what=log.read_text)
    assert "received SIGHUP" in log.read_text()
