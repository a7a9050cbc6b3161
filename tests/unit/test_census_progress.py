"""What the terminal says while the census is taken."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from wbengine import states
from wbengine.examples.census.progress import Board


@pytest.fixture
def said():
    return io.StringIO()


def board(said, terminal=False, total=3):
    return Board(Console(file=said, force_terminal=terminal, width=80), total)


def tell(board, state, name):
    board.atom(state, {"task_name": name, "old_state": None})


def test_a_process_that_begins_a_task_is_done_with_the_one_before(said):
    with board(said) as shown:
        shown.begin()
        shown.begun("a", 11)
        shown.begun("b", 22)
        assert shown.done == 0
        shown.begun("c", 11)
        assert shown.done == 1
        for name in "abc":
            tell(shown, states.SUCCESS, name)
        assert shown.done == 3
        assert [(place.ended, place.last) for place in shown.places.values()] == [
            (2, "c"),
            (1, "b"),
        ]
    assert "3 of 3 tasks done" in said.getvalue()


def test_a_failure_is_said_once_and_nothing_after_it(said):
    with board(said) as shown:
        shown.begin()
        shown.begun("a", 11)
        tell(shown, states.FAILURE, "a")
        tell(shown, states.FAILURE, "b")
        for name in "xyz":
            tell(shown, states.SUCCESS, name)
        tell(shown, states.REVERTED, "a")
    assert said.getvalue() == "a failed: reverting\n"
    assert shown.reverted == 1


def test_a_terminal_sees_the_bar_and_who_runs_what(said):
    with board(said, terminal=True) as shown:
        shown.begin()
        shown.begun("measure [alpha]", 11)
        shown.begun("measure beta", 22)
    text = said.getvalue()
    assert "0 of 3 tasks" in text
    assert "measure [alpha]" in text
    assert "worker 2" in text
