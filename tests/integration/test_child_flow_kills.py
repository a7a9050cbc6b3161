"""Processes that are killed while they run parents and children."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support import killed_parents

#: Each process reaches more crash points than these.
KILLS, POINTS = 6, 200


@pytest.mark.parametrize("name", sorted(killed_parents.SCENARIOS))
def test_parents_and_children_end_as_without_kill(name: str, tmp_path: Path) -> None:
    numbers = sorted(random.sample(range(1, POINTS), KILLS))
    kills, problems = killed_parents.sweep(tmp_path, name, numbers)
    assert problems == []
    assert kills == KILLS
