"""The process in which TensorFlow is timed; it ends with its standard input.

It is told in a folder what to load, and in one line of its standard input what
to time; it answers with a line of times.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from modelyard.console import quiet_libraries


def main(argv: list[str]) -> int:
    """Serves one exporter.

    Args:
        argv: The folder.

    Returns:
        The exit code.
    """
    quiet_libraries()
    import tensorflow as tf

    folder = Path(argv[0])
    order = json.loads((folder / "order.json").read_text("utf-8"))
    # Before anything that starts TensorFlow's threads.
    tf.config.threading.set_intra_op_parallelism_threads(order["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(order["threads"])

    from modelyard.export._runtimes import load_runtime
    from modelyard.export._timing import TimedHere

    # Whatever libraries print belongs to the log, not between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    runtime = load_runtime("saved_model", Path(order["directory"]))
    files = [folder / f"{index}.tensor" for index in range(len(order["names"]))]
    inputs = {
        name: tf.io.parse_tensor(file.read_bytes(), tf.as_dtype(dtype)).numpy()
        for name, dtype, file in zip(order["names"], order["dtypes"], files, strict=True)
    }
    name = order["signature"]
    timed = TimedHere(runtime, {name: runtime.graphs[name]}, {name: inputs})
    answers.write("[]\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(timed.time(name, **json.loads(line))) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
