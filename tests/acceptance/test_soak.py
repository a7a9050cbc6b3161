"""Repeated runs of wide flows over folders, and of requests through PostgreSQL."""

from __future__ import annotations

import pytest

from tests.support import tools


@pytest.mark.slow
def test_wide_flows_leave_nothing_behind() -> None:
    ended = tools.run("soak", "--runs", 3, "--timeout", 120)
    assert "3 runs, 0 problems" in ended.stdout


@pytest.mark.slow
def test_requests_leave_no_row_in_the_database() -> None:
    ended = tools.run("soak", "--requests", 5000, "--hold", 1, code=None)
    assert "rows left: (0, 0)" in ended.stdout
