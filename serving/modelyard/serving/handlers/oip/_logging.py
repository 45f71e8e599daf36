"""Triton's logging extension: what the server's log tells, and changing that while it runs.

Triton has a switch for each severity; here, as everywhere in Python, there is one threshold. So what is switched on
brings everything that is more severe, and what is switched off takes everything along that is less so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from modelyard.errors import InvalidRequestError, UnsupportedError
from modelyard.serving.telemetry import log_level, set_log_level

Setting = bool | int | str

_LOG = logging.getLogger("modelyard.serving")

#: From the least severe; the last, which has no switch, is what is left where all are off.
_LEVELS = ("debug", "info", "warning", "error", "critical")
_SWITCHES = {"log_info": 1, "log_warning": 2, "log_error": 3}
_VERBOSE = "log_verbose_level"
#: What cannot be changed over the network, as in Triton.
_FIXED: Mapping[str, Setting] = {"log_file": "", "log_format": "default"}


def change_log_settings(changes: Mapping[str, object]) -> dict[str, Setting]:
    """Changes some of the settings in force, and returns all, by Triton's names."""
    on: list[int] = []
    off: list[int] = []
    for name, value in changes.items():
        if name in _SWITCHES and isinstance(value, bool):
            (on if value else off).append(_SWITCHES[name])
        elif name == _VERBOSE and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            (on if value else off).append(0)
        elif name in _SWITCHES or name == _VERBOSE:
            expected = "true or false" if name in _SWITCHES else "0, or a positive number"
            raise InvalidRequestError(f"{name!r} is {value!r}; expected {expected}.")
        elif _FIXED.get(name) != value:
            raise UnsupportedError(
                f"{name!r} cannot be set to {value!r} while the server runs; expected some of "
                f"{', '.join((*_SWITCHES, _VERBOSE))}."
            )
    least = max([min([_LEVELS.index(log_level()), *on]), *(index + 1 for index in off)])
    if on and min(on) < least:
        raise InvalidRequestError(
            f"{', '.join(map(str, changes))}: what is less severe cannot be logged without what is more so."
        )
    if _LEVELS[least] != log_level():
        set_log_level(_LEVELS[least])
        # Readers of the log must know why it changes.
        _LOG.critical("the log's level is %s from here on", _LEVELS[least])
    switches: dict[str, Setting] = {name: least <= index for name, index in _SWITCHES.items()}
    return {"log_file": "", **switches, _VERBOSE: int(least == 0), "log_format": "default"}
