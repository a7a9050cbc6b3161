"""Engines and workers are killed, at each crash point and at any moment: flows go on.

These are small versions of `tools/crash`, which does the same on all stores and for longer.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.support import tools

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it kills by ways of Linux's own"),
    pytest.mark.timeout(300),
]


@pytest.mark.slow
def test_who_is_killed_at_any_crash_point_is_resumed() -> None:
    told = tools.run("crash", "sweep", "--quick").stdout
    figures = re.search(r"^(\d+) points, (\d+) cases, .* 0 problems$", told, re.MULTILINE)
    assert figures and int(figures[2]) >= int(figures[1]) > 20, told


def test_a_storm_of_kills_loses_nothing() -> None:
    words = ("storm", "--flows", 3, "--kills", 3, "--stores", "dir,sqlite")
    told = tools.run("crash", *words).stdout
    assert re.search(r"^3 flows, 3 kills, .* 0 problems$", told, re.MULTILINE), told
