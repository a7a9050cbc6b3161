"""Printed output: complete and masked data on standard output, notes on standard error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminals import Terminal, environment
from wbengine._cli import output, params
from wbengine._text import durations
from wbengine.views import redaction


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out, err = capsys.readouterr()
    return out, err


def test_document_begins_with_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    output.Printer(as_json=True).document("thing/1", {"a": [1, None, 2.5], "schema": "other"})
    out, _ = printed(capsys)
    assert out.startswith('{\n  "schema": "wbengine/thing/1",\n')
    assert json.loads(out) == {"schema": "wbengine/thing/1", "a": [1, None, 2.5]}


def test_values_without_json_form_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    content: dict[Any, Any] = {"n": float("nan"), "s": {1}, "o": 1j, 3: "ü"}
    output.Printer(as_json=True).event("thing/1", content)
    out, _ = printed(capsys)
    assert out.count("\n") == 1
    assert json.loads(out) == {
        "schema": "wbengine/thing/1", "n": "nan", "s": [1], "o": "1j", "3": "ü",
    }  # fmt: skip


def test_table_is_not_truncated_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 500
    output.Printer().table(("A", "B"), [(long, None), ("[red]x[/]", "y")])
    out, _ = printed(capsys)
    assert out.splitlines()[0].split() == ["A", "B"]
    assert out.splitlines()[1] == f"{long.rstrip()}   -"
    assert out.splitlines()[2].split() == ["[red]x[/]", "y"]


def test_empty_table_prints_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    output.Printer().table(("A",), [], empty="Nothing.")
    assert printed(capsys) == ("", "Nothing.\n")
    output.Printer(quiet=True).table(("A",), [], empty="Nothing.")
    assert printed(capsys) == ("", "")


def test_secrets_are_masked_in_every_kind_of_output(capsys: pytest.CaptureFixture[str]) -> None:
    secret = "redis://:canary@host/0"
    for as_json, expected in ((True, (3, 1)), (False, (3, 2))):
        printer = output.Printer(as_json=as_json, mask=redaction.Redactor().text)
        printer.document("thing/1", {"a": {"b": [secret]}, secret: 1})
        printer.event("thing/1", {"a": secret})
        printer.table(("A",), [(secret,)])
        printer.pairs([("a", secret)])
        printer.line(secret)
        printer.note(secret)
        printer.hint(secret)
        out, err = printed(capsys)
        assert "canary" not in out + err
        assert (out.count("host/0"), err.count("host/0")) == expected


SCRIPT = """
from wbengine._cli import output
printer = output.Printer(color={color!r})
print(printer.is_terminal)
printer.table(("A", "B"), [("x " * 100, "y")])
printer.table(("WORD", "B"), [("w" * 50, "y"), ("z" * 50, None)])
"""


def seen(color: str, **env: str) -> str:
    """Return the output on a terminal of 40 columns."""
    script = SCRIPT.format(color=color)
    with Terminal("-c", script, folder=Path.cwd(), columns=40, env=environment(**env)) as terminal:
        assert terminal.end() == 0
    assert not terminal.screen.overlong
    return terminal.output.decode()


def test_table_fits_a_narrow_terminal() -> None:
    told = seen("auto")
    assert told.startswith("True")
    assert "\x1b[" in told  # the head of the table is bold
    assert told.count("x") == 100
    assert len(told.splitlines()) > 5
    plain = seen("auto", NO_COLOR="1")
    assert "\x1b[" not in plain
    rows = plain.splitlines()[-7:]  # one paragraph per row, words stay whole
    assert [row.split() for row in rows if row and not set(row) <= set("wz ")] == [
        ["WORD", "w" * 34], ["B", "y"], ["WORD", "z" * 34], ["B", "-"],
    ]  # fmt: skip
    assert "\x1b[" not in seen("never")


MESSAGES = """
from wbengine._cli import output
printer = output.Printer(quiet=False)
printer.note("suspended; to go on: wbengine flow resume 5b4b4f53")
printer.note("it ended; once more: wbengine flow revert 5b4b4f53-8e10; then look at the log")
printer.line("注文の処理は、 予約の後に始まり、 支払いの後に終わります。")
printer.note("at https://127.0.0.1:8585/?token=tHxT2y2Uc1ITxfwVxxxr8phawU918yw")
output.say('{"a": "' + "b " * 20 + '"}', folded=False)
"""


def test_wide_message_is_folded_but_commands_stay_whole() -> None:
    with Terminal("-c", MESSAGES, folder=Path.cwd(), columns=40) as terminal:
        assert terminal.end() == 0
    assert terminal.screen.rows == [
        "suspended; to go on:",
        "  wbengine flow resume 5b4b4f53",
        "it ended; once more:",
        "  wbengine flow revert 5b4b4f53-8e10;",
        "  then look at the log",
        "注文の処理は、 予約の後に始まり、",
        "  支払いの後に終わります。",
        "at",
        "  https://127.0.0.1:8585/?token=tHxT2y2U",
        "c1ITxfwVxxxr8phawU918yw",
        '{"a": "b b b b b b b b b b b b b b b b b',
        ' b b b "}',
    ]


def test_message_without_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("word " * 100)
    assert printed(capsys) == ("", "word " * 100 + "\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1.5h", 5400.0), ("30d", 2592000.0), ("2 min", 120.0), ("1w", 604800.0)],
)
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert durations.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1y", "h", "1e3", "99999w", "nan", "\u0661"])
def test_invalid_duration_is_refused(text: str) -> None:
    assert durations.seconds(text) is None


def test_timestamp_is_parsed() -> None:
    assert params.TIMESTAMP.convert("1970-01-01T01:00", None, None) == 3600
    assert params.TIMESTAMP.convert("1970-01-01T01:00:00+01:00", None, None) == 0
    assert params.TIMESTAMP.convert("1970-01-02T00:00:00Z", None, None) == 86400
    ago = params.TIMESTAMP.convert("2h", None, None)
    assert 7200 <= params.TIMESTAMP.convert("0s", None, None) - ago < 7260
    with pytest.raises(Exception, match="must be a time such as"):
        params.TIMESTAMP.convert("yesterday", None, None)
