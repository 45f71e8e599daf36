"""How base paths are watched."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How base paths are watched and versions are swapped.

    Attributes:
        poll_wait_s: Seconds between two looks; 0 looks once, a negative number never.
        resource_preserving: Unload the old version before the new one is
            loaded: half the memory, and a gap in between.
        max_load_retries: How often a load that failed for an unexpected reason
            is tried again. Damaged or unsuitable files are not: they are tried
            again when they change.
        retry_interval_s: Seconds between two tries.
        load_slots: How many versions may load at the same time, over all models.
        explicit: Nothing is loaded or unloaded but on request.
        cache_dir: Where copies of versions from object stores are kept; None
            for a temporary folder.
    """

    poll_wait_s: float = 1.0
    resource_preserving: bool = False
    max_load_retries: int = 5
    retry_interval_s: float = 60.0
    load_slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(1))
    explicit: bool = False
    cache_dir: Path | None = None
