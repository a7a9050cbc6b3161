"""Interrupts of the main thread at chosen instructions.

The signal arrives just before the instruction is executed, and Python raises `KeyboardInterrupt`
where it raises a real one: at the next function call, return from C, or backward jump. (A trace
function that raises an exception could interrupt where no signal can, for example between the body
of a `with lock` and the release of the lock.)
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

__all__ = ["Point", "interrupt_at", "points_of", "record", "waking_main_thread"]


class Point(NamedTuple):
    """An instruction, given by its code object and its offset."""

    code: CodeType
    offset: int

    def __str__(self) -> str:
        line = next(n for begin, end, n in self.code.co_lines() if begin <= self.offset < end)
        name = getattr(self.code, "co_qualname", self.code.co_name)
        return f"{self.code.co_filename.rpartition('/')[2]}:{line} {name}+{self.offset}"


#: Instructions at which Python checks for signals, in addition to the beginning of a function.
_CHECKING = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
#: Instructions before the first one that all versions of Python report to a trace function.
_PROLOGUE = ("COPY_FREE_VARS", "GEN_START", "MAKE_CELL", "POP_TOP", "RESUME", "RETURN_GENERATOR")


@functools.cache
def _offsets(code: CodeType) -> frozenset[int]:
    instructions = list(dis.get_instructions(code))
    first = next(each.offset for each in instructions if each.opname not in _PROLOGUE)
    return frozenset(
        each.offset
        for each in instructions
        if each.offset == first or each.opname.startswith(_CHECKING)
    )


def points_of(*functions: Callable[..., Any]) -> list[Point]:
    """Return the instructions of these functions before which a signal makes a difference."""
    codes = [getattr(function, "__func__", function).__code__ for function in functions]
    return [Point(code, offset) for code in codes for offset in sorted(_offsets(code))]


def _traced(
    run: Callable[[], Any],
    is_wanted: Callable[[CodeType], bool],
    on_instruction: Callable[[FrameType, str, Any], Any],
) -> Any:
    """Return `run()`, with the trace function `on_instruction` called before each instruction."""

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if not is_wanted(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        return on_instruction

    # Python 3.12 traces opcodes only if a frame has this attribute before `sys.settrace`, and 3.13
    # only in frames whose lines are traced.
    sys._getframe().f_trace_opcodes = True
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        return run()
    finally:
        sys.settrace(before)


def record(run: Callable[[], Any], is_wanted: Callable[[CodeType], bool]) -> dict[Point, int]:
    """Call `run()`. Return how often this thread reached each wanted point."""
    counts: dict[Point, int] = {}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _offsets(frame.f_code):
            point = Point(frame.f_code, frame.f_lasti)
            counts[point] = counts.get(point, 0) + 1
        return trace

    _traced(run, is_wanted, trace)
    return counts


class _Trip:
    """`trip[SIGINT]` delivers the signal.

    Python checks for signals after a call, but not after a subscript. So it checks only after the
    trace function has returned.
    """

    __getitem__: Any = _thread.interrupt_main


def interrupt_at(point: Point, run: Callable[[], Any], nth: int = 1) -> Any:
    """Return `run()`, with Ctrl-C when the main thread reaches `point` for the `nth` time.

    :raises KeyboardInterrupt: usually.
    """
    trip, count = _Trip(), 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if event == "opcode" and frame.f_lasti == point.offset:
            count += 1
            if count == nth:
                sys.settrace(None)
                return trip[signal.SIGINT]
        return trace

    return _traced(run, lambda code: code is point.code, trace)


@contextlib.contextmanager
def waking_main_thread() -> Iterator[None]:
    """Interrupt the waits of the main thread again and again, by a signal without an effect.

    If SIGINT arrives just before the main thread waits in C, Python handles it after the wait.
    """
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    is_over = threading.Event()

    def wake() -> None:
        while not is_over.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    waking = threading.Thread(target=wake)
    waking.start()
    try:
        yield
    finally:
        is_over.set()
        waking.join()
        signal.signal(signal.SIGUSR1, before)
