"""Topic patterns of routing keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit import line_counts
from wbengine.transports import _routing


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("", "", True),
        ("a.b", "a", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("*", "", True),
        ("a.*", "a", False),
        ("a.*", "a.", True),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "ab", False),
        ("#.c", "a.b.c", True),
        ("#.c", "c.d", False),
        ("a.#.b.#.c", "a.b.b.x.c.c", True),
        ("a.#.b.#.c", "a.x.c", False),
        ("#.#", "a", True),
        ("*.#", "a", True),
        ("#.*", "a.b", True),
        ("a*", "ab", False),
        ("(a+)+$", "aaaaaaaaaa", False),
    ],
)
def test_topic_pattern_matches_routing_key(pattern, key, expected):
    assert _routing.matches(pattern.split("."), key.split(".")) is expected


def slow_match(pattern, words):
    """Match recursively, as patterns are defined."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(slow_match(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return (
        bool(words)
        and (pattern[0] == "*" or pattern[0] == words[0])
        and slow_match(pattern[1:], words[1:])
    )


@given(
    st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=6),
    st.lists(st.sampled_from(["a", "b"]), max_size=7),
)
def test_matching_equals_a_recursive_reference(pattern, words):
    assert _routing.matches(pattern, words) is slow_match(pattern, words)


def test_matching_takes_polynomial_steps():
    """A match that tries all alternatives would not end."""
    pattern, words = ["#", "a"] * 40 + ["b"], ["a"] * 500
    steps = line_counts.steps(lambda: _routing.matches(pattern, words))
    assert steps < 20 * len(pattern) * len(words)
    assert not _routing.matches(pattern, words)


def test_routing_table_cache_is_bounded():
    table = _routing.RoutingTable([("#", "q")])
    for number in range(3 * _routing._MAX_CACHED_KEYS):
        assert table.route(str(number)) == ("q",)
    assert len(table._memo) <= _routing._MAX_CACHED_KEYS
