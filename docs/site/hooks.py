"""What the site has beside the pages in docs/: files from elsewhere in the repository, and reference pages.

Pages are written for readers of the repository: a link to a file that is no page becomes its path.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: Pages by file of the repository.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "serving/core/README.md": "native-core.md",
}
#: Packages whose names are for users.
DOORS = ("artifact", "clients", "export", "loadtests", "pipeline", "serving", "training")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are no files in docs/."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for name in DOORS:
        text = f"# modelyard.{name}\n\n::: modelyard.{name}\n    options:\n      show_root_members_full_path: false\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/errors.md", content=errors()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Has links lead to pages, wherever the text comes from."""
    name = page.file.src_uri
    source = next((each for each, made in ELSEWHERE.items() if made == name), f"docs/{name}")
    here = posixpath.dirname(source)

    def replaced(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        made = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if made and files.get_file_from_path(made) is not None:
            return f"{image}[{text}]({posixpath.relpath(made, posixpath.dirname(name) or '.')}{anchor or ''})"
        if not (ROOT / path).exists():
            return match[0]
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    # What stands in a block of code is no link.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def commands() -> str:
    """What every command says of itself."""
    overview = _help([])
    names = re.findall(r"^  ([a-z]+)  ", overview.partition("examples:")[0], re.MULTILINE)
    lines = ["# Command line", "", "```text", overview, "```", ""]
    for name in names:
        if name != "version":
            lines += [f"## modelyard {name}", "", "```text", _help([name]), "```", ""]
    return "\n".join(lines)


def _help(arguments: list[str]) -> str:
    command = [str(Path(sys.executable).with_name("modelyard")), *arguments, "--help"]
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def errors() -> str:
    """Every error: what it means, and what each transport makes of it."""
    from modelyard import errors as tree
    from modelyard.wire import grpc_status_of, http_status_of

    lines = [
        "# Errors",
        "",
        "One tree for all packages, in `modelyard.errors`. Each error's message says what was received, what was",
        "expected and what to do; clients raise the class that the server meant.",
        "",
        "| error | is a | gRPC | HTTP | means |",
        "|---|---|---|---|---|",
    ]
    for kind in (each for _, each in inspect.getmembers(tree, inspect.isclass)):
        if issubclass(kind, tree.ModelyardError):
            text = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
            # Some take other arguments; only the class counts here.
            error = kind.__new__(kind)
            parent = kind.__bases__[0].__name__
            lines.append(
                f"| `{kind.__name__}` | `{parent}` | {grpc_status_of(error)} | {http_status_of(error)} | {text} |"
            )
    return "\n".join(lines) + "\n"
