"""Pauses of task types in all stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wbengine.persistence import base
from wbengine.persistence._pauses import MAX_PATTERN_CHARACTERS, TaskPause

from . import places

CHARGE = TaskPause("shop.charge", "the bank is down: Ä", "ann@host", 1.5, 3.5)
BILLING = TaskPause("billing.*", since=2.0)


@pytest.fixture(autouse=True)
def no_pauses(connection: base.Connection) -> Iterator[None]:
    """Several tests share a store."""
    yield
    for pause in connection.pauses():
        connection.remove_pause(pause.pattern)


def test_pauses_are_read_by_pattern(connection: base.Connection) -> None:
    assert connection.pauses() == []
    for pause in (CHARGE, BILLING):
        connection.put_pause(pause)
    assert connection.pauses() == [BILLING, CHARGE]


@places.everywhere
def test_pause_with_same_pattern_is_replaced(connection: base.Connection) -> None:
    connection.put_pause(CHARGE)
    replacement = CHARGE._replace(reason=None, by=None, since=9.0, until=None)
    connection.put_pause(replacement)
    assert connection.pauses() == [replacement]


def test_pause_is_removed_once(connection: base.Connection) -> None:
    connection.put_pause(CHARGE)
    connection.put_pause(BILLING)
    assert connection.remove_pause(CHARGE.pattern)
    assert not connection.remove_pause(CHARGE.pattern)
    assert connection.pauses() == [BILLING]


def test_only_pause_that_is_over_is_removed_as_ended(connection: base.Connection) -> None:
    now = connection.now()
    later = TaskPause("shop.ship", since=now, until=now + 60.0)
    for pause in (CHARGE, BILLING, later):
        connection.put_pause(pause)
    patterns = (CHARGE.pattern, BILLING.pattern, later.pattern, "shop.other")
    removed = [connection.remove_pause(each, ended=True) for each in patterns]
    assert removed == [True, False, False, False]
    assert connection.pauses() == [BILLING, later]


@pytest.mark.parametrize(
    "pattern",
    ["", "two words", "shop.charge;", "x" * (MAX_PATTERN_CHARACTERS + 1)],
    ids=["empty", "space", "semicolon", "too-long"],
)
def test_invalid_pattern_is_rejected(connection: base.Connection, pattern: str) -> None:
    with pytest.raises(ValueError, match="The pattern of a pause must be the dotted name"):
        connection.put_pause(TaskPause(pattern))
    assert connection.pauses() == []


@pytest.mark.parametrize("name", ["reason", "by"])
def test_text_that_is_not_unicode_is_rejected(connection: base.Connection, name: str) -> None:
    with pytest.raises(ValueError, match=f"The {name} of a pause must be valid Unicode"):
        connection.put_pause(CHARGE._replace(**{name: "bad \udc80"}))
    assert connection.pauses() == []


@places.dialects
def test_longest_pattern_is_stored(connection: base.Connection) -> None:
    longest = TaskPause("x" * MAX_PATTERN_CHARACTERS)
    connection.put_pause(longest)
    assert connection.pauses() == [longest]


@pytest.mark.parametrize(
    ("pattern", "task_type", "expected"),
    [
        ("shop.charge", "shop.charge", True),
        ("shop.charge", "shop.charge_all", False),
        ("shop.*", "shop.billing.charge", True),
        ("shop.*", "shops.charge", False),
        ("*.charge", "shop.charge", True),
        ("Shop.*", "shop.charge", False),
    ],
    ids=["equal", "prefix", "module", "other-module", "name", "other-case"],
)
def test_pattern_matches_dotted_names(pattern: str, task_type: str, expected: bool) -> None:
    assert TaskPause(pattern).matches(task_type) is expected
