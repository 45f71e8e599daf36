"""Locust users and what a locustfile installs with them. Importing this imports Locust."""

from modelyard.loadtests.users._install import install
from modelyard.loadtests.users._users import GrpcUser, RestUser

__all__ = ["GrpcUser", "RestUser", "install"]
