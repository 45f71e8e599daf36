"""The one error tree of modelyard, shared by every room, with no protocol in it.

::

    ModelyardError
     x RequestError                     what was sent is wrong: the sender can cure it
     |  + InvalidRequestError           malformed body, bad JSON, bad field
     |  |  + InvalidModelSpecError      no model spec, no name, unknown version label
     |  |  + InvalidInputError          missing or extra input, wrong dtype or shape, ragged rows
     |  |  + ImageDecodeError           bytes that are no complete image
     |  + RequestTooLargeError          more bytes, rows or values than the server takes
     |  + ModelNotFoundError            unknown model or version
     |  + ModelNotReadyError            an operation on a version that is not available for inference
     |  + FixedConfigurationError       a change of a configuration that something else decides about
     |  + SignatureNotFoundError        the model has no signature of that name
     |  + UnsupportedError              a known request that this server cannot answer
     |  + UnauthenticatedError          no credentials, or ones that were not understood
     |  + PermissionDeniedError         credentials understood, operation not allowed
     x ServerError                      what was sent is right: try again, elsewhere, or call for help
     |  + UnavailableError              not ready, stopping, or not reachable
     |  + OverloadedError               refused on arrival: the queue is full
     |  + DeadlineExceededError         no answer within the time the caller gave
     |  + RequestCancelledError         the caller went away
     |  + PredictionError               the model itself failed on a valid request
     |  + InternalError                 a broken invariant of ours: this is a bug
     |  + ProtocolError                 an answer that the protocol does not allow
     x ArtifactError                    a model repository or one of its versions
     |  + ManifestError                 manifest.json is missing something or contradicts itself
     |  + IntegrityError                a file is missing or its checksum differs
     |  + PublishError                  the version could not be put in place
     |  + LoadError                     no installed runtime can load the version
     x ExportError                      from a trained model to a servable one
     |  + ConversionError               a converter failed
     |  + VerificationError             a converted format does not compute what its source computes
     x TrainingError
     |  + DatasetNotFoundError          no copy of the data set is to be had
     |  + CheckpointError               a checkpoint does not fit, or is damaged
     |  + NonFiniteLossError            the loss is NaN or infinite
     x ConfigurationError               flags, files and environment
     |  + MissingDependencyError        an optional extra is not installed
     x LoadTestError                    a load test could not run or broke a limit
     x DeploymentError                  a managed cloud did not take what it was sent

Classes marked ``x`` only group: code raises one of the classes marked ``+`` (or a group, where no finer class says
more). Transports map every class to their own status codes: see ``modelyard.wire``.
"""

from __future__ import annotations

import copyreg
import re
from typing import Any

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class ModelyardError(Exception):
    """Base class of every error that modelyard raises on purpose.

    Attributes:
        message: What was received, what was expected, and what to do.
        request_id: The ``x-request-id`` of the call that failed; None where no call was made.
        model: The model that the call was for; None where that is not known.
        server_message: What the server said, word for word; None where it said nothing.
        retry_after_s: Seconds after which the server wants to be asked again, infinite for never; None where it did not
            say.
    """

    def __init__(self, message: str) -> None:
        # Keras writes parts of its messages in bold.
        message = _ESCAPES.sub("", message)
        super().__init__(message)
        self.message = message
        self.request_id: str | None = None
        self.model: str | None = None
        self.server_message: str | None = None
        self.retry_after_s: float | None = None


class RequestError(ModelyardError):
    """What was sent is wrong; the sender can cure it."""


class InvalidRequestError(RequestError):
    """The request is malformed."""


class InvalidModelSpecError(InvalidRequestError):
    """The model spec is missing, has no name, or names an unknown version label."""


class InvalidInputError(InvalidRequestError):
    """An input is missing, unknown, or has the wrong dtype or shape."""


class ImageDecodeError(InvalidRequestError):
    """The bytes of an image input are not a complete image of a known format."""


