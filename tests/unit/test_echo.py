"""Whether a consumer still hears anything."""

from __future__ import annotations

from wbengine.engines.worker_based.connections.connecting import Echo


def made() -> Echo:
    return Echo(quiet=10, grace=15, now=0)


def test_who_hears_others_needs_not_speak() -> None:
    echo = made()
    for now in range(5, 100, 5):
        echo.heard(now)
        assert not echo.asks(now + 4)
        assert not echo.is_deaf(now + 4)
        assert echo.next_due() == now + 10


def test_silence_makes_it_speak_once_and_not_to_hear_that_makes_it_deaf() -> None:
    echo = made()
    asked = [now for now in range(40) if echo.asks(now) or echo.is_deaf(now)]
    assert asked == [10]  # it was not published: the broker may be away
    echo.published(40)
    deaf = [now for now in range(40, 60) if echo.is_deaf(now)]
    assert deaf == [56, 57, 58, 59]


def test_its_own_voice_is_enough() -> None:
    echo = made()
    assert echo.asks(10)
    echo.published(11)
    echo.heard(12)
    assert not any(echo.is_deaf(now) for now in range(12, 22))
    assert echo.asks(22)


def test_what_was_published_late_is_not_awaited_again() -> None:
    """It was answered, or others spoke, before the publisher came to tell."""
    echo = made()
    assert echo.asks(10)
    echo.heard(11)
    echo.published(12)
    assert not any(echo.is_deaf(now) for now in range(12, 60))


def test_who_was_frozen_reads_first() -> None:
    echo = made()
    assert not echo.is_deaf(9)
    assert echo.asks(10)
    echo.published(10)
    assert not echo.is_deaf(100)
    assert not echo.is_deaf(107)
    assert not echo.is_deaf(114)
    assert echo.is_deaf(116)


def test_it_is_looked_at_in_time() -> None:
    echo = made()
    assert echo.next_due() == 10
    assert echo.asks(10)
    echo.published(10)
    now = 10.0
    turns = 0
    while not echo.is_deaf(now):
        turns += 1
        now = max(now + 0.001, echo.next_due())
    assert 25 < now < 30
    assert turns < 9
