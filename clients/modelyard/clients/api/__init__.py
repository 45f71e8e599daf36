"""The clients themselves, blocking and asynchronous."""

from modelyard.clients.api._async_client import AsyncClient, connect_async
from modelyard.clients.api._client_generated import Client, connect
from modelyard.clients.api._many import ManyOptions, RowResult
from modelyard.clients.api._model import AsyncModel, BoundSignature, Model, prepare_inputs
from modelyard.clients.api._progress import ProgressBar

__all__ = [
    "AsyncClient",
    "AsyncModel",
    "BoundSignature",
    "Client",
    "ManyOptions",
    "Model",
    "ProgressBar",
    "RowResult",
    "connect",
    "connect_async",
    "prepare_inputs",
]
