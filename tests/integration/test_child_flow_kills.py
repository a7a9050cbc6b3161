"""Processes that are killed while they run parents and children."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support import python

SCENARIOS = ["cancel", "fail", "succeed", "suspend", "undo"]
#: Each process reaches more crash points than these.
KILLS, POINTS = 6, 200


@pytest.mark.parametrize("name", SCENARIOS)
def test_parents_and_children_end_as_without_kill(name: str, tmp_path: Path) -> None:
    numbers = map(str, sorted(random.sample(range(1, POINTS), KILLS)))
    words = ["-m", "tests.support.killed_parents", str(tmp_path), name, *numbers]
    answer = python.run(
        words, real=True, cwd=python.REPOSITORY, stdout=python.PIPE, text=True, check=True
    )
    assert json.loads(answer.stdout) == [KILLS, []]
