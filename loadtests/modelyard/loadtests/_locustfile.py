"""The locustfile of ``modelyard loadtest``."""

from locust import events

from modelyard.loadtests.users import GrpcUser, RestUser, install

__all__ = ["GrpcUser", "RestUser"]

install(events)
