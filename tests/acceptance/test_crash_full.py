"""The disk is full: that is told, and nothing is loaded wrong."""

from __future__ import annotations

import sys

import pytest

from tests.support import tools

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it kills by ways of Linux's own"),
    pytest.mark.timeout(300),
]


@pytest.mark.slow
def test_on_a_full_disk_a_flow_fails_and_goes_on_when_there_is_room() -> None:
    told = tools.run("crash", "full").stdout
    assert told.count(" 0 problems\n") == 2, told
