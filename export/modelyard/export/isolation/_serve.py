"""The process that a :class:`Worker` starts: it takes orders from its standard input, and ends with it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import logging.handlers
import os
import queue
import shutil
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from modelyard.console import leave_out_keras, quiet_libraries
from modelyard.errors import ModelyardError, PublishError
from modelyard.export.isolation._worker import Done, Event, Failed, Forget, Kept, Order
from modelyard.export.publish import ExportEvent


def main(argv: list[str]) -> int:
    """Serves one process."""
    # What libraries print belongs to the log, not between the answers.
    answers = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)
    _volunteer()
    quiet_libraries()
    with leave_out_keras():
        import tensorflow as tf

    folder, threads = argv[0], int(argv[1])
    if threads:
        # Before anything that starts TensorFlow's threads.
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    for module in argv[2:]:
        importlib.import_module(module)
    orders: queue.SimpleQueue[Order | Forget] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(Connection(os.dup(0), writable=False), orders, folder), daemon=True).start()
    _Server(answers).serve(orders)
    return 0


class _Server:
    def __init__(self, answers: Connection) -> None:
        self._answers = answers
        self._kept: dict[int, Any] = {}
        self._numbers = itertools.count()
        handler = logging.handlers.QueueHandler(queue.Queue())
        handler.enqueue = lambda record: self._tell(Event(record))  # type: ignore[method-assign]
        logging.getLogger("modelyard").addHandler(handler)
        logging.getLogger("modelyard").propagate = False

    def serve(self, orders: queue.SimpleQueue[Order | Forget]) -> None:
        while True:
            self._tell(self._follow(orders.get()))

    def _follow(self, order: Order | Forget) -> Done | Failed:
        if isinstance(order, Forget):
            del self._kept[order.kept.number]
            return Done(None)
        try:
            arguments = [self._kept[each.number] if isinstance(each, Kept) else each for each in order.arguments]
            options = {"progress": self._progress} if order.progress else {}
            if isinstance(order.function, str):
                value = getattr(arguments[0], order.function)(*arguments[1:], **options)
            else:
                value = order.function(*arguments, **options)
            if order.keep:
                kept = Kept(next(self._numbers))
                self._kept[kept.number] = value
                return Done(kept)
            return Done(value)
        except ModelyardError as exc:
            return Failed(type(exc), exc.message, _behind(exc.__cause__))
        except OSError as exc:
            return Failed(PublishError, f"A file cannot be read or written: {exc}", _behind(exc))
        # Whatever else comes up is told, and the process stays: this is the boundary.
        except Exception as exc:
            return Failed(None, f"{type(exc).__name__}: {exc}", _behind(exc))

    def _progress(self, event: ExportEvent) -> None:
        self._tell(Event(event))

    def _tell(self, answer: object) -> None:
        self._answers.send(answer)


def _behind(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _read(stdin: Connection, orders: queue.SimpleQueue[Order | Forget], folder: str) -> None:
    try:
        while True:
            orders.put(stdin.recv())
    except EOFError:
        # The caller is gone, by a signal perhaps: what is being done is not needed, and the folder for
        # temporary files has no other owner. By its name: where it is gone already, tempfile.gettempdir() is /tmp.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    except BaseException:
        # An order that cannot be read here: its sender reads why.
        traceback.print_exc()
        os._exit(1)


def _volunteer() -> None:
    """Where memory runs out, this process goes first, and not the one that trains."""
    # Not on every system, nor allowed in every container.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
