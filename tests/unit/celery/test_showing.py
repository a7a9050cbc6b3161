"""Values as logs and monitors show them."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest

from wbengine.interop.celery.protocol import errors
from wbengine.interop.celery.protocol.showing import shown
from wbengine.interop.celery.worker import telling
from wbengine.types import failure as ft


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("no code of tasks is run")


class Odd(dict[str, Any]):
    __repr__ = Loud.__repr__
    items = Loud.__repr__  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 1.5, "it's", b"b", (), (1,), [1, "x"], {}, {"a": [1]}, {1}, set(),
        frozenset(), frozenset((1,)), dt.date(2026, 1, 2), dt.timedelta(1), 3j, uuid.UUID(int=1),
        dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
    ],
    ids=str,
)  # fmt: skip
def test_values_as_repr_shows_them(value: Any) -> None:
    assert shown(value) == repr(value)


def test_no_code_of_tasks_is_run() -> None:
    name = f"<{__name__}"
    assert shown([Loud(), Odd()]) == f"[{name}.Loud>, {name}.Odd>]"


def test_no_more_than_so_much_is_shown() -> None:
    assert shown("x" * 10**7) == f"'{'x' * 1020}..."
    assert shown(10**10_000) == "<a long int>"
    assert len(shown(list(range(10**6)))) < 1024
    assert shown([[[[[1]]]]]) == "[[[[[...]]]]]"
    assert shown(list(range(100))).endswith(", 63, ...]")
    loop: list[Any] = []
    loop.append(loop)
    assert shown(loop) == "[[[[[...]]]]]"
    assert shown({"k" * 2000: 1, "z": 2}).endswith("...")


class Counted:
    """Knows how often it was asked."""

    asked = 0

    def __repr__(self) -> str:
        Counted.asked += 1
        return f"Counted({'x' * 8})"


def test_objects_are_asked_where_that_is_meant() -> None:
    assert shown([Counted(), {"a": Counted()}], asks=True) == (
        "[Counted(xxxxxxxx), {'a': Counted(xxxxxxxx)}]"
    )
    assert shown((Loud(),), asks=True) == "(<Loud>,)"
    failure = ft.Failure.from_exception(ValueError(Counted(), [Loud()]))
    assert errors.shown(failure) == "ValueError('Counted(xxxxxxxx)', '[<Loud>]')"


def test_no_more_is_written_than_shown() -> None:
    """Neither for events of Celery's tasks, nor for what an exception holds."""
    many = [Counted() for _ in range(10**5)]
    Counted.asked = 0
    assert telling.words(many).startswith("[Counted(xxxxxxxx), ") and Counted.asked <= 65
    failure = ft.Failure.from_exception(ValueError(many))
    Counted.asked = 0
    assert len(errors.shown(failure)) < 600
    assert Counted.asked <= 65
