"""Tags: valid values, their texts, and conditions."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any

import pytest

from wbengine.types import _tags

DUE = dt.datetime(2026, 12, 1, 1, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


@pytest.mark.parametrize(
    ("value", "stored", "text"),
    [
        ("a=b<c>d", "a=b<c>d", "a=b<c>d"),
        ("\N{GRINNING FACE}'\"\\", "\N{GRINNING FACE}'\"\\", "\N{GRINNING FACE}'\"\\"),
        (Color.RED, "red", "red"),
        (Size.LARGE, 3, "3"),
        (17, 17, "17"),
        (17.0, 17, "17"),
        (-0.0, 0, "0"),
        (0.5, 0.5, "0.5"),
        (1e300, 1e300, "1e+300"),
        (2**53, 2**53, str(2**53)),
        (True, True, "true"),
        (False, False, "false"),
        (DUE, DUE, "2026-11-30T23:30:00+00:00"),
    ],
)
def test_valid_value_has_one_stored_form_and_text(value: Any, stored: Any, text: str) -> None:
    (result,) = _tags.check({"k": value}).values()
    assert result == stored
    assert type(result) in (str, int, float, bool, dt.datetime)
    assert _tags.text_of(result) == text


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (float("nan"), ValueError, "finite number, got nan"),
        (float("-inf"), ValueError, "finite number, got -inf"),
        (2**53 + 1, ValueError, "whole number of at most 2\\*\\*53, or a text"),
        pytest.param(10**5000, ValueError, "whole number", id="huge"),
        (dt.datetime(2026, 1, 1), ValueError, "with a time zone"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1))), ValueError, "years"),
        ("", ValueError, "1 to 256 printable"),
        ("a ", ValueError, "without surrounding blanks"),
        ("\ud800", ValueError, "printable"),
        ("a\0b", ValueError, "printable"),
        ("a\nb", ValueError, "printable"),
        ("a\u202eb", ValueError, "printable"),
        ("x" * 257, ValueError, "at most 256 characters"),
        (None, TypeError, "got NoneType"),
        (b"a", TypeError, "got bytes"),
        ([1], TypeError, "got list"),
        (1j, TypeError, "got complex"),
        (dt.date(2026, 1, 1), TypeError, "got date"),
    ],
)
def test_invalid_value_is_rejected(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _tags.check({"k": value})


@pytest.mark.parametrize("key", ["", "a b", "a=b", "a<b", "a>b", "\xe4", "a'b", "k" * 65])
def test_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="key of a tag"):
        _tags.check({key: 1})


def test_limit_includes_tags_of_submission() -> None:
    meta: dict[str, Any] = {_tags.GIVEN: {f"g{number}": "x" for number in range(30)}}
    meta[_tags.CHANGED] = _tags.merged(meta, {"a": 1, "b": 2})
    with pytest.raises(ValueError, match="at most 32 tags, got 33"):
        _tags.merged(meta, {"c": 3})
    assert _tags.merged(meta, {"a": 4}) == {"a": 4, "b": 2}


def test_tag_of_submission_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="team was set at the submission"):
        _tags.merged({_tags.GIVEN: {"team": "a"}}, {"team": "a"})
    # Also not in a damaged record, or one of an earlier release.
    meta = {_tags.GIVEN: {"team": "a"}, _tags.CHANGED: {"team": "b", "x": 1}}
    assert _tags.tags_in(meta) == {"team": "a", "x": 1}
    assert [each.name for each in _tags.index_of(meta, given=False)] == ["x"]


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("text=a=b", {"text"}),
        ("number=7", {"number"}),
        ("number=7.0", set()),
        ("number>6.9", {"number"}),
        ("number>7", set()),
        ("number>=7", {"number"}),
        ("number<=7", {"number"}),
        ("number<7", set()),
        ("number<1e999", None),
        ("yes=true", {"yes"}),
        ("yes>0", set()),
        ("due<2026-12-01", {"due"}),
        ("due>=2026-11-30T23:30", {"due"}),
        ("due>2026-12-01T01:30+02:00", set()),
        ("due>5", set()),
        ("number>2026-12-01", set()),
        ("text<b", None),
        ("number>nan", None),
        ("number>", None),
        ("number", None),
        ("=7", None),
        ("a b=7", None),
        ("other=7", set()),
    ],
)
def test_condition_matches_by_kind(text: str, matching: set[str] | None) -> None:
    tags = {"text": "a=b", "number": 7, "yes": True, "due": DUE}
    if matching is None:
        with pytest.raises(ValueError, match="tag"):
            _tags.Condition.parse(text)
        return
    condition = _tags.Condition.parse(text)
    assert {key for key in tags if condition.matches({_tags.CHANGED: {key: tags[key]}})} == matching
    assert str(condition) == text


def test_condition_of_submission_ignores_tags_of_run() -> None:
    condition = _tags.Condition.equal("team", "a", given=True)
    assert condition.matches({_tags.GIVEN: {"team": "a"}})
    assert not condition.matches({_tags.CHANGED: {"team": "a"}})
