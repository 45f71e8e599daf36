from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VersionTraffic(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _containers.RepeatedCompositeFieldContainer[ModelTraffic]
    def __init__(self, model: _Optional[_Iterable[_Union[ModelTraffic, _Mapping]]] = ...) -> None: ...

class ModelTraffic(_message.Message):
    __slots__ = ("name", "split", "version_header", "sticky_header", "shadow", "rollback")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_HEADER_FIELD_NUMBER: _ClassVar[int]
    STICKY_HEADER_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    name: str
    split: _containers.RepeatedCompositeFieldContainer[SplitTarget]
    version_header: str
    sticky_header: str
    shadow: ShadowTarget
    rollback: RollbackLimits
    def __init__(self, name: _Optional[str] = ..., split: _Optional[_Iterable[_Union[SplitTarget, _Mapping]]] = ..., version_header: _Optional[str] = ..., sticky_header: _Optional[str] = ..., shadow: _Optional[_Union[ShadowTarget, _Mapping]] = ..., rollback: _Optional[_Union[RollbackLimits, _Mapping]] = ...) -> None: ...

class SplitTarget(_message.Message):
    __slots__ = ("version", "label", "weight")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    version: int
    label: str
    weight: float
    def __init__(self, version: _Optional[int] = ..., label: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class ShadowTarget(_message.Message):
    __slots__ = ("version", "label", "share", "tolerance")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    label: str
    share: float
    tolerance: float
    def __init__(self, version: _Optional[int] = ..., label: _Optional[str] = ..., share: _Optional[float] = ..., tolerance: _Optional[float] = ...) -> None: ...

class RollbackLimits(_message.Message):
    __slots__ = ("max_error_rate", "max_latency_ratio", "max_p99_ms", "max_disagreement", "min_samples", "window_seconds")
    MAX_ERROR_RATE_FIELD_NUMBER: _ClassVar[int]
    MAX_LATENCY_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_P99_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DISAGREEMENT_FIELD_NUMBER: _ClassVar[int]
    MIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    max_error_rate: float
    max_latency_ratio: float
    max_p99_ms: float
    max_disagreement: float
    min_samples: int
    window_seconds: float
    def __init__(self, max_error_rate: _Optional[float] = ..., max_latency_ratio: _Optional[float] = ..., max_p99_ms: _Optional[float] = ..., max_disagreement: _Optional[float] = ..., min_samples: _Optional[int] = ..., window_seconds: _Optional[float] = ...) -> None: ...
