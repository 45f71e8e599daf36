"""Regenerates ``modelyard/wire/_generated`` from ``modelyard/wire/protos``.

Run it with the development tools installed: ``python clients/generate_wire.py``.
A test calls :func:`generate` and compares its result with what is checked in.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOM = Path(__file__).resolve().parent
PROTOS = ROOM / "modelyard" / "wire" / "protos"
GENERATED = ROOM / "modelyard" / "wire" / "_generated"


def generate() -> dict[str, str]:
    """Compiles every proto file, and returns the text of each generated file by its name in ``_generated``.

    Raises:
        RuntimeError: protoc refused a file.
    """
    sources = sorted(str(path) for path in PROTOS.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        # A process of its own: beside a loaded TensorFlow, protoc's library crashes.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOM}", f"--python_out={folder}"]
        done = subprocess.run([*command, f"--pyi_out={folder}", *sources], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"protoc failed on {', '.join(sources)}: {done.stderr}")
        written = Path(folder, "modelyard", "wire", "protos")
        return {path.name: _adapt(path.read_text()) for path in sorted(written.iterdir())}


def _adapt(text: str) -> str:
    """Moves a generated module to our package and to our descriptor pool."""
    text = text.replace("modelyard.wire.protos", "modelyard.wire._generated")
    text = text.replace(
        "from google.protobuf import descriptor_pool as", "from modelyard.wire._generated import _pool as"
    )
    # The version of protoc is not part of the interface; the runtime check would tie users to ours.
    text = re.sub(r"# Protobuf Python Version.*\n", "", text)
    text = re.sub(r"from google.protobuf import runtime_version as _runtime_version\n", "", text)
    return re.sub(r"_runtime_version\.ValidateProtobufRuntimeVersion\((?:.|\n)*?\n\)\n", "", text)


def main() -> int:
    """Writes the generated files."""
    for name, text in generate().items():
        (GENERATED / name).write_text(text)
        sys.stdout.write(f"wrote {GENERATED / name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
