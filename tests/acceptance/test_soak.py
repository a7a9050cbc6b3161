"""Repeated runs of wide flows over folders."""

from __future__ import annotations

import pytest

from tests.support import tools


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wide_flows_leave_nothing_behind() -> None:
    ended = tools.run("soak", "--runs", 3, "--timeout", 120)
    assert "3 runs, 0 problems" in ended.stdout
