"""Printed output: masked data on standard output, notes on standard error, trees on terminals."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.terminals import Terminal, environment
from wbengine import engines, task
from wbengine._cli import output, params
from wbengine._text import durations
from wbengine.drawing import _terminal_tree as trees
from wbengine.listeners.progress import ProgressListener
from wbengine.patterns import linear_flow
from wbengine.persistence.models import FlowDetail, TaskDetail
from wbengine.types import failure as ft
from wbengine.types._outline import FLOW, TASK, Outline, OutlineNode
from wbengine.views import flow_status as flows
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


def view(sizes: list[int], states: dict[str, str], name: str = "all") -> flows.FlowView:
    """Return a flow with nested flows of these sizes; tasks have names such as '3.7' and are in
    SUCCESS unless listed in `states`.
    """
    nodes = [OutlineNode(name, FLOW, None)]
    detail = FlowDetail(name)
    detail.state = "RUNNING"
    for number, size in enumerate(sizes):
        nodes.append(OutlineNode(f"flow-{number}", FLOW, 0))
        parent = len(nodes) - 1
        for inner in range(size):
            name = f"{number}.{inner}"
            nodes.append(OutlineNode(name, TASK, parent))
            record = TaskDetail(name)
            record.state = states.get(name, "SUCCESS")
            if record.state == "FAILURE":
                record.failure = ft.Failure.from_exception(ValueError("no"))
            detail.add(record)
    return flows.view(detail, Outline(tuple(nodes), ()), None, now=0.0)


def drawn(flow_view: flows.FlowView, rows: int | None = None, encoding: str = "utf-8") -> list[str]:
    into = io.BytesIO()
    file = io.TextIOWrapper(into, encoding=encoding)
    console = Console(file=file, width=80, color_system=None)
    console.print(trees.flow_tree(flow_view, console, rows))
    file.flush()
    return into.getvalue().decode(encoding).splitlines()


def test_all_atoms_of_a_small_flow_are_drawn() -> None:
    lines = drawn(view([2, 3], {"1.2": "PENDING"}))
    assert len(lines) == 1 + 2 + 5
    assert "4 of 5 tasks done" in lines[0]
    assert lines[1].endswith("flow-0  2/2")
    assert lines[4].endswith("flow-1  2/3")


@pytest.mark.parametrize(
    ("width", "start"),
    [
        (80, f"order-shipment  INTERRUPTED  {'━' * 13}  "),
        (64, f"order-shipment  INTERRUPTED  {'━' * 9}  "),
        (59, f"order-shipment  INTERRUPTED  {'━' * 4}  "),
        (56, f"order-ship…  INTERRUPTED  {'━' * 4}  "),
    ],
)
def test_narrow_terminal_makes_bar_shorter_before_name(width: int, start: str) -> None:
    shown = dataclasses.replace(view([3], {}, "order-shipment"), duration=0.00996)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with console.capture() as capture:
        console.print(trees.flow_tree(shown, console))
    headline = capture.get().splitlines()[0]
    assert headline.startswith(start)
    assert headline.endswith("3 of 3 tasks done  10 ms")


@pytest.mark.parametrize("rows", [4, 10, 30])
def test_failed_and_running_tasks_are_drawn_first(rows: int) -> None:
    found = view([500, 500, 3], {"1.400": "FAILURE", "0.7": "RUNNING"})
    lines = drawn(found, rows)
    assert len(lines) <= rows + 5
    assert any("1.400  failure  ValueError: no" in line for line in lines)
    assert rows == 4 or any("▶ 0.7" in line for line in lines)
    for flow in ("0", "1"):
        (inside,) = (
            found
            for found in re.split(r"^[├└]── ", "\n".join(lines), flags=re.MULTILINE)
            if f"flow-{flow}" in found
        )
        (more,) = re.findall(r"── \.\.\. (\d+) more tasks: \1 success", inside)
        assert len(re.findall(rf"── . {flow}\.", inside)) + int(more) == 500
    assert rows == 4 or len(lines) > rows


def test_running_and_stored_flow_are_drawn_alike() -> None:
    def fails() -> None:
        raise ValueError("no")

    nodes = [task.FunctorTask(print, name="done"), task.FunctorTask(fails, name="bad")]
    root = linear_flow.Flow("outer").add(linear_flow.Flow("inner").add(*nodes))
    engine = engines.load(root.add(task.FunctorTask(print, name="last")), never_resolve=True)
    live = io.StringIO()
    with (
        pytest.raises(ValueError, match="no"),
        ProgressListener(engine, Console(file=live), live=True),
    ):
        engine.run()
    outline = engine.compilation.outline
    stored = drawn(flows.view(engine.storage.flow_detail, outline, None, now=0.0))
    rows = [line for line in live.getvalue().splitlines() if "── " in line][-4:]
    lines = [re.sub(r"  (< )?[\d.]+ m?s|  on local", "", line.rstrip()) for line in stored[1:]]
    assert rows == [
        "├── ✘ inner  1/2",
        "│   ├── ✔ done",
        "│   └── ✘ bad  failure  ValueError: no",
        "└── ○ last",
    ]
    assert lines == rows


def test_enclosing_flows_of_a_deep_flow_are_summarized() -> None:
    nodes = [OutlineNode(f"level-{n}", FLOW, n - 1 if n else None) for n in range(100)]
    nodes.append(OutlineNode("bad", TASK, 99))
    detail, record = FlowDetail("level-0"), TaskDetail("bad")
    record.state = "FAILURE"
    detail.add(record)
    lines = drawn(flows.view(detail, Outline(tuple(nodes), ()), None, now=0.0), 10)
    assert [line.split()[-1] for line in lines[1:3]] == ["0/1", "0/1"]
    assert lines[3].endswith("... 94 enclosing flows")
    assert len(lines) == 8 and lines[-1].endswith("── ✘ bad  failure")


def test_tree_of_equal_flows_fits_the_rows() -> None:
    assert len(drawn(view([5] * 40, {}), 20)) <= 22


def test_terminal_without_unicode_gets_ascii_icons() -> None:
    lines = drawn(view([1], {}), encoding="ascii")
    assert "+ 0.0" in lines[-1]
