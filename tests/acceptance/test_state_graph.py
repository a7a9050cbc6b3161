"""The pictures of states: drawn from the code, and those of the documentation are of today's."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tests.acceptance import state_tables
from tests.support import tools, workers
from wbengine.engines.worker_based import protocol
from wbengine.runtime import run_states

KEPT = workers.REPOSITORY / "doc" / "source" / "_static" / "states"
NAMES = ("engine", "flow", "ledger", "request", "retry", "task")

Edges = set[tuple[str, str]]


def edges(picture: Path) -> Edges:
    """The arrows of a picture, by their titles."""
    text = picture.read_text(encoding="utf-8")
    titles = map(html.unescape, re.findall(r"<title>([^<]*)</title>", text))
    pairs = (title.split("->") for title in titles if "->" in title)
    return {(start, end) for start, end in pairs}


def allowed(what: str) -> Edges:
    found = state_tables.transitions(what)
    return {(old, new) for old, targets in found.items() for new in targets}


TRUE = {
    "flow": lambda: allowed("flow"),
    "task": lambda: allowed("task"),
    "retry": lambda: allowed("retry"),
    "engine": lambda: {(start, end) for start, _, end in run_states.machine()},
    "request": lambda: {(start, end) for start, _, end in protocol.build_a_machine()},
}


@pytest.mark.parametrize("name", TRUE)
def test_the_pictures_of_the_documentation_are_true(name: str) -> None:
    assert edges(KEPT / f"{name}.svg") == TRUE[name]()


@pytest.mark.slow
def test_the_tool_draws_all_of_them(tmp_path: Path) -> None:
    tools.run("state_graph", tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert edges(tmp_path / f"{name}.svg") == edges(KEPT / f"{name}.svg") != set()
