"""Calls of a job board in Redis that take jobs at the same time, or after one without an answer."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from wbengine import exceptions
from wbengine.jobs.backends import impl_redis


class Calls:
    """The tokens of calls, and whether they repeat earlier ones, in their order.

    :ivar actions: called during the calls, the first one during the first call.
    """

    def __init__(self) -> None:
        self.made: list[tuple[str, bool]] = []
        self.actions: list[Any] = []

    def run(self, step: Any, *, token: str, is_repeated: bool) -> tuple[list[Any], bool]:
        self.made.append((token, is_repeated))
        if self.actions:
            self.actions.pop(0)()
        return [], is_repeated


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def board(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> impl_redis.RedisJobBoard:
    board = impl_redis.RedisJobBoard("board", client=mock.Mock())
    monkeypatch.setattr(board, "_run", calls.run)
    return board


def test_concurrent_takes_of_one_owner_do_not_share_their_jobs(
    board: impl_redis.RedisJobBoard, calls: Calls
) -> None:
    calls.actions.append(lambda: board.take("me", 1))
    board.take("me", 1)
    (first, first_repeats), (second, second_repeats) = calls.made
    assert first != second
    assert not first_repeats and not second_repeats


def test_take_without_an_answer_is_repeated_once(
    board: impl_redis.RedisJobBoard, calls: Calls
) -> None:
    calls.actions.append(mock.Mock(side_effect=exceptions.JobFailure("no answer")))
    with pytest.raises(exceptions.JobFailure):
        board.take("me", 1)
    calls.actions.append(lambda: board.take("me", 1))
    board.take("me", 1)
    (lost, _), repeated, (other, other_repeats) = calls.made
    assert repeated == (lost, True)
    assert other != lost and not other_repeats
