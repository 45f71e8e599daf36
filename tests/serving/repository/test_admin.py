"""Loads on request wait on threads of their own."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from modelyard.serving import LoadOptions, ModelConfig, Servable, WatchOptions, load_servable
from modelyard.serving.repository import Admin, ModelManager
from tests.support.models import publish_affine

#: More than the event loop has threads, which are for what must not wait: rollbacks, polls and the stop.
MODELS = 40
WAIT_S = 60.0


def test_loads_that_hang_keep_nothing_else_waiting(tmp_path: Path) -> None:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    configs = [ModelConfig(name=f"m{index}", base_path=tmp_path / "m") for index in range(MODELS)]
    begun, release = threading.Event(), threading.Event()

    def load(config: ModelConfig, version: int, path: Path) -> Servable:
        begun.set()
        assert release.wait(WAIT_S)
        return load_servable(config.name, version, path, LoadOptions())

    async def scenario() -> None:
        admin = Admin(manager)
        loads = [asyncio.create_task(admin.load(config.name)) for config in configs]
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        try:
            assert await asyncio.wait_for(asyncio.to_thread(lambda: manager.ready("m0")), WAIT_S / 6) is False
        finally:
            release.set()
        await asyncio.gather(*loads)

    manager = ModelManager(configs, load, WatchOptions(explicit=True))
    asyncio.run(scenario())
    assert all(manager.ready(config.name) for config in configs)
    assert manager.stop()
