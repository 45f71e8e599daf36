"""Exports in code that a page shows, as a reader runs it, in a process of its own."""

from __future__ import annotations

#: Before such code: the runtimes are measured for an instant, not for 20 s; tests/conftest.py does so in this process.
MEASURE_BRIEFLY = """\
from modelyard.export import ExportOptions
ExportOptions.__init__.__kwdefaults__.update(measure_seconds=0.3)
"""

#: The same where the page is about something else: without a second process, which loads TensorFlow once more.
EXPORT_HERE = MEASURE_BRIEFLY + "ExportOptions.__init__.__kwdefaults__.update(isolate=False)\n"

#: What is told of a worker that ended by SIGABRT: faulthandler, which looks at frames of threads that run, faults
#: itself once in a hundred ends. Its own message of the first signal is in the log then, too.
ENDED = r"A library ended the process \((SIGABRT|SIGSEGV)\) in the stage"
