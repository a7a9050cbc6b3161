"""`wbengine flow debug` on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.terminals import CTRL_C, Terminal
from tests.terminal.conftest import Shop

UUID = "11111111-0000-4000-8000-000000000003"

PLAIN = """\
import pathlib

from wbengine import task


def note(word):
    with open("calls", "a") as file:
        file.write(word)


@task.task
def charge(order):
    note("charge ")
    return f"receipt {order}"


@charge.revert
def refund(order, **_):
    note("refund ")


@task.task
def pack(order):
    note("pack ")
    raise LookupError("no box")


@task.workflow(name="order")
def order(steps, order):
    receipt = steps.run(charge, order)
    started = steps.now()
    try:
        steps.run(pack, order)
    except LookupError as error:
        reason = str(error)
        raise RuntimeError(reason)
    return receipt
"""
ASYNC = PLAIN.replace("def order(", "async def order(").replace("steps.run", "await steps.run")


@pytest.fixture(params=[PLAIN, ASYNC], ids=["plain", "async"])
def reverted(request: pytest.FixtureRequest, shop: Shop) -> Shop:
    """A shop with a flow that failed and was reverted."""
    (shop.folder / "orders.py").write_text(request.param, encoding="utf-8")
    words = ["flow", "run", "orders:order", "--inputs", '{"order":7}', "--flow-id", UUID]
    assert shop.run(words, checked=False).process.returncode == 1
    assert calls(shop.folder) == "charge pack refund "
    return shop


def calls(folder: Path) -> str:
    return (folder / "calls").read_text(encoding="utf-8")


def enter(terminal: Terminal, command: str, expected: str) -> None:
    """Enter a command of the debugger, and wait for its output."""
    terminal.wait_for(r"\(Pdb\) *$")
    terminal.press(f"{command}\r")
    terminal.wait_for(expected)


def test_function_is_debugged_with_stored_results(reverted: Shop) -> None:
    exported = reverted.quietly(f"flow show {UUID} --json")
    with reverted.terminal(f"flow debug {UUID}", checked=False) as terminal:
        terminal.wait_for("-> receipt = ")
        enter(terminal, "n", "-> started = ")
        enter(terminal, "p receipt", "'receipt 7'")
        enter(terminal, "n", "-> try:")
        enter(terminal, "b 36", "Breakpoint 1")
        enter(terminal, "c", "-> raise RuntimeError")
        enter(terminal, "p reason", "'no box'")
        enter(terminal, "c", "the function raised no box")
        assert terminal.end() == 0
    assert calls(reverted.folder) == "charge pack refund "
    assert reverted.quietly(f"flow show {UUID} --json") == exported


@pytest.mark.parametrize("step", ["0", "charge", "order/1.0-charge"])
def test_debugger_stops_after_chosen_step(reverted: Shop, step: str) -> None:
    with reverted.terminal(f"flow debug {UUID} --at {step}", checked=False) as terminal:
        terminal.wait_for("-> started = ")
        enter(terminal, "p receipt", "'receipt 7'")
        enter(terminal, "q", r"\(Pdb\) q")
        assert terminal.end() == 0
    assert "the function" not in terminal.text


def test_failed_step_raises_in_the_function(reverted: Shop) -> None:
    with reverted.terminal(f"flow debug {UUID} --at pack", checked=False) as terminal:
        terminal.wait_for("no box")
        enter(terminal, "c", "the function raised")
        assert terminal.end() == 0
    assert "the function raised no box" in terminal.text


def test_breakpoint_of_the_function_opens_the_same_debugger(reverted: Shop) -> None:
    path = reverted.folder / "orders.py"
    text = path.read_text(encoding="utf-8").replace("    started", "    breakpoint()\n    started")
    path.write_text(text, encoding="utf-8")
    with reverted.terminal(f"flow debug {UUID} --at pack", checked=False) as terminal:
        terminal.wait_for("-> started = ")
        enter(terminal, "c", "no box")


def test_other_code_ends_with_an_error(reverted: Shop) -> None:
    path = reverted.folder / "orders.py"
    text = path.read_text(encoding="utf-8").replace("(charge, order)", "(charge, 8)")
    path.write_text(text, encoding="utf-8")
    with reverted.terminal(f"flow debug {UUID} --at pack", checked=False) as terminal:
        assert terminal.end() == 1
    text = "".join(terminal.screen.rows)
    assert re.search(r"step 0 is *recorded as orders:charge", text), text


def test_ctrl_c_returns_to_the_debugger(reverted: Shop) -> None:
    path = reverted.folder / "orders.py"
    text = path.read_text(encoding="utf-8").replace(
        "    started", "    print('end' 'less')\n    while True:\n        pass\n    started"
    )
    path.write_text(text, encoding="utf-8")
    with reverted.terminal(f"flow debug {UUID}", checked=False) as terminal:
        enter(terminal, "c", "endless")
        terminal.press(CTRL_C)
        enter(terminal, "q", r"\(Pdb\) q")
        assert terminal.end() == 0


#: A standard output that receives Ctrl-C while it writes a word. Its code is generated, so that the
#: debugger does not stop in it.
INTERRUPTED = """\
import io
import signal
import sys

WRITE = '''
def write(self, data):
    written = io.FileIO.write(self, data)
    if b"endless" in bytes(data) and not self.was_interrupted:
        self.was_interrupted = True
        signal.raise_signal(signal.SIGINT)
    return written
'''
names = {"io": io, "signal": signal, "was_interrupted": False}
exec(WRITE, names)
Interrupted = type("Interrupted", (io.FileIO,), names)
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Interrupted(1, "w")), line_buffering=True)

"""


def test_ctrl_c_during_a_write_returns_to_the_debugger(reverted: Shop) -> None:
    path = reverted.folder / "orders.py"
    text = path.read_text(encoding="utf-8").replace(
        "    started", "    print('end' 'less')\n    started"
    )
    path.write_text(INTERRUPTED + text, encoding="utf-8")
    with reverted.terminal(f"flow debug {UUID}", checked=False) as terminal:
        enter(terminal, "c", "endless")
        enter(terminal, "p receipt", "'receipt 7'")
        enter(terminal, "q", r"\(Pdb\) q")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--at", "ship"], 66, "has no step 'ship'"),
        (["--workflow", "orders"], 2, "has not begun workflow 'orders'"),
        (["--debugpy", "5678"], 2, "debugpy"),
    ],
)
def test_unknown_step_workflow_or_debugger_is_an_error(
    reverted: Shop, words: list[str], code: int, text: str
) -> None:
    with reverted.terminal(["flow", "debug", UUID, *words], checked=False) as terminal:
        assert terminal.end() == code
    assert text in "".join(terminal.screen.rows)
