"""The models to serve: TensorFlow Serving's model config, from flags, a file, a repository or a reload request."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from modelyard.artifact import (
    AnyVersion,
    Location,
    RemotePath,
    is_folder,
    is_routable,
    list_models,
    list_versions,
    locate,
)
from modelyard.console import printable
from modelyard.errors import ArtifactError, ConfigurationError, ModelNotFoundError
from modelyard.serving.backends import Runtime, available_runtimes
from modelyard.serving.config._prediction_log import PredictionLogConfig, prediction_log
from modelyard.wire import serving_pb2

_LOG = logging.getLogger("modelyard.serving")

#: Longest name of a model or a label, in bytes.
_MAX_NAME = 255
#: The only platform that upstream knows: here, whatever files a version has.
PLATFORM = "tensorflow"
#: Platforms, Triton's names among them, and the runtime that each requires.
_PLATFORMS: Mapping[str, Runtime | None] = {
    PLATFORM: None,
    "tensorflow_savedmodel": None,
    "onnx": "onnxruntime",
    "onnxruntime_onnx": "onnxruntime",
    "openvino": "openvino",
    "tflite": "litert",
}


@dataclass(frozen=True, kw_only=True)
class VersionPolicy:
    """Which of the versions in a base path to serve.

    Attributes:
        latest: How many of the newest; None for all.
        specific: These and no others; None where the policy is another.
    """

    latest: int | None = 1
    specific: frozenset[int] | None = None

    def aspired(self, versions: Sequence[AnyVersion], labelled: Collection[int] = frozenset()) -> Sequence[AnyVersion]:
        """The versions to serve.

        Args:
            versions: What the base path holds, oldest first.
            labelled: Those that ``labels.json`` names: they are served whatever the policy is.
        """
        if self.specific is None and self.latest is None:
            return versions
        newest = frozenset(version.number for version in versions[-(self.latest or 1) :])
        wanted = newest if self.specific is None else self.specific
        return [version for version in versions if version.number in wanted or version.number in labelled]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model to serve.

    Attributes:
        name: Its name in requests.
        base_path: The directory with its versions, here or in an object store.
        policy: Which of them to serve.
        labels: Version labels.
        platform: The ``model_platform`` that it was configured with.
        prediction_log: What of its requests is logged; None for nothing.
    """

    name: str
    base_path: Location
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = field(default_factory=dict)
    platform: str = PLATFORM
    prediction_log: PredictionLogConfig | None = None

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that its platform requires; None for any."""
        return _PLATFORMS[self.platform]


def models_from_message(config: serving_pb2.ModelServerConfig) -> tuple[ModelConfig, ...]:
    kind = config.WhichOneof("config")
    if kind == "custom_model_config":
        raise ConfigurationError(
            f"ServerModelConfig type not supported: received {kind}. Only model_config_list is supported."
        )
    models: dict[str, ModelConfig] = {}
    for item in config.model_config_list.config:
        if not item.name:
            raise ConfigurationError(f"A model with base_path {item.base_path!r} has no name.")
        check_name(item.name, "model")
        for label in item.version_labels:
            check_name(label, "version label")
        if item.name in models:
            raise ConfigurationError(f"Illegal to list model {item.name} multiple times in config list")
        models[item.name] = _model(item)
    return tuple(models.values())


def models_of_repository(repository: Location) -> tuple[ModelConfig, ...]:
    """One model for each folder of a repository that has a version, and a name that requests can have."""
    try:
        names = list_models(repository)
        if not names:
            _check_repository(repository)
    except (ModelNotFoundError, ArtifactError) as exc:
        raise ConfigurationError(f"--model_repository={repository}: {exc.message}") from exc
    except OSError as exc:
        raise ConfigurationError(f"--model_repository={repository} cannot be read: {exc.strerror or exc}.") from exc
    return tuple(ModelConfig(name=name, base_path=repository / name) for name in names if _is_served(repository, name))


# Logged once, not at every poll of the repository.
@lru_cache(maxsize=1000)
def _is_served(repository: Location, name: str) -> bool:
    config = repository / name / "config.pbtxt"
    if is_routable(name):
        if not isinstance(config, RemotePath) and config.is_file():
            _LOG.warning(
                "%s is not read: inputs, outputs and the batch dimension are the model's own; what stands for its "
                "other fields is in docs/migrating-from-triton.md",
                printable(str(config)),
            )
        return True
    _LOG.warning(
        "%s is not served: /v1/models/NAME cannot route the name %r; expected letters of ASCII, digits and ._~- "
        "alone. Rename the folder.",
        printable(str(repository / name)),
        name,
    )
    return False


def not_models(repository: Location, models: Sequence[ModelConfig]) -> list[str]:
    """A sentence for each folder of a repository that looks like a model and is none."""
    if not models:
        return [f"{repository} holds no model yet; expected folders {repository / 'NAME'}/1 with a model's files"]
    if isinstance(repository, RemotePath):
        return []
    others = sorted({path for path in repository.iterdir() if is_folder(path)} - {model.base_path for model in models})
    hints = [(folder, describe_base_path(folder)) for folder in others if not folder.name.startswith(".")]
    return [printable(f"{folder} is no model: it {hint}") for folder, hint in hints if hint]


def _check_repository(repository: Location) -> None:
    # An empty repository may fill; a folder of another kind is an error.
    hint = _instead_of_versions(repository)
    if not hint and list_versions(repository):
        hint = (
            f"holds versions, not models: it is one model. Use --model_base_path={repository} --model_name=NAME, or "
            "--model_repository with the folder above it for all the models there"
        )
    if hint:
        raise ConfigurationError(f"{repository} {hint}.")


def describe_base_path(base_path: Location) -> str:
    """What a base path without versions holds instead, and what to do about it; may be empty."""
    try:
        hint = _instead_of_versions(base_path)
        models = () if hint else list_models(base_path)
    except (OSError, ArtifactError, ModelNotFoundError):
        return ""
    if models:
        hint = (
            f"holds models ({', '.join(models)}), not versions: serve them all with --model_repository={base_path}, or "
            f"one with --model_base_path={base_path / models[0]}"
        )
    return hint


def _instead_of_versions(path: Location) -> str:
    if isinstance(path, RemotePath):
        # There, what makes a version is its manifest, wherever it is.
        return ""
    if path.is_file():
        return f"is a file; expected a folder: move it to MODEL/1/{path.name} and use --model_base_path=MODEL"
    if not available_runtimes(path):
        return ""
    if path.name.isdecimal():
        return f"is a version, not a folder of versions: use --model_base_path={path.parent}"
    return f"holds a model's files, not versions: move them to {path}/1"


def base_location(text: str, *, what: str) -> Location:
    if "\0" in text:
        raise ConfigurationError(f"Expected {what} to have a path; received {text!r}, which holds a NUL character.")
    path = locate(text)
    if isinstance(path, RemotePath):
        return path
    if not path.is_absolute():
        raise ConfigurationError(
            f"Expected {what} to have an absolute path or URI; got base_path()={text}, which is relative. "
            f"From here that would be {path.resolve()}."
        )
    return path


def check_name(name: str, what: str) -> None:
    """Checks the name of a model, or of a label, that may come from a caller.

    Slashes are allowed, as upstream: such a model can be asked for over gRPC.
    """
    parts = name.split("/")
    if len(name.encode("utf-8", "replace")) > _MAX_NAME or not name.isprintable() or {"", ".", ".."} & set(parts):
        raise ConfigurationError(
            f"The {what} {name[:_MAX_NAME]!r} cannot be used; expected up to {_MAX_NAME} bytes of text, with no empty "
            "part and no . or .. between slashes."
        )


def _model(item: serving_pb2.ModelConfig) -> ModelConfig:
    base_path = base_location(item.base_path, what=f"model {item.name}")
    platform = _platform(item)
    return ModelConfig(
        name=item.name,
        base_path=base_path,
        policy=_policy(item),
        labels=dict(item.version_labels),
        platform=platform,
        prediction_log=prediction_log(item),
    )


def _platform(item: serving_pb2.ModelConfig) -> str:
    """The platform, which old configurations name by a number."""
    kind = item.model_type
    if kind != serving_pb2.MODEL_TYPE_UNSPECIFIED and item.model_platform:
        raise ConfigurationError(
            f"Model {item.name}: Illegal setting both ModelServerConfig::model_type (deprecated) and "
            "ModelServerConfig::model_platform. Keep model_platform."
        )
    if kind not in (serving_pb2.MODEL_TYPE_UNSPECIFIED, serving_pb2.TENSORFLOW):
        raise ConfigurationError(
            f"Model {item.name}: ModelServerConfig::model_type choice {kind} not supported; "
            f"expected model_platform: {PLATFORM!r}."
        )
    platform = item.model_platform or (PLATFORM if kind == serving_pb2.TENSORFLOW else "")
    if not platform:
        raise ConfigurationError(
            f"Model {item.name}: Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform. Add model_platform: {PLATFORM!r}."
        )
    if platform not in _PLATFORMS:
        raise ConfigurationError(
            f"Model {item.name} requests unsupported platform {platform}; expected model_platform: "
            f"{', '.join(map(repr, _PLATFORMS))}."
        )
    return platform


def _policy(item: serving_pb2.ModelConfig) -> VersionPolicy:
    policy = item.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy(latest=None)
    if kind == "specific":
        return VersionPolicy(specific=frozenset(policy.specific.versions))
    # Upstream takes 0 for its default of one.
    return VersionPolicy(latest=policy.latest.num_versions or 1)
