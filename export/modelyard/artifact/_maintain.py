"""Changes to a model repository: labels, promotion, removal."""

from __future__ import annotations

import shlex
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from modelyard.artifact._catalog import find_version, verify_version, versions_of
from modelyard.artifact._checksums import entries_below
from modelyard.artifact._labels import check_label, one_at_a_time, read_labels, replace_labels
from modelyard.artifact._manifest import parse_manifest, read_manifest_bytes
from modelyard.artifact._publish_remote import STAGING_PREFIX, collect_remote, remove_remote
from modelyard.artifact._remote import Location, RemotePath, RemoteVersion, replace_file
from modelyard.artifact._repository import AnyVersion
from modelyard.artifact._signing import SIGNATURE_NAME, Signer
from modelyard.errors import ArtifactError, ConfigurationError, ModelNotFoundError, PublishError

DEFAULT_LABEL = "stable"
#: An export that is still at work has touched its staging directory since.
STALE_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a garbage collection removed: numbers of versions, and staging directories that a crash had left."""

    versions: tuple[int, ...]
    staging: tuple[str, ...]


def set_label(model_dir: Location, label: str, version: str | int) -> AnyVersion:
    """Lets a label name a version.

    Args:
        model_dir: ``<repository>/<model>``.
        label: The label.
        version: Its number, another label, or ``latest``.

    Raises:
        ConfigurationError: The label is not possible.
        ModelNotFoundError: There is no such version.
        PublishError: The labels cannot be written.
    """
    check_label(label)
    with one_at_a_time(model_dir):
        found = find_version(model_dir, version)
        replace_labels(model_dir, {**read_labels(model_dir), label: found.number})
    return found


def remove_label(model_dir: Location, label: str) -> None:
    """Removes a label; the version stays.

    Args:
        model_dir: ``<repository>/<model>``.
        label: The label.

    Raises:
        ModelNotFoundError: There is no such label.
        PublishError: The labels cannot be written.
    """
    with one_at_a_time(model_dir):
        labels = read_labels(model_dir)
        if label not in labels:
            raise ModelNotFoundError(f"Model {model_dir.name!r} has no label {label!r}; it has {sorted(labels)}.")
        replace_labels(model_dir, {name: number for name, number in labels.items() if name != label})


def promote(model_dir: Location, version: str | int, *, label: str = DEFAULT_LABEL) -> AnyVersion:
    """Lets a label name a version, after every checksum of it was recomputed.

    Args:
        model_dir: ``<repository>/<model>``.
        version: Its number, another label, or ``latest``.
        label: The label.

    Raises:
        ConfigurationError: The label is not possible.
        IntegrityError: A file of the version is missing or damaged.
        ManifestError: Its manifest is not valid.
        ModelNotFoundError: There is no such version.
        PublishError: The labels cannot be written.
    """
    found = find_version(model_dir, version)
    verify_version(found)
    # By its number: a version that is published meanwhile is "latest", too.
    return set_label(model_dir, label, str(found.number))


def remove_version(model_dir: Location, version: str | int) -> AnyVersion:
    """Removes a version that no label names.

    Args:
        model_dir: ``<repository>/<model>``.
        version: Its number or ``latest``.

    Raises:
        ConfigurationError: A label names it.
        ModelNotFoundError: There is no such version.
        PublishError: It cannot be removed.
    """
    with one_at_a_time(model_dir):
        found = find_version(model_dir, version)
        labels = sorted(label for label, number in read_labels(model_dir).items() if number == found.number)
        if labels:
            raise ConfigurationError(
                f"Version {found.number} of {model_dir.name!r} is labelled {', '.join(labels)}; "
                "move or remove the label first."
            )
        _remove(found)
    return found


def collect(model_dir: Location, *, keep: int, stale_s: float = STALE_S) -> Collected:
    """Removes all but the newest versions, and what crashed exports left.

    A version that a label names stays, however old.

    Args:
        model_dir: ``<repository>/<model>``.
        keep: How many of the newest stay; at least 1.
        stale_s: Staging directories untouched for this many seconds are removed.

    Raises:
        ConfigurationError: ``keep`` is less than 1.
        ArtifactError: The folder cannot be read.
        ManifestError: The file of labels is damaged.
        ModelNotFoundError: There is no such model.
        PublishError: Something cannot be removed.
    """
    if keep < 1:
        raise ConfigurationError(f"keep is {keep}; expected at least 1.")
    with one_at_a_time(model_dir):
        versions = versions_of(model_dir)
        labelled = set(read_labels(model_dir).values())
        old = [version for version in versions[:-keep] if version.number not in labelled]
        for version in old:
            _remove(version)
        numbers = tuple(version.number for version in old)
        if isinstance(model_dir, RemotePath):
            return Collected(versions=numbers, staging=collect_remote(model_dir, stale_s=stale_s))
        stale = []
        for path in sorted(model_dir.glob(f"{STAGING_PREFIX}*")):
            # What an exporter published or gave up meanwhile is gone.
            if (newest := _newest(path)) is not None and time.time() - newest >= stale_s:
                _remove_tree(path)
                stale.append(path.name)
        return Collected(versions=numbers, staging=tuple(stale))


def sign_version(model_dir: Location, version: str | int, signer: Signer) -> AnyVersion:
    """Signs the manifest of a version, after every checksum of it was recomputed.

    Args:
        model_dir: ``<repository>/<model>``.
        version: Its number, a label, or ``latest``.
        signer: See :func:`load_signing_key`.

    Raises:
        ArtifactError: The store that holds it cannot be reached, or refuses; or its manifest changed meanwhile.
        IntegrityError: A file of the version is missing or damaged.
        ManifestError: Its manifest is not valid.
        ModelNotFoundError: There is no such version.
        PublishError: The signature cannot be written.
    """
    found: AnyVersion = find_version(model_dir, version)
    manifest = verify_version(found)
    content = read_manifest_bytes(found.path)
    if parse_manifest(content, found.path) != manifest:
        raise ArtifactError(f"{found.path} changed while it was verified: it is not signed. Sign it again.")
    # Staged outside of the version: a server that checks it meanwhile finds no file in excess.
    staged = None if isinstance(found, RemoteVersion) else found.path.parent
    replace_file(found.path / SIGNATURE_NAME, signer(content), staged=staged)
    return found


def _newest(path: Path) -> float | None:
    try:
        own = path.lstat()
        # No export makes anything else, and rmtree removes nothing else.
        if not stat.S_ISDIR(own.st_mode):
            return None
        # What is removed meanwhile is missing, but then it is at work: the folder that it was in is new.
        return max([own.st_mtime, *(entry.st_mtime for entry in entries_below(path).values())])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ArtifactError as exc:
        raise _irremovable(path, exc.message) from exc


def _remove(version: AnyVersion) -> None:
    """Takes a version out of sight in one step, then deletes it: no reader sees half of one."""
    if isinstance(version, RemoteVersion):
        remove_remote(version)
        return
    try:
        hidden = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=version.path.parent))
        version.path.rename(hidden / version.path.name)
    except OSError as exc:
        raise PublishError(f"Cannot remove {version.path}: {exc}") from exc
    _remove_tree(hidden)


def _remove_tree(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError) as exc:
        raise _irremovable(path, str(exc)) from exc


def _irremovable(path: Path, reason: str) -> PublishError:
    return PublishError(
        f"Cannot remove {path}, which no server looks at any more: {reason.rstrip('.')}. Remove it yourself: "
        f"rm -r {shlex.quote(str(path))}"
    )
