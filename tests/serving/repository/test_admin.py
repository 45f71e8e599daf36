"""Loads on request wait on threads of their own; what is wrong with a configuration is said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from modelyard.artifact import replace_file
from modelyard.serving import LoadOptions, ModelConfig, Servable, WatchOptions, load_servable
from modelyard.serving.repository import Admin, ModelManager
from tests.support.models import publish_affine
from tests.support.waiting import until_async

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


def test_what_is_wrong_with_a_file_is_said_once_however_often_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, reads = tmp_path / "models.config", list[Path]()
    admin = Admin(ModelManager((), lambda *_: pytest.fail("nothing to load"), WatchOptions()))
    read = admin._read_file

    def counted(path: Path) -> Sequence[ModelConfig]:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(admin, "_read_file", counted)

    async def scenario() -> None:
        polling = asyncio.create_task(admin.poll_file(file, 0.001))
        for text in (b"model_config_list {", b"custom_model_config {}"):
            replace_file(file, text)
            reads.clear()
            await until_async(lambda: len(reads) > 3)
        polling.cancel()

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records if "stays as it was" in record.getMessage()]
    assert len(said) == 2
    assert "in protobuf text format" in said[0] and "type not supported" in said[1]
