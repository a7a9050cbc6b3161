"""Firings of schedules while processes are killed.

For 10,000 firings: `tools/chaos --kills 25 --firings 10000 --store postgresql`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import firings
from tests.support.amounts import amount


@pytest.mark.slow
def test_each_schedule_time_is_fired_once_while_processes_are_killed(
    uri: str, tmp_path: Path
) -> None:
    number = amount(80, 200)
    found = firings.run(uri, tmp_path, firings=number, kills=4, seed=random.randrange(1_000_000))
    assert found["firings"] >= number and not found["problems"], found
