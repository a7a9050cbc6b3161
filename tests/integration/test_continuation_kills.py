"""Kills of processes whose workflow continues as new."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import python


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.parametrize("store", ["sqlite", "postgresql_url"])
def test_workflow_continues_after_a_kill_at_each_crash_point(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/flows.db" if store == "sqlite" else request.getfixturevalue(store)
    ended = python.run(
        ["-m", "tests.support.continued_kills", url, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) > 20
