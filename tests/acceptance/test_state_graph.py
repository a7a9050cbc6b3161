"""The pictures of states: drawn from the code, and those of the documentation are of today's."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tests.acceptance import state_tables
from tests.support import tools, workers

KEPT = workers.REPOSITORY / "doc" / "source" / "_static" / "states"
NAMES = ("flow", "retry", "task")

Edges = set[tuple[str, str]]


def edges(picture: Path) -> Edges:
    """The arrows of a picture, by their titles."""
    text = picture.read_text(encoding="utf-8")
    titles = map(html.unescape, re.findall(r"<title>([^<]*)</title>", text))
    pairs = (title.split("->") for title in titles if "->" in title)
    return {(start, end) for start, end in pairs}


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_of_the_documentation_are_true(name: str) -> None:
    found = state_tables.transitions(name)
    allowed = {(old, new) for old, targets in found.items() for new in targets}
    assert edges(KEPT / f"{name}.svg") == allowed


@pytest.mark.slow
def test_the_tool_draws_all_of_them(tmp_path: Path) -> None:
    tools.run("state_graph", tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert edges(tmp_path / f"{name}.svg") == edges(KEPT / f"{name}.svg") != set()
