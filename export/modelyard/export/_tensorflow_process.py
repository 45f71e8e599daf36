"""TensorFlow with another number of threads: they are fixed for a process, so it takes one of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from modelyard.errors import VerificationError
from modelyard.export._runtimes import Arrays, to_tensor

#: The longest part of its log that an error repeats.
_LOG = 2000


class TensorFlowProcess:
    """A SavedModel in a process whose TensorFlow has a number of threads.

    Args:
        directory: The SavedModel.
        signature: The one that is timed.
        inputs: Its examples.
        threads: Threads of one call.

    Raises:
        VerificationError: The process did not get as far as a loaded model.
    """

    def __init__(self, directory: Path, signature: str, inputs: Arrays, *, threads: int) -> None:
        self._threads = threads
        self._folder = tempfile.TemporaryDirectory(prefix="modelyard-")
        folder = Path(self._folder.name)
        names = sorted(inputs)
        for index, name in enumerate(names):
            # TensorFlow's own form holds strings of any bytes, which NumPy's files do not.
            content = tf.io.serialize_tensor(to_tensor(inputs[name])).numpy()
            (folder / f"{index}.tensor").write_bytes(content)
        dtypes = [to_tensor(inputs[name][:1]).dtype.name for name in names]
        order = {"directory": str(directory), "signature": signature, "threads": threads, "names": names}
        (folder / "order.json").write_text(json.dumps({**order, "dtypes": dtypes}), "utf-8")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "modelyard.export._tensorflow_worker", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                # Ctrl-C is for this process, which ends that one.
                start_new_session=True,
            )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def time(self, signature: str, *, batch_size: int, first: int, calls: int, seconds: float) -> list[int]:
        """Nanoseconds of each of some calls, taken over there.

        Args:
            signature: The one that was given.
            batch_size: Examples in a call.
            first: Number of the first call, which decides on its examples.
            calls: How many at most; there is at least one.
            seconds: About how long at most.

        Raises:
            VerificationError: The process ended.
        """
        order = {"batch_size": batch_size, "first": first, "calls": calls, "seconds": seconds}
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps(order) + "\n")
                stdin.flush()
        except BrokenPipeError:
            # Its answer says why.
            pass
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        # It may have died with an order on its way to it, which nobody needs any more.
        with contextlib.suppress(BrokenPipeError), self._process:
            pass
        self._folder.cleanup()

    def _answer(self) -> list[int]:
        stdout = self._process.stdout
        line = "" if stdout is None else stdout.readline()
        if not line:
            code = self._process.wait()
            log = self._log.read_text("utf-8", "replace").strip()[-_LOG:]
            raise VerificationError(
                f"Format saved_model: the process that measures TensorFlow with {self._threads} threads ended with "
                f"{code}: {log}"
            )
        times: list[int] = json.loads(line)
        return times
