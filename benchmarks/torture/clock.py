"""Jumps of the clock: libfaketime (Debian's package ``faketime``) has a server see another time of day."""

from __future__ import annotations

import contextlib
import json
import time
from functools import partial
from pathlib import Path

from benchmarks.torture.cases import Result, Scratch, case, expect
from benchmarks.torture.processes import crowd
from benchmarks.torture.repository import SOON_S, removed, served, wrapped
from modelyard.artifact import list_versions, replace_file
from modelyard.clients import connect
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve
from tests.support.waiting import until

#: Below the root.
_LIBRARIES = "usr/lib/*/faketime/libfaketimeMT.so.1"
_DAY_S = 86_400
#: Seconds that the clock is off: forwards, backwards, far into the future, into the past before any file was written.
JUMPS_S = (3600, -3600, _DAY_S, 0, -30 * _DAY_S, 3650 * _DAY_S, -10_000 * _DAY_S, 0)


def _is_off_by(server: RunningServer, seconds: float) -> bool:
    """Whether the server's time of day is off by so much, by what it says of its last prediction."""
    row = json.loads(server.get("/v2/models/m/stats")[1])["model_stats"][0]
    return abs(int(row["last_inference"]) / 1e3 - time.time() - seconds) < 60


@case("repository", "jumps of the clock", own=True, short=False, transports=("native", "python"))
def clock_jumps(scratch: Scratch) -> Result:
    """Every call is answered in time, and each version that follows a jump is served."""
    library = next(Path("/").glob(_LIBRARIES), None)
    if library is None:
        return Result(inputs=0, text="not run: it needs libfaketime")
    model, clock = scratch.folder / "m", scratch.folder / "clock"
    publish_affine(model, slope=2.0, intercept=1.0)
    clock.write_text("+0")
    variables = f"FAKETIME_TIMESTAMP_FILE={clock} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
    with serve(
        model, model="m", log_dir=scratch.folder, flags=[f"--transport={scratch.transport}"],
        python=wrapped(scratch.folder, f'env LD_PRELOAD={library} {variables} "$PYTHON" "$@"'),
    ) as server, contextlib.ExitStack() as stack:  # fmt: skip
        urls = [f"grpc://{server.grpc_address}", server.rest_url]
        clients = [stack.enter_context(connect(url)) for url in urls * 2]
        wrong = stack.enter_context(crowd(clients, timeout_s=2.0, errors=False))
        for jump in JUMPS_S:
            replace_file(clock, f"{jump:+d}".encode())
            until(partial(_is_off_by, server, jump), SOON_S, f"the server's clock does not jump to {jump:+d} s")
            old = list_versions(model)[-1]
            newer = publish_affine(model, slope=2.0, intercept=1.0)
            served(server, "m", newer.number, f"after a jump to {jump:+d} s")
            removed(old)
        expect("Traceback" not in server.log_text(), server.log_text()[-500:])
    expect(not wrong, "; ".join(wrong[:3]))
    return Result(inputs=len(JUMPS_S), text="from 27 years back to 10 ahead; no call failed or was late")
