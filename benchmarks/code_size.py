"""Count lines, long files, crowded folders, repeated code and `Any`, for the table in docs/architecture.md.

python -m benchmarks.code_size            # print the table and what is over a limit
python -m benchmarks.code_size --write    # write the table into the page
"""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.pages import write_section

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("training", "export", "serving", "clients", "loadtests")
#: Protobuf's messages with their codecs, and the blocking client, which is written from the asynchronous one.
GENERATED = ("/wire/", "_generated")
LINES, MODULES, REPEATED = 400, 20, 6
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(kw_only=True)
class Room:
    """What one room has, in lines unless it says otherwise."""

    files: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    blank: int = 0
    any: int = 0
    long: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Every line of its files."""
        return self.code + self.docstrings + self.comments + self.blank


def sources(folder: str, end: str = ".py") -> list[Path]:
    """Files in version control that people wrote, by path."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        ROOT / name
        for name in listed.splitlines()
        if name.endswith(end) and not any(part in name for part in GENERATED)
    ]


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node):
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count(paths: list[Path]) -> Room:
    """Count the lines of some files by kind."""
    room = Room(files=len(paths))
    for path in paths:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        documented = _docstring_lines(tree)
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if number in documented:
                room.docstrings += 1
            elif not line.strip():
                room.blank += 1
            elif line.lstrip().startswith("#"):
                room.comments += 1
            else:
                room.code += 1
        room.any += _any(tree)
        if len(lines) > LINES:
            room.long.append(f"{path.relative_to(ROOT)}: {len(lines)}")
    return room


def _any(tree: ast.Module) -> int:
    """Uses of `Any` that are not the shape or type argument of a numpy generic."""
    numpy = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith(("np.", "npt."))
        for name in ast.walk(node.slice)
    }
    return sum(isinstance(node, ast.Name) and node.id == "Any" and id(node) not in numpy for node in ast.walk(tree))


def crowded() -> Iterator[str]:
    """Folders with more modules than a reader can keep in mind."""
    for room in ROOMS:
        folders = Counter(path.parent for path in sources(room) if path.name != "__init__.py")
        yield from (f"{folder.relative_to(ROOT)}: {n}" for folder, n in sorted(folders.items()) if n > MODULES)


def _significant(path: Path) -> list[tuple[int, str]]:
    """The lines that do something: no comments, docstrings, imports or single brackets."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    left_out = _docstring_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}:
            if token.start[0] not in left_out:
                kept[token.start[0]].append(token.string)
    return [(number, " ".join(words)) for number, words in sorted(kept.items()) if len("".join(words)) > 2]


def repeated() -> list[str]:
    """Runs of at least six equal lines in two places, each named once, the longest part of it."""
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    found: list[str] = []
    for room in ROOMS:
        for path in sources(room):
            lines = _significant(path)
            skip = 0
            for at in range(len(lines) - REPEATED + 1):
                run = tuple(text for _, text in lines[at : at + REPEATED])
                first = seen.setdefault(run, (path, lines[at][0]))
                if first == (path, lines[at][0]):
                    skip = 0
                    continue
                if not skip:
                    other, line = first
                    found.append(f"{path.relative_to(ROOT)}:{lines[at][0]} = {other.relative_to(ROOT)}:{line}")
                skip = REPEATED
    return found


def table() -> str:
    """The table as Markdown."""
    rows = [
        "| room | files | lines | code | docstrings | comments | `Any` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rooms = {room: count(sources(room)) for room in ROOMS}
    sums = Room()
    for name, room in rooms.items():
        rows.append(_row(f"`{name}`", room))
        for attribute in ("files", "code", "docstrings", "comments", "blank", "any"):
            setattr(sums, attribute, getattr(sums, attribute) + getattr(room, attribute))
    rows.append(_row("all", sums))
    core = sum(len(path.read_text("utf-8").splitlines()) for path in sources("serving/core", ".rs"))
    tests = sum(len(path.read_text("utf-8").splitlines()) for path in sources("tests"))
    rows += [
        "",
        f"Beside them {core:,} lines of Rust in the serving core and {tests:,} of tests; "
        "generated code is not counted. Files "
        f"over {LINES} lines: {sum(len(room.long) for room in rooms.values())}; folders of more than {MODULES} "
        f"modules: {len(list(crowded()))}; repeated runs of {REPEATED} lines or more: {len(repeated())}.",
    ]
    return "\n".join(rows)


def _row(name: str, room: Room) -> str:
    numbers = (room.files, room.total, room.code, room.docstrings, room.comments, room.any)
    return " | ".join([f"| {name}", *(f"{n:,}" for n in numbers)]) + " |"


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table in docs/architecture.md")
    arguments = parser.parse_args()
    print(table())
    for room in ROOMS:
        for line in count(sources(room)).long:
            print("long:", line)
    for line in crowded():
        print("crowded:", line)
    for line in repeated():
        print("repeated:", line)
    if arguments.write:
        write_section(ROOT / "docs" / "architecture.md", "<!-- code size -->", "<!-- /code size -->", table())


if __name__ == "__main__":
    main()
