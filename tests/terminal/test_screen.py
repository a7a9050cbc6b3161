"""The emulated screen of the terminal tests."""

from __future__ import annotations

import pyte

from tests.support.terminals import Screen


def screen_with(text: str, columns: int = 10, lines: int = 4) -> Screen:
    screen = Screen(columns, lines)
    pyte.Stream(screen).feed(text)
    return screen


def test_row_that_is_too_long_is_recorded_and_wrapped() -> None:
    screen = screen_with("0123456789\r\nabcdefghijk")
    assert screen.rows == ["0123456789", "abcdefghij", "k"]
    assert screen.overlong == ["abcdefghij"]


def test_wide_character_that_does_not_fit_is_wrapped() -> None:
    screen = screen_with("012345678注")
    assert screen.rows == ["012345678", "注"] and screen.overlong == ["012345678"]
    assert not screen_with("01234567注").overlong


def test_long_line_is_recorded_once() -> None:
    assert screen_with("0123456789" * 3 + "\r\nabc").overlong == ["0123456789"]


def test_combining_characters_take_no_column() -> None:
    screen = screen_with("e\u0301" * 10)
    assert screen.rows == ["e\u0301" * 10] and not screen.overlong
    assert screen_with("注\u3099x").rows == ["注\u3099x"]


def test_rows_that_are_scrolled_off_stay_in_scrollback() -> None:
    screen = screen_with("\r\n".join("abcdef"))
    assert screen.rows == ["c", "d", "e", "f"]
    assert screen.scrollback == ["a", "b", "c", "d", "e", "f"]


def test_smaller_screen_loses_empty_rows_first() -> None:
    screen = screen_with("a\r\nb\r\nc", lines=6)
    screen.resize(3, 10)
    assert screen.rows == ["a", "b", "c"] and screen.cursor.y == 2
    screen.resize(2, 1)
    assert screen.rows == ["b", "c"] and screen.cursor.y == 1
    assert screen.scrollback == ["a", "b", "c"]
