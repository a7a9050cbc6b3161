"""State diagrams of the documentation, drawn from the code."""

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
    """Return the arrows of a diagram by their titles."""
    text = picture.read_text(encoding="utf-8")
    titles = map(html.unescape, re.findall(r"<title>([^<]*)</title>", text))
    pairs = (title.split("->") for title in titles if "->" in title)
    return {(start, end) for start, end in pairs}


@pytest.mark.parametrize("name", NAMES)
def test_state_diagrams_in_documentation_match_code(name: str) -> None:
    transitions = state_tables.transitions(name)
    allowed = {(old, new) for old, targets in transitions.items() for new in targets}
    assert edges(KEPT / f"{name}.svg") == allowed


@pytest.mark.slow
def test_tool_draws_all_state_diagrams(tmp_path: Path) -> None:
    tools.run("state_graph", tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert edges(tmp_path / f"{name}.svg") == edges(KEPT / f"{name}.svg") != set()
