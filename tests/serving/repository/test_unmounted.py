"""A base path that is a mount: what is left when it is unmounted is an empty folder, which unloads nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.namespaces import ALONE, needs_namespaces
from tests.support.watching import WAIT_S

ROOT = Path(__file__).parents[3]

CODE = """
import subprocess
import sys
from pathlib import Path

from modelyard.serving import ModelConfig
from tests.support.models import publish_affine
from tests.support.watching import look, served, watched


disk, base_path = Path(sys.argv[1], "disk"), Path(sys.argv[1], "m")
disk.mkdir()
base_path.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "disk", disk], check=True)
publish_affine(disk, slope=1.0, intercept=0.0)
subprocess.run(["mount", "--bind", disk, base_path], check=True)
watcher = watched(ModelConfig(name="m", base_path=base_path))
assert served(watcher) == [1], watcher.failure()
for number in (2, 3):
    subprocess.run(["umount", base_path], check=True)
    publish_affine(disk, slope=2.0, intercept=0.0)
    look(watcher)
    assert served(watcher) == [number - 1], watcher.failure()
    away = "cannot be read: it is empty, and on another disk than its versions were: was that unmounted?"
    assert away in watcher.failure(), watcher.failure()
    subprocess.run(["mount", "--bind", disk, base_path], check=True)
    look(watcher)
    assert served(watcher) == [number], watcher.failure()
    assert not watcher.failure()
assert watcher.stop()
"""


@needs_namespaces
def test_a_base_path_that_is_unmounted_unloads_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ALONE, sys.executable, "-c", CODE, tmp_path],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
    )
    assert done.returncode == 0, done.stderr
