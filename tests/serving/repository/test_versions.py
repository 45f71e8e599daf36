"""The decisions of upstream's two swap policies, as data; and version policies on directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelyard.artifact import RemotePath, list_versions
from modelyard.serving import VersionPolicy
from modelyard.serving.repository import VersionState, file_stamp, file_stats
from modelyard.serving.repository._versions import surplus
from modelyard.wire import serving_pb2
from tests.support.hostile import nested_folders


def test_states_are_those_of_the_protocol() -> None:
    assert {each.name: each.value for each in VersionState} == dict(serving_pb2.ModelVersionStatus.State.items())


@pytest.mark.parametrize(
    ("aspired", "available", "preserving_availability", "preserving_resources"),
    [
        # Nothing is aspired: everything goes, the oldest first.
        ((), (1, 2, 3), (1, 2, 3), (1, 2, 3)),
        # An aspired version answers: what is not aspired goes.
        ((3,), (1, 2, 3), (1, 2), (1, 2)),
        ((2, 3), (1, 2), (1,), (1,)),
        # None does yet: the newest of the old ones bridges the gap, where memory does not matter more.
        ((3,), (2,), (), (2,)),
        ((3,), (1, 2), (1,), (1, 2)),
        ((3, 4), (0, 1, 2), (0, 1), (0, 1, 2)),
        # Back to an older version is no different.
        ((1,), (2, 3), (2,), (2, 3)),
        # Nothing to unload.
        ((1, 2), (1, 2), (), ()),
        ((1, 2), (), (), ()),
        ((), (), (), ()),
    ],
)
def test_what_is_unloaded_first(
    aspired: tuple[int, ...],
    available: tuple[int, ...],
    preserving_availability: tuple[int, ...],
    preserving_resources: tuple[int, ...],
) -> None:
    assert surplus(aspired, available, resource_preserving=False) == preserving_availability
    assert surplus(aspired, available, resource_preserving=True) == preserving_resources


@pytest.mark.parametrize(
    ("policy", "names", "expected"),
    [
        (VersionPolicy(), ("non_numerical_child", "42", "17"), ["42"]),
        (VersionPolicy(latest=None), ("non_numerical_child", "42", "17"), ["17", "42"]),
        (VersionPolicy(latest=3), ("non_numerical_child", "42", "33", "30", "21", "17"), ["30", "33", "42"]),
        (VersionPolicy(latest=3), ("1",), ["1"]),
        (VersionPolicy(specific=frozenset({17, 30})), ("42", "33", "30", "21", "00017"), ["00017", "30"]),
        (VersionPolicy(specific=frozenset()), ("42", "33"), []),
        (VersionPolicy(specific=frozenset({7})), ("42", "33"), []),
        (VersionPolicy(latest=2), ("1", "02", "3", "5", "8", "13"), ["8", "13"]),
        (VersionPolicy(specific=frozenset({2, 5})), ("1", "02", "3", "5", "8", "13"), ["02", "5"]),
        (VersionPolicy(latest=None), ("20170111173521", "0"), ["0", "20170111173521"]),
        (VersionPolicy(latest=None), ("2.denied", "-1", "1e3", "99999999999999999999"), []),
        (VersionPolicy(), (), []),
    ],
)
def test_what_is_aspired(tmp_path: Path, policy: VersionPolicy, names: tuple[str, ...], expected: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert [version.path.name for version in policy.aspired(list_versions(tmp_path))] == expected


def test_of_several_names_for_one_number_one_counts(tmp_path: Path) -> None:
    for name in ("0001", "001", "00001", "non_numerical_child"):
        (tmp_path / name).mkdir()
    (version,) = VersionPolicy(latest=None).aspired(list_versions(tmp_path))
    assert version.number == 1


def test_a_stamp_changes_with_the_files(tmp_path: Path) -> None:
    file = tmp_path / "variables" / "data"
    file.parent.mkdir()
    file.write_bytes(b"one")
    before = file_stamp(tmp_path)
    assert file_stamp(tmp_path) == before
    file.write_bytes(b"three")
    after = file_stamp(tmp_path)
    assert after != before
    (tmp_path / "more").touch()
    assert file_stamp(tmp_path) != after
    assert file_stamp(tmp_path / "missing") == ()


def test_a_stamp_changes_with_the_objects_of_a_store(tmp_path: Path) -> None:
    place = RemotePath(f"memory://{tmp_path.name}/1")
    assert file_stamp(place) == ()
    (place / "variables" / "data").write_bytes(b"one")
    before = file_stamp(place)
    assert len(before) == 1
    (place / "more").write_bytes(b"")
    assert len(file_stamp(place)) == 2


def test_the_stamp_of_what_cannot_be_listed_is_none(tmp_path: Path) -> None:
    """It raises nothing: the model's other versions would not be looked at."""
    (tmp_path / "1" / "folder").mkdir(parents=True)
    (tmp_path / "1" / "model.tflite").touch()
    (tmp_path / "1" / "loop").symlink_to("loop")
    assert len(file_stats(tmp_path / "1")) == 1
    with nested_folders(tmp_path / "1" / "folder"):
        assert file_stamp(tmp_path / "1") == ()


def test_what_is_no_version_is_in_no_version_s_way(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").touch()
    (tmp_path / "3").symlink_to("3")
    (tmp_path / "4").symlink_to("nowhere")
    (tmp_path / "5").symlink_to("1")
    os.mkfifo(tmp_path / "6")
    assert [version.number for version in list_versions(tmp_path)] == [1, 5]