class RequestTooLargeError(RequestError):
    """The request has more bytes, rows or values than the server accepts."""


class ModelNotFoundError(RequestError):
    """No servable of that name, or not in that version."""


class ModelNotReadyError(RequestError):
    """The operation needs a version that is not available for inference, such as the target of a label."""


class FixedConfigurationError(RequestError):
    """The configuration is not changed by requests: something else decides about it, such as a model repository."""


class SignatureNotFoundError(RequestError):
    """The servable has no signature of that name."""


class UnsupportedError(RequestError):
    """A request that is understood but that this server cannot answer."""


class UnauthenticatedError(RequestError):
    """No credentials came with the request, or they were not understood."""


class PermissionDeniedError(RequestError):
    """The credentials do not allow this operation."""


class ServerError(ModelyardError):
    """The request may be right: try again, elsewhere, or call for help."""


class UnavailableError(ServerError):
    """The server or the model is not ready, is stopping, or cannot be reached."""


class OverloadedError(ServerError):
    """The request was refused on arrival because too much work is queued."""


class DeadlineExceededError(ServerError):
    """No answer within the time that the caller gave."""


class RequestCancelledError(ServerError):
    """The caller went away before the answer was there."""


class PredictionError(ServerError):
    """The model failed while it computed a request that had passed every check."""


class InternalError(ServerError):
    """A broken invariant, here or inside the server that answered. This is a bug."""


class ProtocolError(ServerError):
    """The peer sent an answer that its protocol does not allow."""


class ArtifactError(ModelyardError):
    """A model repository or one of its versions is not as it must be."""


class ManifestError(ArtifactError):
    """``manifest.json`` is not valid."""


class IntegrityError(ArtifactError):
    """A file of a version is missing or its bytes are not the published ones."""


class PublishError(ArtifactError):
    """A version could not be put in place."""


class LoadError(ArtifactError):
    """No installed runtime can load the version."""


class ExportError(ModelyardError):
    """A trained model could not be turned into a servable one."""


class ConversionError(ExportError):
    """A converter failed on a signature."""


class VerificationError(ExportError):
    """A converted format does not compute what its source computes."""


class TrainingError(ModelyardError):
    """Training could not start or go on."""


class DatasetNotFoundError(TrainingError):
    """No copy of a data set was found, and none could be downloaded."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged or does not fit the task."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""


class ConfigurationError(ModelyardError):
    """A flag, a configuration file or an environment variable is wrong."""


class MissingDependencyError(ConfigurationError):
    """An optional extra of modelyard is not installed.

    Attributes:
        extra: The extra that brings the missing package.
    """

    def __init__(self, *, package: str, extra: str, purpose: str, instead: str = "") -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'modelyard[{extra}]'" + (f"; {instead}." if instead else "")
        )
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied and unpickled by calling its class with its text alone, which this one does not take.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class LoadTestError(ModelyardError):
    """A load test could not run, or one of its limits was broken."""


class DeploymentError(ModelyardError):
    """A managed cloud could not be reached, or did not take what it was sent."""


__all__ = [
    "ArtifactError",
    "CheckpointError",
    "ConfigurationError",
    "ConversionError",
    "DatasetNotFoundError",
    "DeadlineExceededError",
    "DeploymentError",
    "ExportError",
    "FixedConfigurationError",
    "ImageDecodeError",
    "IntegrityError",
    "InternalError",
    "InvalidInputError",
    "InvalidModelSpecError",
    "InvalidRequestError",
    "LoadError",
    "LoadTestError",
    "ManifestError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "ModelNotReadyError",
    "ModelyardError",
    "NonFiniteLossError",
    "OverloadedError",
    "PermissionDeniedError",
    "PredictionError",
    "ProtocolError",
    "PublishError",
    "RequestCancelledError",
    "RequestError",
    "RequestTooLargeError",
    "ServerError",
    "SignatureNotFoundError",
    "TrainingError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "VerificationError",
]
