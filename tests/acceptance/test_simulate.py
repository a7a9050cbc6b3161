"""Random flows of `tools/simulate`."""

from __future__ import annotations

import re

import pytest

from tests.support import tools


@pytest.mark.slow
def test_random_flows_run_in_processes_without_failures() -> None:
    ended = tools.run("simulate", "--flows", 250, "--seed", 7, "--jobs", 2)
    assert ended.stdout.startswith("250 flows in "), ended.stdout
    assert ended.stdout.endswith("/s), no failures\n")
    # A progress line every ten seconds, if the run takes that long.
    for line in ended.stderr.splitlines():
        assert re.fullmatch(r"\d+/250 flows, \d+/s, \d+:\d\d left", line)
