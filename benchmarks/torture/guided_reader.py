"""A reader of Python's under atheris, in a process of its own: what it reaches says what is tried next.

python -m benchmarks.torture.guided_reader NAME FOLDER FLAG_OF_LIBFUZZER ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# What is imported here is followed, and so is the reader of text protos, which is Python, too.
with atheris.instrument_imports(include=["modelyard", "google.protobuf.text_format"]):
    from benchmarks.torture.readers import READERS
    from modelyard.errors import ModelyardError


def main() -> None:
    """Ends the process when libFuzzer is done: with 0, unless something was raised that is no error of ours."""
    name, folder, *flags = sys.argv[1:]
    work = Path(folder) / "work"
    work.mkdir()
    seeds, read = READERS[name](work)
    corpus = Path(folder) / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)

    def once(content: bytes) -> None:
        try:
            read(content)
        except ModelyardError:
            pass

    atheris.Setup([sys.argv[0], *flags, str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
