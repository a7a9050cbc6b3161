"""Delays before the next attempt."""

from __future__ import annotations

import itertools
import math
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import backoff, retry
from wbengine.backoff import Backoff


def test_waits_grow_from_the_delay() -> None:
    assert [Backoff().seconds(n) for n in range(1, 6)] == [1, 2, 4, 8, 16]
    assert [Backoff(0.5, 3).seconds(n) for n in range(1, 4)] == [0.5, 1.5, 4.5]
    assert [Backoff(3, 1).seconds(n) for n in range(1, 4)] == [3, 3, 3]
    assert Backoff(0).seconds(7) == 0


def test_wait_is_at_most_max_delay() -> None:
    made = Backoff(1, 10, max_delay=50, jitter=30)
    assert [made.seconds(n) for n in (3, 4, 100_000)] == [50, 50, 50]
    assert 1 <= made.seconds(1) <= 31


def test_unlimited_wait_beyond_float_range_raises_nothing() -> None:
    assert Backoff().seconds(100_000) > 1e18


class Fixed:
    """Random source with known values."""

    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b / 4


def test_jitter_is_added_from_given_random_source() -> None:
    made = Backoff(2, jitter=8)
    assert made.seconds(2, Fixed()) == 4 + 2
    assert made.seconds(2, random.Random(5)) == made.seconds(2, random.Random(5))
    random.seed(11)
    one = made.seconds(2)
    random.seed(11)
    assert made.seconds(2) == one


@given(
    st.floats(0, 1e6), st.floats(0, 100), st.none() | st.floats(0, 1e6), st.floats(0, 1e3),
    st.integers(1, 10_000), st.randoms(use_true_random=False),
)  # fmt: skip
def test_wait_is_between_zero_and_max_delay(
    delay: float,
    multiplier: float,
    most: float | None,
    jitter: float,
    attempt: int,
    chance: random.Random,
) -> None:
    found = Backoff(delay, multiplier, most, jitter).seconds(attempt, chance)
    assert 0 <= found < math.inf
    assert most is None or found <= most


@pytest.mark.parametrize("name", ["delay", "multiplier", "max_delay", "jitter"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("2", TypeError),
     (True, TypeError)], ids=["negative", "nan", "infinite", "str", "bool"],
)  # fmt: skip
def test_invalid_backoff_fields_are_rejected(name: str, value: object, error: type) -> None:
    with pytest.raises(error, match=rf"Backoff {name} must .*{value!r}"):
        Backoff(**{name: value})  # type: ignore[arg-type]


def test_only_max_delay_may_be_none() -> None:
    assert Backoff(max_delay=None).max_delay is None
    with pytest.raises(TypeError, match="jitter"):
        Backoff(jitter=None)  # type: ignore[arg-type]


def test_backoff_of_converts_numbers_and_rejects_other_types() -> None:
    made = Backoff(3)
    assert Backoff.of(made) is made
    assert Backoff.of(None) is None
    fixed = Backoff.of(1.5)
    assert fixed is not None and [fixed.seconds(n) for n in (1, 2, 9)] == [1.5, 1.5, 1.5]
    with pytest.raises(ValueError, match="-1"):
        Backoff.of(-1)
    for odd in ("2", True, [1]):
        with pytest.raises(TypeError, match="a Backoff or a number of seconds"):
            Backoff.of(odd)  # type: ignore[arg-type]


def test_backoff_compares_hashes_and_pickles_by_value() -> None:
    assert Backoff(2) == Backoff(2.0) and len({Backoff(2), Backoff(2)}) == 1
    assert pickle.loads(pickle.dumps(Backoff(2, 3, 4, 5))) == Backoff(2, 3, 4, 5)
    assert retry.Backoff is backoff.Backoff


@pytest.mark.parametrize(
    ("made", "values"),
    [
        (retry.Times(9, backoff=Backoff(2)), ()),
        (retry.ForEach("abc", backoff=Backoff(2)), ()),
        (retry.ParameterizedForEach(backoff=Backoff(2)), ()),
    ],
    ids=["times", "for-each", "parameterized"],
)
def test_counting_retries_wait_by_number_of_attempts(made: retry.Retry, values: object) -> None:
    histories = [retry.History([(n, {}) for n in range(size)]) for size in (1, 2, 3)]
    assert [made.wait(history) for history in histories] == [2, 4, 8]


def test_retries_without_backoff_do_not_wait() -> None:
    history = retry.History([(1, {})])
    for made in (retry.Times(2), retry.AlwaysRevert(), retry.ForEach([1], backoff=None)):
        assert made.wait(history) == 0
    assert list(itertools.islice((retry.Times(2, backoff=7).wait(history) for _ in "ab"), 2)) == [
        7,
        7,
    ]
