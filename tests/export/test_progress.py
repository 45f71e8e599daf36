from __future__ import annotations

import io

from modelyard.export import ExportEvent, ProgressBar


def test_one_line_for_each_stage_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with ProgressBar(stream=stream) as bar:
        for done in range(3):
            bar(ExportEvent(stage="reference", done=done, total=2))
        bar(ExportEvent(stage="verify onnx [x]", done=0, total=1))
    assert stream.getvalue().splitlines() == ["export: reference", "export: verify onnx [x]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    with ProgressBar(stream=stream) as bar:
        bar(ExportEvent(stage="reference", done=1, total=2))
        bar(ExportEvent(stage="reference", done=2, total=2))
    assert "reference" in stream.getvalue() and "2/2" in stream.getvalue()


def test_a_name_that_a_terminal_would_obey() -> None:
    """Signatures are called as the author of a model likes, and their names are in stages."""
    for stream in (io.StringIO(), Terminal()):
        with ProgressBar(stream=stream) as bar:
            for done in range(2):
                bar(ExportEvent(stage="verify onnx \x1b[2J\n[/x]", done=done, total=2))
        assert "verify onnx \\x1b[2J\\n[/x]" in stream.getvalue() and "\x1b[2J" not in stream.getvalue()
