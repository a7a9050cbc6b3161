"""`wbengine flow debug`: replay a workflow in a debugger."""

from __future__ import annotations

import bdb
import pdb
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

import click

from wbengine import exceptions
from wbengine._cli import base, common_options, errors
from wbengine._cli import context as contexts
from wbengine._introspection import object_names
from wbengine._runtime.workflows.history import History, RecordedStep
from wbengine._runtime.workflows.program import Program
from wbengine._tasks.commands import Command
from wbengine.engines import _flow_replays, _loading
from wbengine.types import failure as ft

__all__ = ["command"]

_LOCAL_HOST: Final = "127.0.0.1"
_PACKAGE: Final = __name__.partition(".")[0]

_R = TypeVar("_R")


@base.command(
    "debug",
    help="""Replay the workflow of a flow in a debugger.

    The function runs in this process, with the code of this folder. Each step returns its stored
    result: no task is executed, and nothing is written. The debugger (pdb) stops at the first line
    of the function, or with --at when the function has received the result of this step. The replay
    ends at the first step without a result.

    \b
    Examples:
      wbengine flow debug 3f2a9c
      wbengine flow debug 3f2a9c --at charge
      wbengine flow debug 3f2a9c --debugpy 5678
    """,
)
@common_options.FLOW
@click.option("--at", metavar="STEP",
    help="Stop at the step with this number, name or uuid; of several steps with a name, at the"
    " first.")  # fmt: skip
@click.option("--workflow", metavar="NAME",
    help="Workflow to replay, if the flow has several.")  # fmt: skip
@click.option("--debugpy", "port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Wait for a debugger of the protocol DAP, such as that of VS Code, at this port of this"
    " host. This requires the package debugpy.")  # fmt: skip
def command(
    context: contexts.Context, flow: str, at: str | None, workflow: str | None, port: int | None
) -> int:
    with (
        context.flow(flow) as (connection, uuid),
        errors.running_user_code(f"cannot load flow {uuid}"),
    ):
        detail = _loading.read_flow_detail(connection, uuid)
        payloads = connection.backend.payloads
        stored = _flow_replays.find(detail, workflow, payloads=payloads)
        recorded = stored.recorded()
        position = None if at is None else _position(at, recorded)
        program = _debug(context, stored, recorded, position, port)
    return _report(context, stored, program)


def _position(text: str, recorded: list[RecordedStep]) -> int:
    """Return the position of a step.

    :raises Failed: if no step has this number, name or uuid.
    """
    names: dict[str, int] = {}
    for record, note in sorted(recorded, key=lambda each: each.note.position):
        for name in (str(note.position), record.uuid, record.name, note.short_name(record.name)):
            names.setdefault(name, note.position)
    if text not in names:
        hint = object_names.hint(text, names)
        raise errors.Failed(f"The workflow has no step {text!r}{hint}", errors.NO_SUCH)
    return names[text]


def _debug(
    context: contexts.Context,
    stored: _flow_replays.StoredWorkflow,
    recorded: list[RecordedStep],
    position: int | None,
    port: int | None,
) -> Program | None:
    """Replay a workflow in a debugger. Return None if the user quits."""
    steps = _StoppingHistory(stored.record.name, recorded)
    steps.position = position
    if port is not None:
        steps.stop = _listen(context, port)
        return stored.replay(steps)
    debugger = _Debugger()
    steps.stop = debugger.stop_at_caller
    return debugger.result_of(lambda: stored.replay(steps), stops_at_begin=position is None)


class _StoppingHistory(History):
    """A history that calls a function when the workflow calls a step."""

    position: int | None = None
    stop: Callable[[], object] | None = None

    def check(self, position: int, command: Command) -> None:
        super().check(position, command)
        if position == self.position and self.stop is not None:
            self.stop()


class _Debugger(pdb.Pdb):
    """A debugger that stops only in code of the user."""

    def result_of(self, function: Callable[[], _R], *, stops_at_begin: bool) -> _R | None:
        """Debug a function, and return its result, or None if the user quits."""
        breakpoint_hook = sys.breakpointhook
        sys.breakpointhook = lambda *args, **kwargs: self.stop_at_caller()
        self.reset()
        self.botframe = sys._getframe()
        if stops_at_begin:
            sys.settrace(self.trace_dispatch)
        try:
            result = function()
        except bdb.BdbQuit:
            return None
        finally:
            sys.settrace(None)
            sys.breakpointhook = breakpoint_hook
        return None if self.quitting else result

    def stop_at_caller(self) -> None:
        """Stop at the next line of the user's code that called this."""
        self.set_trace(_user_frame())

    def sigint_handler(self, signum: signal.Signals, frame: FrameType) -> None:
        """Stop at the next line after Ctrl-C.

        Nothing is printed before that line: if the signal arrives during a write, a second write
        to the same file raises RuntimeError, which the function would receive.
        """
        self.set_trace(frame)

    def stop_here(self, frame: FrameType) -> bool:
        return not _is_library(frame) and super().stop_here(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        pass  # It stops at the first line.

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        pass  # A coroutine also returns when it waits.

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop in the code of the user, not where a library raised the exception."""
        kind, error, _ = exc_info
        self.message("".join(traceback.format_exception_only(kind, error)).rstrip())
        self.interaction(frame, None)


def _user_frame() -> FrameType | None:
    """Return the innermost frame of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return frame


def _is_library(frame: FrameType) -> bool:
    """Return whether a frame belongs to wbengine, Python or generated code."""
    top = frame.f_globals.get("__name__", "").partition(".")[0]
    is_generated = frame.f_code.co_filename.startswith("<")
    return is_generated or top == _PACKAGE or top in sys.stdlib_module_names


def _listen(context: contexts.Context, port: int) -> Callable[[], object]:
    """Wait for a debugger. Return a function that stops in it.

    :raises Failed: if debugpy is not installed.
    """
    with errors.failing(errors.USAGE, ImportError, where="--debugpy"):
        debugpy: Any = object_names.import_module("debugpy")
    debugpy.listen((_LOCAL_HOST, port))
    context.printer.note(f"waiting for a debugger at {_LOCAL_HOST}:{port}")
    debugpy.wait_for_client()
    pydevd: Any = object_names.import_module("pydevd")  # a part of debugpy

    def stop() -> None:
        pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            stop_at_frame=_user_frame(),
        )

    return stop


def _report(
    context: contexts.Context, stored: _flow_replays.StoredWorkflow, program: Program | None
) -> int:
    printer = context.printer
    if program is None:
        return errors.OK
    if isinstance(program.error, exceptions.NonDeterministicWorkflow):
        raise errors.Failed(errors.line_of(program.error))
    if program.error is not None:
        raise program.error
    if not program.is_over:
        printer.line(
            f"the replay ended: {program.called_count} steps were called, and the function waits"
        )
    elif isinstance(program.value, ft.Failure):
        printer.line(f"the function raised {program.value.exception_str}")
    else:
        printer.line(f"the function returned {context.redactor.text(repr(program.value))}")
    return errors.OK
