"""docs/tutorial.md: a reader who types all of it gets what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.exports import EXPORT_HERE
from tests.support.pages import all_blocks
from tests.support.server import free_port


def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    grpc_port, rest_port = free_port(), free_port()
    # Whatever fails, the server ends with it.
    script = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for kind, text in all_blocks("docs/tutorial.md"):
        text = text.replace("8500", str(grpc_port)).replace("8501", str(rest_port))
        if kind == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            (tmp_path / name).write_text(EXPORT_HERE + text, "utf-8")
        else:
            assert kind == "bash"
            # Job control, which a script has not, stops the server by its number.
            script.append(text.replace("kill %1", "kill $!").replace("--run-time 5s", "--run-time 2s"))
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MODELYARD_DATA": "subset",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }  # fmt: skip
    result = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    accuracies = [float(each) for each in re.findall(r"test accuracy ([\d.]+)", result.stdout)]
    assert len(accuracies) == 2
    assert min(accuracies) > 0.5
    versions = re.findall(r"version (\d) is right about (\d+)%", result.stdout)
    assert [version for version, _ in versions] == ["1", "2"]
    assert all(int(right) > 50 for _, right in versions)
    assert '"state": "AVAILABLE"' in result.stdout
