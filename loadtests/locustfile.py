"""Load test of a served model: ``locust -f loadtests/locustfile.py``.

``modelyard loadtest`` runs the same without a web page. Add user classes or a
load shape here, or copy this file and start from it.
"""

from locust import events

from modelyard.loadtests.users import GrpcUser, GrpcV2User, ReplayUser, RestUser, RestV2User, install

__all__ = ["GrpcUser", "GrpcV2User", "ReplayUser", "RestUser", "RestV2User"]

install(events)
