"""Folders of TFRecord files: ``<split>-00000-of-00008.tfrecord`` with ``image/encoded`` and ``image/class/label``."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError

IMAGE_KEY = "image/encoded"
LABEL_KEY = "image/class/label"
MANIFEST_FILE = "manifest.json"
SCHEMA = 1
_NAME = re.compile(r"(?P<split>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})(\.tfrecords?|\.record)?")
_LENGTH = struct.Struct("<Q")
# Of a record: 8 bytes of length, 4 of its checksum, the data, 4 of their checksum.
_BEFORE, _AFTER = 12, 4


@dataclass(frozen=True, kw_only=True)
class RecordSplit:
    """The files of one split, how many records each has, and the size of its images, where all have the same."""

    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    size: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """Records in all."""
        return sum(self.counts)

    @property
    def bytes(self) -> int:
        """Size of the files in all."""
        return sum(path.stat().st_size for path in self.paths)


@dataclass(frozen=True, kw_only=True)
class RecordFolder:
    """A folder of TFRecord files with images and labels, by split; without a manifest, classes have no names."""

    root: Path
    splits: Mapping[str, RecordSplit]
    class_names: tuple[str, ...]

    def split(self, name: str) -> RecordSplit:
        """The files of one split, such as ``train``.

        Raises:
            ConfigurationError: There is no such split, or it has no records.
        """
        if name not in self.splits:
            raise ConfigurationError(
                f"Unknown split {name!r} of {self.root}; expected one of {', '.join(sorted(self.splits))}."
            )
        if not self.splits[name].count:
            raise ConfigurationError(f"The split {name!r} of {self.root} has no records.")
        return self.splits[name]


def open_records(root: Path | str) -> RecordFolder:
    """Lists a folder of TFRecord files, made by ``modelyard data convert`` or by anyone else.

    With a ``manifest.json`` the counts come from there; without one, the length of every record is read, which costs
    one read for each record: keep the result.

    Raises:
        DatasetNotFoundError: There is no such folder, or it has no files named ``<split>-00000-of-00008.tfrecord``.
        TrainingError: A file of the set is missing or cut off, or the manifest is not valid.
    """
    root = Path(root)
    if not root.is_dir():
        raise DatasetNotFoundError(f"There is no folder {root}; make one with: modelyard data convert SOURCE {root}")
    found: dict[str, dict[int, Path]] = {}
    announced: dict[str, int] = {}
    for path in sorted(root.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found.setdefault(match["split"], {})[int(match["index"])] = path
            announced[match["split"]] = int(match["count"])
    if not found:
        raise DatasetNotFoundError(
            f"The folder {root} has no files named like train-00000-of-00008.tfrecord. An image folder becomes such "
            f"files with: modelyard data convert {root} OUTPUT"
        )
    for name, paths in found.items():
        missing = sorted(set(range(announced[name])) - set(paths))
        if missing:
            raise TrainingError(
                f"The split {name!r} of {root} lacks file {missing[0]} of {announced[name]}; {len(missing)} of its "
                "files are missing. Copy or convert it again."
            )
    manifest = _read_manifest(root / MANIFEST_FILE)
    splits = {name: _split(name, [paths[index] for index in sorted(paths)], manifest) for name, paths in found.items()}
    return RecordFolder(root=root, splits=splits, class_names=manifest.class_names)


def list_records(paths: Sequence[Path]) -> RecordFolder:
    """TFRecord files, of one folder or of several, as one split, ``all``.

    Raises:
        ConfigurationError: Folders number their classes differently.
    """
    folders = dict.fromkeys(path.parent for path in paths)
    manifests = {folder: _read_manifest(folder / MANIFEST_FILE) for folder in folders}
    root, *others = manifests
    names = manifests[root].class_names
    for other in others:
        if manifests[other].class_names != names:
            raise ConfigurationError(
                f"{root} and {other} number their classes differently, by the {MANIFEST_FILE} of each. Read one of "
                "them, or convert them again from one folder."
            )
    parts = [
        _split("all", [path for path in paths if path.parent == folder], manifest)
        for folder, manifest in manifests.items()
    ]
    counts = {path: count for part in parts for path, count in zip(part.paths, part.counts, strict=True)}
    split = RecordSplit(paths=tuple(paths), counts=tuple(counts[path] for path in paths), size=None)
    return RecordFolder(root=root, splits={"all": split}, class_names=names)


def _split(name: str, paths: list[Path], manifest: _Manifest) -> RecordSplit:
    counts = []
    for path in paths:
        size, count = manifest.files.get(path.name, (None, 0))
        if size is not None and size != path.stat().st_size:
            raise TrainingError(
                f"{path} has {path.stat().st_size} bytes; its manifest says {size}. Copy or convert it again."
            )
        counts.append(count_records(path) if size is None else count)
    return RecordSplit(paths=tuple(paths), counts=tuple(counts), size=manifest.image_sizes.get(name))


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    """What a conversion says of its files: bytes and records by name, and the size of the images of a split."""

    class_names: tuple[str, ...] = ()
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    image_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def _read_manifest(path: Path) -> _Manifest:
    """Reads the manifest of a conversion; without one, it is empty."""
    if not path.is_file():
        return _Manifest()
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        schema, splits = manifest["schema"], manifest["splits"]
        if schema != SCHEMA:
            raise ValueError(f"it has schema {schema!r}; expected schema {SCHEMA}")
        sizes = {name: split["image_size"] for name, split in splits.items() if split.get("image_size") is not None}
        return _Manifest(
            class_names=tuple(manifest.get("class_names", ())),
            files={
                file["name"]: (int(file["bytes"]), int(file["records"]))
                for split in splits.values()
                for file in split["files"]
            },
            image_sizes={name: (int(size["height"]), int(size["width"])) for name, size in sizes.items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise TrainingError(
            f"{path} is no manifest of a conversion ({exc!r}); remove it, and the records are counted instead."
        ) from exc


def count_records(path: Path) -> int:
    """Counts the records of a TFRecord file by their lengths alone; checksums are left to the reader."""
    size, position, count = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(_LENGTH.size)
            length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else size
            position += _BEFORE + length + _AFTER
            if position > size:
                raise TrainingError(
                    f"{path} ends within record {count}: it is cut off, compressed or no TFRecord file. "
                    "Copy or convert it again, without compression."
                )
            count += 1
    return count
