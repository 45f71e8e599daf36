"""``modelyard keys``: what it prints is what a server reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.cli import main
from modelyard.errors import OverloadedError
from modelyard.serving.access import Access, Credentials


def test_a_new_key_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["keys", "new", "shop", "--scope", "predict:fashion*", "--scope", "metadata", "--max-in-flight", "1"]
    assert main(command) == 0
    said = capsys.readouterr()
    key = said.err.splitlines()[-1]
    assert key.startswith("myd_")
    assert key not in said.out
    (tmp_path / "access.toml").write_text(said.out)
    access = Access(tmp_path / "access.toml")
    with access.admit(Credentials(key=key), "predict", "fashion-2") as ticket:
        assert ticket.principal == "shop"
        with pytest.raises(OverloadedError, match="max_in_flight = 1"):
            access.admit(Credentials(key=key), "metadata", "any")
    assert main(command) == 0
    assert capsys.readouterr().err.splitlines()[-1] != key


@pytest.mark.parametrize("name", ["shop", "Zoë", "𝒜lice", "shop 🛒", 'a "b" \\ c'])
def test_names_of_all_kinds(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", name, "--scope", f"predict:{name}*"]) == 0
    said = capsys.readouterr()
    # It can be appended to a file in every locale.
    (tmp_path / "access.toml").write_text(said.out, "ascii")
    key = Credentials(key=said.err.splitlines()[-1])
    with Access(tmp_path / "access.toml").admit(key, "predict", f"{name}-2") as ticket:
        assert ticket.principal == name


@pytest.mark.parametrize("name", ["", "a\nb", "a\x7f", "\x00", "\udcff", "\u202e"])
def test_names_that_no_server_reads(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", name, "--scope", "predict"]) == 2
    said = capsys.readouterr()
    assert f"The name is {name!r}; expected a text that can be printed" in said.err
    assert said.out == ""
    if name:
        assert main(["keys", "new", "shop", "--scope", f"predict:{name}"]) == 2
        assert "--scope is" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["--max-in-flight=1.5", "--requests-per-second=nan", "--rows-per-second=-1"])
def test_a_limit_that_makes_no_sense(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "new", "shop", "--scope", "predict", limit])
    wanted = "a whole number above 0" if "flight" in limit else "a number above 0"
    assert f"received {limit.partition('=')[2]!r}; expected {wanted}" in capsys.readouterr().err


def test_a_scope_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "shop", "--scope", "everything"]) == 2
    assert "--scope: the key has the scope 'everything'; expected one of predict" in capsys.readouterr().err
