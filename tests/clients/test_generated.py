"""The blocking client is what the generator makes of the asynchronous one, and has the same public face."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

from modelyard.clients import AsyncClient, Client

ROOT = Path(__file__).resolve().parents[2]


def test_is_what_the_generator_makes() -> None:
    spec = importlib.util.spec_from_file_location("generate_client", ROOT / "clients" / "generate_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.GENERATED.read_text("utf-8") == module.generate(), "run: make client"


def test_both_clients_have_the_same_methods_and_none_of_the_blocking_ones_is_a_coroutine() -> None:
    def methods(kind: type) -> dict[str, tuple[list[str], bool]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: (list(inspect.signature(item).parameters), inspect.iscoroutinefunction(item))
            for name, item in found
            if not name.startswith("_")
        }

    blocking, asynchronous = methods(Client), methods(AsyncClient)
    assert {name: names for name, (names, _) in blocking.items()} == {
        name: names for name, (names, _) in asynchronous.items()
    }
    assert not any(coroutine for _, coroutine in blocking.values())
    assert all(inspect.getdoc(getattr(Client, name)) for name in blocking)
