"""Version labels from ``labels.json``, as far as they may be answered to."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class FileLabels:
    """What ``labels.json`` of one model says, and which of it is in force.

    A label is given to a version that can answer, never to another: one that
    moves stays where it was until the version it moves to is loaded.
    """

    def __init__(self) -> None:
        self._wanted: Mapping[str, int] = {}
        # Replaced, never changed: readers need no lock.
        self._assigned: Mapping[str, int] = {}

    @property
    def assigned(self) -> Mapping[str, int]:
        """The labels in force."""
        return self._assigned

    @property
    def pending(self) -> Mapping[str, int]:
        """Labels that the file gives to versions that cannot answer."""
        return {label: number for label, number in self._wanted.items() if self._assigned.get(label) != number}

    def want(self, labels: Mapping[str, int]) -> None:
        """Takes over what the file says now.

        Args:
            labels: Versions by label.
        """
        self._wanted = dict(labels)

    def needed(self) -> frozenset[int]:
        """The versions that must be loaded for the labels: where they are, and where they are to be."""
        stay = {number for label, number in self._assigned.items() if label in self._wanted}
        return frozenset(stay | set(self._wanted.values()))

    def settle(self, available: Collection[int]) -> bool:
        """Moves every label that can be moved.

        Args:
            available: The versions that can answer.

        Returns:
            Whether a label was given, moved or taken away.
        """
        assigned = {}
        for label, wanted in self._wanted.items():
            number = wanted if wanted in available else self._assigned.get(label)
            if number is not None and number in available:
                assigned[label] = number
        changed = assigned != self._assigned
        self._assigned = assigned
        return changed
