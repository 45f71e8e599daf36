"""Changes of the configuration while the server runs: reload requests and the polled config file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from modelyard.artifact import Location
from modelyard.errors import ConfigurationError, FixedConfigurationError, ModelNotFoundError, ServerError
from modelyard.serving.config import Complaints, ModelConfig, models_from_message, models_of_repository, read_text_proto
from modelyard.serving.repository._manager import ModelManager
from modelyard.wire import serving_pb2

_LOG = logging.getLogger("modelyard.serving")

#: Longest wait for the versions of a new model to be tried.
_RELOAD_TIMEOUT_S = 600.0
#: Loads and unloads on request that are at work at the same time; further ones wait.
_THREADS = 8


class Admin:
    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self._repository: Location | None = None
        #: Changes of the configuration happen one after the other, what files say among themselves, and loads and
        #: unloads of each model.
        self._changing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._controlling: dict[str, asyncio.Lock] = {}
        #: Of loads and unloads on request: on the event loop's, rollbacks, reloads and the stop would wait behind them.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="admin")

    async def reload_message(self, config: serving_pb2.ModelServerConfig) -> None:
        if self._repository is not None:
            raise FixedConfigurationError(
                f"The models are those of --model_repository={self._repository}, which is polled: "
                "a reload would be undone. For labels use labels.json (modelyard repo label); for reloads start the "
                "server with --model_control_mode=none, or with --model_config_file."
            )
        if config.WhichOneof("config") != "model_config_list":
            # Upstream takes no action on an empty message: it must not unload everything.
            raise ConfigurationError(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only model_config_list is "
                f"supported; received {config.WhichOneof('config') or 'nothing'}."
            )
        self._check_platforms(config)
        async with self._changing:
            await self.reload(models_from_message(config))

    async def load(self, name: str) -> None:
        """Loads a model, and returns when it is loaded."""
        try:
            await self._control(self._manager.load_model, name)
        except ModelNotFoundError:
            if self._repository is None:
                raise
            # It may have been put there since the last look.
            await self._apply(partial(self._read_repository, self._repository))
            await self._control(self._manager.load_model, name)

    async def unload(self, name: str) -> None:
        """Unloads a model, and returns when that is done."""
        await self._control(self._manager.unload_model, name)

    async def _control(self, change: Callable[[str], None], name: str) -> None:
        # An unknown name, which is refused, needs no lock.
        lock = self._controlling.setdefault(name, asyncio.Lock()) if name in self._manager.names else asyncio.Lock()
        async with lock:
            await asyncio.get_running_loop().run_in_executor(self._threads, change, name)

    def _check_platforms(self, config: serving_pb2.ModelServerConfig) -> None:
        platforms = {model.name: model.platform for model in self._manager.configs}
        for item in config.model_config_list.config:
            platform = platforms.get(item.name, item.model_platform)
            if item.model_platform not in ("", platform):
                raise ConfigurationError(
                    f"Illegal to change a model's platform. For model {item.name} platform was {platform} and new "
                    f"platform requested is {item.model_platform}"
                )

    async def reload(self, configs: Sequence[ModelConfig], *, timeout_s: float = _RELOAD_TIMEOUT_S) -> None:
        """Replaces the configuration, off the event loop."""
        try:
            await asyncio.to_thread(self._manager.reload, configs, timeout_s=timeout_s)
        except ServerError as exc:
            _LOG.error("configuration replaced, but %s", exc.message)
            raise
        _LOG.info("configuration replaced; the models are: %s", ", ".join(sorted(self._manager.names)) or "none")

    async def poll_file(self, path: Location, wait_s: float) -> None:
        """Applies a model config file again and again; what is wrong with it is logged once, and nothing changes.

        As upstream, the file wins over reload requests.
        """
        await self._poll(lambda: self._read_file(path), wait_s, str(path))

    async def poll_repository(self, repository: Location, wait_s: float) -> None:
        """Serves what models a repository has, again and again; as :meth:`poll_file` does.

        Meanwhile, reload requests are refused.
        """
        self._repository = repository
        await self._poll(lambda: self._read_repository(repository), wait_s, str(repository))

    async def reload_files(self, path: Location | None, repository: Location | None) -> str:
        """Reads what says which models there are again, and looks for versions of all of them."""
        said = ""
        reads = [
            *([] if path is None else [partial(self._read_file, path)]),
            *([] if repository is None else [partial(self._read_repository, repository)]),
        ]
        for read in reads:
            said = await self._apply(read)
        self._manager.look()
        return said

    async def _apply(self, read: Callable[[], Sequence[ModelConfig]]) -> str:
        """Reads what says which models there are, and serves these; returns what is different then."""
        # An older answer must not come after a newer one.
        async with self._reading:
            configs = await asyncio.to_thread(read)
            said = _difference(self._manager.configs, configs)
            if said:
                # The next change may come while these load.
                await self.reload(configs, timeout_s=0.0)
            return said

    async def _poll(self, read: Callable[[], Sequence[ModelConfig]], wait_s: float, what: str) -> None:
        complaints = Complaints(_LOG)
        while True:
            await asyncio.sleep(wait_s)
            try:
                with complaints.about("the configuration stays as it was"):
                    await self._apply(read)
            # If this task ended, changes of the file would go unnoticed.
            except Exception:
                _LOG.exception("%s could not be applied; trying again", what)

    def _read_repository(self, repository: Location) -> Sequence[ModelConfig]:
        models = models_of_repository(repository)
        if not models and self._manager.names:
            # Nothing is unloaded because a mount is away: what is left then is an empty folder.
            raise ConfigurationError(
                f"{repository} holds no model any more; what was served stays until it holds one, or the server ends."
            )
        return models

    def _read_file(self, path: Location) -> Sequence[ModelConfig]:
        message = read_text_proto(path, serving_pb2.ModelServerConfig(), flag="--model_config_file")
        if message.WhichOneof("config") is None:
            # A file that is being written is empty for a moment.
            raise ConfigurationError(
                f"{path} is empty; expected a model_config_list, which may itself be empty: model_config_list {{}}"
            )
        self._check_platforms(message)
        return models_from_message(message)


def _difference(before: Sequence[ModelConfig], after: Sequence[ModelConfig]) -> str:
    old, new = ({config.name: config for config in configs} for configs in (before, after))
    names = {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
    }
    return "; ".join(f"models {what}: {', '.join(found)}" for what, found in names.items() if found)
