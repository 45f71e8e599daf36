"""Sending: the load generator, its transports, and the servers that a run starts."""

from modelyard.loadtests.generate._client_sender import ClientSender
from modelyard.loadtests.generate._h2load import H2loadOptions, find_h2load, run_h2load
from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.generate._precise import run_precisely
from modelyard.loadtests.generate._record import Log, percentiles
from modelyard.loadtests.generate._sender import Endpoint, Sender, endpoint
from modelyard.loadtests.generate._server_metrics import Split
from modelyard.loadtests.generate._servers import Served, served, split_cores
from modelyard.loadtests.generate._session import Mark, Run, Session, Side, run_open, session

__all__ = [
    "ClientSender",
    "Endpoint",
    "H2loadOptions",
    "Log",
    "Mark",
    "Outcome",
    "Run",
    "Sender",
    "Served",
    "Session",
    "Side",
    "Split",
    "endpoint",
    "find_h2load",
    "percentiles",
    "run_h2load",
    "run_open",
    "run_precisely",
    "served",
    "session",
    "split_cores",
]
