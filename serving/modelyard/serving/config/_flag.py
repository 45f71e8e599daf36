"""A command-line flag, declared at the field of the options that it sets."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from modelyard.artifact import Location, locate

Kind = Literal["bool", "int", "float", "text", "texts"]
Effect = Literal["same", "better", "ignored", "ours"]
Value = bool | int | float | str

_V = TypeVar("_V", bound=Value)
_T = TypeVar("_T")
#: More threads than any machine has cores are a mistake.
MOST_THREADS = 1024
INT32_MAX = (1 << 31) - 1
#: The largest whole number of any flag: the native core counts with 64 bits, and adds to it.
_MOST_WHOLE = 1 << 62
_KINDS: dict[type[Value], Kind] = {bool: "bool", int: "int", float: "float", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag; the type of its default is that of its values."""

    name: str
    default: Value
    help: str
    #: ``same`` as upstream, ``better`` (the note says how), ``ignored`` (the note says what to use instead) or
    #: ``ours``.
    effect: Effect = "ours"
    note: str = ""
    choices: tuple[str, ...] = ()
    #: The smallest number allowed.
    least: float = 0
    #: The largest one.
    most: float = math.inf
    #: 0 is not allowed.
    positive: bool = False
    #: It may be given more than once.
    repeated: bool = False
    #: The transport ``python`` cannot do it.
    native_only: bool = False

    @property
    def kind(self) -> Kind:
        """Type of its value; ``texts`` for a flag that may be given more than once."""
        return "texts" if self.repeated else _KINDS[type(self.default)]

    @property
    def largest(self) -> float:
        """The largest number that it takes; times beyond TensorFlow Serving's 32 bits overflow some clock."""
        return min(self.most, _MOST_WHOLE if self.kind == "int" else INT32_MAX)


def flag(
    name: str,
    default: _V,
    help: str,
    note: str = "",
    *,
    read: Callable[[_V], object] = lambda value: value,
    effect: Effect = "ours",
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float = math.inf,
    positive: bool = False,
    native_only: bool = False,
) -> Any:
    """A field that a flag sets; ``read`` makes the field's value of the flag's."""
    own = Flag(
        name=name, default=default, help=help, note=note, effect="better" if note else effect, choices=choices,
        least=least, most=most, positive=positive, native_only=native_only,
    )  # fmt: skip
    return field(default_factory=lambda: read(default), metadata={"flags": (own,), "read": read})


#: A field that a flag of TensorFlow Serving sets; the note says what is different here.
upstream = partial(flag, effect="same")


def set_by(default: object, *flags: Flag) -> Any:
    """A field whose value depends on more than one flag's value: ``parse_flags`` finds it."""
    return field(default=default, metadata={"flags": flags})


def group(kind: Callable[[], object]) -> Any:
    """A field that holds options with flags of their own."""
    return field(default_factory=kind, metadata={"group": kind})


def same(name: str, default: Value, help: str, *, least: float = 0, most: float = math.inf) -> Flag:
    """A flag of TensorFlow Serving that has its effect here."""
    return Flag(name=name, default=default, help=help, effect="same", least=least, most=most)


def ignored(name: str, default: Value, note: str) -> Flag:
    """A flag of TensorFlow Serving that has no effect here; the note says why, or what to use instead."""
    return Flag(
        name=name, default=default, help="accepted, no effect", effect="ignored", note=note, least=-math.inf
    )  # fmt: skip


def path_or_none(text: str) -> Path | None:
    return Path(text) if text else None


def location_or_none(text: str) -> Location | None:
    return locate(text) if text else None


def milliseconds(value: float) -> float:
    """Seconds, of milliseconds."""
    return value / 1e3


def flags_of(kind: Any) -> Iterator[Flag]:
    """The flags of a dataclass of options, in the order of its fields."""
    for each in fields(kind):
        yield from each.metadata.get("flags", ())
        if "group" in each.metadata:
            yield from flags_of(each.metadata["group"])


def build(kind: Callable[..., _T], args: argparse.Namespace) -> _T:
    """Options with every field that a single flag sets; the others have their defaults."""
    found: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    values = {
        each.name: each.metadata["read"](getattr(args, each.metadata["flags"][0].name))
        for each in found
        if "read" in each.metadata
    }
    groups = {each.name: build(each.metadata["group"], args) for each in found if "group" in each.metadata}
    return kind(**values, **groups)
