"""Locust users and what a locustfile installs with them. Importing this imports Locust."""

from modelyard.loadtests.users._install import install
from modelyard.loadtests.users._shape import PlanShape
from modelyard.loadtests.users._users import GrpcUser, GrpcV2User, ReplayUser, RestUser, RestV2User

__all__ = [
    "GrpcUser",
    "GrpcV2User",
    "PlanShape",
    "ReplayUser",
    "RestUser",
    "RestV2User",
    "install",
]
