"""``--version_traffic_file``: what it may say, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.config import RollbackLimits, TrafficTarget, parse_flags, read_traffic_file

WHOLE = """
model {
  name: "m"
  split { label: "stable" weight: 3 }
  split { version: 7 weight: 1 }
  version_header: "X-Version"
  sticky_header: "x-user"
  shadow { label: "next" share: 0.5 }
  rollback { max_p99_ms: 20 }
}
model { name: "n" split { version: 1 } split { version: 2 } }
"""


def test_rules(tmp_path: Path) -> None:
    file = tmp_path / "traffic.config"
    file.write_text(WHOLE)
    rules = read_traffic_file(file)
    assert list(rules) == ["m", "n"]
    rule = rules["m"]
    stable, seven = TrafficTarget(label="stable"), TrafficTarget(version=7)
    assert rule.split == ((stable, 0.75), (seven, 0.25))
    assert (rule.stable, rule.version_header, rule.sticky_header) == (stable, "x-version", "x-user")
    assert rule.shadow is not None
    assert (rule.shadow.target.name, rule.shadow.share, rule.shadow.tolerance) == ("next", 0.5, 0.001)
    assert rule.limits == RollbackLimits(max_p99_ms=20.0)
    assert (rule.versions, [target.name for target in rule.targets]) == (frozenset({7}), ["stable", "7", "next"])
    # Without weights the first gets everything.
    assert [share for _, share in rules["n"].split] == [1.0, 0.0]
    assert rule.digest == read_traffic_file(file)["m"].digest != rules["n"].digest


def test_zero_is_not_nothing(tmp_path: Path) -> None:
    file = tmp_path / "traffic.config"
    file.write_text(
        'model { name: "m" split { version: 1 weight: 0 } split { version: 2 weight: 3 } '
        "shadow { version: 3 share: 0 tolerance: 0 } "
        "rollback { max_error_rate: 0 max_latency_ratio: 0 max_p99_ms: 0 max_disagreement: 0 } }"
    )
    rule = read_traffic_file(file)["m"]
    assert rule.limits == RollbackLimits(max_error_rate=0, max_latency_ratio=0, max_p99_ms=0, max_disagreement=0)
    assert rule.shadow is not None
    assert (rule.shadow.share, rule.shadow.tolerance) == (0.0, 0.0)
    # Who writes it has thought of it: the first is there for rollbacks.
    assert [share for _, share in rule.split] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty; expected model"),
        ('model { name: "m" }', "model 'm' has no split"),
        ("model { split { version: 1 } }", "has a model without a name"),
        ('model { name: "m" split { version: 1 } } model { name: "m" split { version: 1 } }', "'m' is there twice"),
        ('model { name: "m" split { weight: 1 } }', "split has no target; expected version: N, above 0, or label"),
        ('model { name: "m" split { version: 1 weight: -1 } }', "split 1: weight is -1; expected 0 or more"),
        ('model { name: "m" split { version: 1 } split { label: "1" } }', "split has 1 twice"),
        ('model { name: "m" split { version: 1 } shadow { version: 2 share: 2 } }', "share is 2; expected a number"),
        ('model { name: "m" split { version: 1 } shadow { version: 1 share: 1 } }', "the shadow is the stable version"),
        ('model { name: "m" split { version: 1 } shadow { version: 2 } }', "shadow 2 has no share, and would compute"),
        (
            'model { name: "m" split { version: 1 } split { version: 2 weight: 0.05 } }',
            "split 1, the first and so the stable version, has no weight and another has one",
        ),
        (
            'model { name: "m" split { version: 1 } rollback { min_samples: 0 } }',
            "rollback: min_samples is 0; expected a number above 0.",
        ),
        (
            'model { name: "m" split { version: 1 } rollback { window_seconds: 0 } }',
            "rollback: window_seconds is 0; expected a number above 0.",
        ),
        ('model { name: "m" split { version: 1 } sticky_header: "a b" }', "sticky_header is 'a b'; expected a header"),
        (
            'model { name: "m" split { version: 1 } shadow { label: "1" share: 1 } }',
            "1 is a version in the split and a label",
        ),
        (
            'model { name: "m" split { version: 1 } rollback { max_disagreement: 0.1 } }',
            "max_disagreement needs a shadow",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "traffic.config"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_traffic_file(file)
    assert f"--version_traffic_file={file}" in caught.value.message
    assert complaint in caught.value.message


def test_flags_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "traffic.config"
    flags = ["--model_name=m", f"--model_base_path={tmp_path}", f"--version_traffic_file={file}"]
    with pytest.raises(ConfigurationError, match=f"--version_traffic_file={file} cannot be read"):
        parse_flags(flags)
    file.write_text("model {")
    with pytest.raises(ConfigurationError, match="is not a modelyard.serving.VersionTraffic in protobuf text format"):
        parse_flags(flags)
    file.write_text(WHOLE)
    traffic = parse_flags([*flags, f"--version_traffic_state_file={tmp_path}/state"]).traffic
    assert traffic is not None
    assert (traffic.path, traffic.state_file) == (file, tmp_path / "state")
    assert parse_flags(flags[:2]).traffic is None
    with pytest.raises(ConfigurationError, match="was set without --version_traffic_file"):
        parse_flags([*flags[:2], "--version_traffic_state_file=state"])
