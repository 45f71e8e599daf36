"""Which models to serve: TensorFlow Serving's model config, from flags, a file or a reload request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from modelyard.artifact import ModelVersion
from modelyard.errors import ConfigurationError
from modelyard.wire import serving_pb2

_M = TypeVar("_M", bound=Message)
_PLATFORM = "tensorflow"


@dataclass(frozen=True, kw_only=True)
class VersionPolicy:
    """Which of the versions in a base path to serve.

    Attributes:
        latest: How many of the newest; None for all.
        specific: These and no others; empty where the policy is another.
    """

    latest: int | None = 1
    specific: frozenset[int] = frozenset()

    def aspired(self, versions: Sequence[ModelVersion]) -> Sequence[ModelVersion]:
        """The versions to serve.

        Args:
            versions: What the base path holds, oldest first.
        """
        if self.specific:
            return [version for version in versions if version.number in self.specific]
        return versions if self.latest is None else versions[-self.latest :]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model to serve.

    Attributes:
        name: Its name in requests.
        base_path: The directory with its versions.
        policy: Which of them to serve.
        labels: Version labels.
    """

    name: str
    base_path: Path
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = field(default_factory=dict)


def read_text_proto(path: Path, message: _M, *, flag: str) -> _M:
    """Reads a configuration file in protobuf text format.

    Args:
        path: The file.
        message: An empty message of the file's type, which is filled.
        flag: The flag that named the file, for errors.

    Raises:
        ConfigurationError: The file cannot be read, or is not such a message.
    """
    try:
        return text_format.Parse(path.read_text("utf-8"), message)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"{flag}={path} cannot be read: {exc}") from exc
    except text_format.ParseError as exc:
        raise ConfigurationError(
            f"{flag}={path} is not a {message.DESCRIPTOR.full_name} in protobuf text format: {exc}"
        ) from exc


def models_from_message(config: serving_pb2.ModelServerConfig) -> tuple[ModelConfig, ...]:
    """Decodes and checks a model config.

    Args:
        config: The message.

    Raises:
        ConfigurationError: Another kind of config than a model list, a model
            without a name or with a relative path or an unknown platform, or
            the same model twice.
    """
    kind = config.WhichOneof("config")
    if kind == "custom_model_config":
        raise ConfigurationError(
            f"ServerModelConfig type not supported by this server: received {kind}; expected model_config_list."
        )
    models: dict[str, ModelConfig] = {}
    for item in config.model_config_list.config:
        if not item.name:
            raise ConfigurationError(f"A model with base_path {item.base_path!r} has no name.")
        if item.name in models:
            raise ConfigurationError(f"Illegal to list model {item.name} multiple times in config list")
        models[item.name] = _model(item)
    return tuple(models.values())


def _model(item: serving_pb2.ModelConfig) -> ModelConfig:
    base_path = Path(item.base_path.removeprefix("file://"))
    if not base_path.is_absolute():
        raise ConfigurationError(
            f"Expected model {item.name} to have an absolute path or URI; got base_path()={item.base_path}"
        )
    platform = item.model_platform or _PLATFORM
    if platform != _PLATFORM:
        raise ConfigurationError(
            f"Model {item.name} has model_platform {platform!r}, which is not supported; expected {_PLATFORM!r}."
        )
    return ModelConfig(name=item.name, base_path=base_path, policy=_policy(item), labels=dict(item.version_labels))


def _policy(item: serving_pb2.ModelConfig) -> VersionPolicy:
    policy = item.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy(latest=None)
    if kind == "specific":
        if not policy.specific.versions:
            raise ConfigurationError(f"Model {item.name} has a version policy 'specific' without versions.")
        return VersionPolicy(specific=frozenset(policy.specific.versions))
    # Upstream takes 0 for its default of one.
    return VersionPolicy(latest=policy.latest.num_versions or 1)
