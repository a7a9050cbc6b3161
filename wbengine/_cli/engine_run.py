"""Run of an engine for a command: progress, interruption and result."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions, states
from wbengine._cli import (
    errors,
    output,
    standard_streams,
    stop_signals,
    store_access,
)
from wbengine.types import codec
from wbengine.views import _json_values

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence
    from wbengine.persistence import models
    from wbengine.types.failure import Failure
    from wbengine.views.redaction import Redactor

__all__ = ["Running", "explaining_interrupts"]

#: Maximum number of failures whose frames are printed at the end of a run.
_MAX_TRACEBACKS: Final = 3

#: Maximum wait for the last screen of a run that is given up.
_STOP_SECONDS: Final = 1.0

#: Errors that end a run without a failure of the flow.
_INFRASTRUCTURE_ERRORS: Final = (
    exceptions.StorageFailure,
    exceptions.FlowBusy,
    exceptions.InvalidState,
    exceptions.LeaseLost,
    exceptions.TransportFailure,
)


@dataclass(frozen=True, kw_only=True)
class Running:
    """One run of one engine."""

    context: Context
    backend: persistence.Backend
    engine: Engine
    #: Schema of the document with the result, such as 'flow-run/1'.
    schema: str
    #: Whether to show progress; None: only on a terminal.
    progress: bool | None = None
    report: str | None = None
    #: None: no limit.
    deadline: float | None = None
    #: The state of the flow for which the exit code is 0.
    expected_state: str = states.SUCCESS
    #: Whether conductors continue the flow after this run.
    is_submitted: bool = False
    _stop_displays: list[Callable[[], None]] = field(default_factory=list)

    @cached_property
    def _signals(self) -> stop_signals.StopSignals:
        return stop_signals.StopSignals(self._suspend, self._give_up, lambda: [self.engine])

    @property
    def uuid(self) -> str:
        return str(self.engine.storage.flow_uuid)

    def perform(self) -> int:
        """Run the flow to its end and return the exit code.

        :raises Exception: if the run could not take place, as opposed to a failure of the flow.
        """
        began = time.monotonic()
        failure: BaseException | None = None
        with (
            self._signals.installed(),
            standard_streams.aside(),
            self._showing_progress(),
            self._traced(),
        ):
            try:
                self.engine.run(deadline=self.deadline)
            except SystemExit:
                self._print_end()  # prints how to continue
                raise
            except Exception as error:
                if not self._has_result(error):
                    raise
                failure = error
        self._print_result(time.monotonic() - began, failure)
        if self.report is not None:
            self._write_report()
        return self._print_end()

    def _has_result(self, error: Exception) -> bool:
        """Return whether the flow failed or is blocked, so that its result is printed."""
        is_lost = isinstance(error, exceptions.PayloadUnavailable)
        # Without the setting, the run did not begin.
        is_lost = is_lost and self.engine.storage.payloads is not None
        if isinstance(error, _INFRASTRUCTURE_ERRORS) and not is_lost:
            return False
        return self.state in (states.FAILURE, states.REVERTED) or self._detail.is_blocked

    @property
    def _detail(self) -> models.FlowDetail:
        return self.engine.storage.flow_detail

    def _suspend(self) -> None:
        self.engine.suspend()
        output.say_on_new_line(
            "suspending after the running tasks; press Ctrl-C again to stop at once"
        )

    def _give_up(self) -> None:
        # A live tree hides the cursor and would overwrite the next message. Each thread gets a
        # limited time, so that the process ends in any case.
        for stop in self._stop_displays:
            stopping = threading.Thread(target=stop, daemon=True)
            stopping.start()
            stopping.join(_STOP_SECONDS)
        output.say_on_new_line(f"stopped; {self._continuation}")
        logging.shutdown()
        os._exit(errors.INTERRUPTED)

    @property
    def _continuation(self) -> str:
        if self.is_submitted and not self._detail.is_suspended_by_command:
            return "conductors (wbengine serve) continue it"
        return f"to resume: wbengine flow resume {self.uuid}"

    @property
    def state(self) -> str:
        """The current state of the flow."""
        return str(self.engine.storage.get_flow_state())

    @property
    def shown_state(self) -> str:
        """The current state of the flow as users see it."""
        from wbengine.views import _shown_states

        detail = self._detail
        return _shown_states.shown_state(
            self.state, "", False, cancelled=detail.is_cancelled, blocked=detail.is_blocked
        )

    def _print_end(self) -> int:
        state, printer = self.state, self.context.printer
        details = f"; details: wbengine flow show {self.uuid}" if self._is_durable else ""
        if state == self.expected_state:
            printer.guide(f"{self.shown_state}{details}")
            return errors.OK
        if self._detail.is_blocked:
            reason = self._redactor().text(self._detail.difference or "")
            printer.note(f"{self.shown_state}: {reason}{details}")
            return errors.UNHEALTHY
        if state == states.SUSPENDED:
            advice = f"; {self._continuation}" if self._is_durable else ""
            printer.note(f"suspended{advice}")
            return errors.INTERRUPTED if self._signals.received else errors.TRY_AGAIN
        printer.note(f"{self.shown_state}{details}")
        return errors.UNHEALTHY

    @property
    def _is_durable(self) -> bool:
        return not store_access.is_in_process(self.context.settings)

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        from wbengine.telemetry import _programs

        with _programs.traced(self.engine):
            yield

    @contextlib.contextmanager
    def _showing_progress(self) -> Iterator[None]:
        show_progress = self.progress
        if show_progress is None:
            show_progress = output.is_seen(sys.stderr) and not self.context.settings.quiet
        if not show_progress:
            yield
            return
        from wbengine.listeners import progress

        mask = self._redactor().text
        listener = progress.ProgressListener(self.engine, self.context.printer.stderr, mask=mask)
        self._stop_displays.append(listener.deregister)
        with listener:
            yield

    def _redactor(self) -> Redactor:
        """Return a redactor that also masks the secrets that the flow currently contains."""
        return self.context.redactor.with_secrets_of_flow(self._detail)

    def _print_result(self, seconds: float, failure: BaseException | None) -> None:
        storage, redactor = self.engine.storage, self._redactor()
        found = storage.fetch_many(load=False) if self.state == states.SUCCESS else {}
        values: dict[str, Any] = {
            name: each[0] if len(each) == 1 else each for name, each in found.items()
        }
        printer = self.context.printer
        is_shortened = False
        if printer.is_terminal and not printer.as_json:
            values, is_shortened = _json_values.shorten(values)
        failed = storage.get_failures()
        failures = [
            {"atom": name, "type": next(iter(each), ""), "message": each.exception_str}
            for name, each in failed.items()
        ]
        if failure is not None and not failures:
            failures = [{"message": errors.line_of(failure)}]
        content = {
            "uuid": self.uuid,
            "name": storage.flow_name,
            "state": self.state,
            "shown_state": self.shown_state,
            "duration": round(seconds, 3),
            "results": _json_values.to_json(values, redactor.text, _text_of),
            "failures": _json_values.to_json(failures, redactor.text, repr),
        }
        try:
            printer.document(self.schema, content, always=True)
        except BrokenPipeError:  # the exit code still reports the result
            standard_streams.forget_output()
        except errors.Failed as error:
            advice = f"{error.line}; for the result: wbengine flow show {self.uuid}"
            raise errors.Failed(advice, error.code) from error
        if is_shortened:
            command = f"wbengine flow show {self.uuid} --results"
            advice = command if self._is_durable else "pass --json"
            members = f"first {_json_values.MAX_MEMBERS} members of each list"
            printer.note(f"{members}; for all: {advice}")

        if failed and self.state in states.FLOW_ENDED:
            self._show_frames(failed)
        if self._has_logs():
            printer.guide(
                f"logs of its tasks are kept (INFO and higher): wbengine flow logs {self.uuid}"
            )

    def _has_logs(self) -> bool:
        if not self._is_durable or not output.is_seen(sys.stderr):
            return False
        with contextlib.closing(self.backend.get_connection()) as connection:
            return bool(connection.get_logs(self.uuid, limit=1))

    def _show_frames(self, failed: Mapping[str, Failure]) -> None:
        from wbengine.persistence import _history
        from wbengine.views import _atoms

        printer, redactor = self.context.printer, self._redactor()
        for name, failure in itertools.islice(failed.items(), _MAX_TRACEBACKS):
            view = _atoms.failure_of(failure, redactor)
            text = view.text if self.context.settings.traceback else view.user_text
            if text:
                printer.hint(redactor.text(f"failed: {name}: {_history.one_line(failure)}"))
                printer.hint_lines(text)
        if len(failed) > _MAX_TRACEBACKS:
            printer.hint(f"and {len(failed) - _MAX_TRACEBACKS:,} more failed atoms")

    def _write_report(self) -> None:
        from wbengine import report
        from wbengine.views import flow_status as flows

        assert self.report is not None
        with contextlib.closing(self.backend.get_connection()) as connection:
            view = flows.read(connection, self.uuid, redactor=self.context.redactor)
        report.write(self.report, view)
        self.context.printer.note(f"report: {self.report}")


def _text_of(value: Any) -> str:
    return codec.summary(value) or repr(value)


@contextlib.contextmanager
def explaining_interrupts(
    context: Context, backend: persistence.Backend, uuid: str
) -> Iterator[None]:
    """Add the uuid of the flow and how to continue to the message of an interruption.

    This covers interruptions before and after the run, as soon as the flow is stored.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        state = _stored_state(context, backend, uuid)
        if state is None:
            raise
        if state in states.FLOW_ENDED:
            advice = f"the flow ended in state {state}; details: wbengine flow show {uuid}"
        else:
            advice = f"the flow is stored; to resume: wbengine flow resume {uuid}"
        raise errors.Failed(f"interrupted; {advice}", errors.INTERRUPTED) from error


def _stored_state(context: Context, backend: persistence.Backend, uuid: str) -> str | None:
    """Return the stored state of the flow.

    The result is None if the flow is not stored, if the store exists only in this process, or if
    the store does not answer.
    """
    if store_access.is_in_process(context.settings):
        return None

    def ask() -> str:
        with contextlib.closing(backend.get_connection()) as connection:
            return connection.get_flow_details(uuid, lazy=True).state or states.PENDING

    with contextlib.suppress(exceptions.WbengineException, errors.Failed):
        return store_access.call_in_time(context.settings, ask)
    return None
