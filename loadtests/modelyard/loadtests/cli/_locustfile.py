"""The locustfile of ``modelyard loadtest``."""

from locust import events

from modelyard.loadtests.users import GrpcUser, GrpcV2User, ReplayUser, RestUser, RestV2User, install

__all__ = ["GrpcUser", "GrpcV2User", "ReplayUser", "RestUser", "RestV2User"]

install(events)
