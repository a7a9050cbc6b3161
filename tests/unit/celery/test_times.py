"""Times of Celery's messages."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine.interop.celery.protocol import times

UTC = timezone.utc
HOUR = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("2009-11-17T12:30:56.527191", datetime(2009, 11, 17, 12, 30, 56, 527191)),
        ("2009-11-17T12:30:56", datetime(2009, 11, 17, 12, 30, 56)),
        ("2009-11-17 12:30", datetime(2009, 11, 17, 12, 30)),
        ("20091117T123056", datetime(2009, 11, 17, 12, 30, 56)),
        ("2009-11-17", datetime(2009, 11, 17)),
        ("2009-W47-2", datetime(2009, 11, 17)),
        ("2009W472T12", datetime(2009, 11, 17, 12)),
        ("2009-11-17T12:30:56.5271919999", datetime(2009, 11, 17, 12, 30, 56, 527191)),
        ("2009-11-17T12:30:56,5Z", datetime(2009, 11, 17, 12, 30, 56, 500000, UTC)),
        ("2009-11-17T24:00", datetime(2009, 11, 18)),
        ("2009-11-17T12:30+01:00", datetime(2009, 11, 17, 12, 30, tzinfo=HOUR)),
        ("2009-11-17T12:30+01", datetime(2009, 11, 17, 12, 30, tzinfo=HOUR)),
        (
            "1900-01-01T00:00:00-00:53:28",
            datetime(1900, 1, 1, tzinfo=timezone(-timedelta(minutes=53, seconds=28))),
        ),
    ],
)
def test_reads_iso_8601(words: str, found: datetime) -> None:
    assert times.parse(words) == found
    assert times.parse(words).utcoffset() == found.utcoffset()


@pytest.mark.parametrize(
    "words",
    [
        "", "x", "2009", "2009-13-01", "2009-02-30", "2009-11-17T25:00", "2009-11-17T24:01",
        "2009-11-17T12:60", "9999-12-31T24:00", "2009-W54-1", "2009-11-17T12:30+99:00",
        "2009-11-17T12:30Z ", "٢٠٠٩-11-17", "2009-11-17T12:30:00." + "1" * 100,
    ],
)  # fmt: skip
def test_refuses_what_tells_no_time(words: str) -> None:
    with pytest.raises(ValueError):
        times.parse(words)


@given(st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones()))
def test_reads_what_python_writes(time: datetime) -> None:
    found = times.parse(time.isoformat())
    assert found == time.replace(tzinfo=found.tzinfo)
    assert found.utcoffset() == time.utcoffset()


@given(st.text())
def test_reads_or_refuses_anything(words: str) -> None:
    try:
        times.parse(words)
    except ValueError:
        pass


def test_a_time_without_a_zone_is_in_utc_or_where_it_is_said_to_be() -> None:
    plain = datetime(2020, 1, 1, 12)
    assert times.utc(plain) == datetime(2020, 1, 1, 12, tzinfo=UTC)
    assert times.utc(plain, HOUR) == datetime(2020, 1, 1, 11, tzinfo=UTC)
    found = times.utc(plain.replace(tzinfo=HOUR))
    assert (found.isoformat(), found.tzinfo) == ("2020-01-01T11:00:00+00:00", UTC)
    with pytest.raises(ValueError, match="no time in UTC"):
        times.utc(datetime(1, 1, 1), HOUR)


def test_a_time_from_now() -> None:
    assert times.after(0.0, 90) == datetime(1970, 1, 1, 0, 1, 30, tzinfo=UTC)
    for far in (1e300, 10**400, float("nan"), float("inf"), -1e15):
        with pytest.raises(ValueError, match="no time"):
            times.after(0.0, far)


def test_writes_as_celery_does() -> None:
    assert times.text(None) is None
    assert times.text(datetime(2020, 1, 1, tzinfo=UTC)) == "2020-01-01T00:00:00+00:00"
