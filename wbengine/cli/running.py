"""Runs an engine for a command: shows it, lets it be interrupted, and tells what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import _streams, exceptions, states
from wbengine.cli import errors, fleets, output, signals, stores

if TYPE_CHECKING:
    from wbengine.cli.context import Context
    from wbengine.engines.base import Engine
    from wbengine.persistence import base as persistence
    from wbengine.views.redaction import Redactor

__all__ = ["Running", "engine_options", "named"]

#: What ends a run, and is no failure of the flow.
_NOT_OF_THE_FLOW: Final = (
    exceptions.StorageFailure,
    exceptions.FlowBusy,
    exceptions.LeaseLost,
    exceptions.TransportFailure,
)


@dataclass(frozen=True, kw_only=True)
class Running:
    """One run of one engine."""

    context: Context
    backend: persistence.Backend
    engine: Engine
    #: Of the document that tells the result: 'flow-run/1'.
    schema: str
    #: Show how far it is; None: if somebody looks.
    progress: bool | None = None
    #: A file that gets the report of the run.
    report: str | None = None
    #: Seconds after which it is reverted.
    deadline: float | None = None
    #: The state that is a success of the command.
    wanted: str = states.SUCCESS

    @cached_property
    def _signals(self) -> signals.StopSignals:
        return signals.StopSignals(self._suspend, self._give_up)

    @property
    def uuid(self) -> str:
        return str(self.engine.storage.flow_uuid)

    def perform(self) -> int:
        """Run it to its end; returns the exit code.

        :raises Exception: what kept it from being run, rather than made the flow fail.
        """
        began = time.monotonic()
        failure: BaseException | None = None
        with self._signals.installed(), _streams.aside(), self._shown(), self._traced():
            try:
                self.engine.run(deadline=self.deadline)
            except _NOT_OF_THE_FLOW:
                raise
            except SystemExit:
                self._ended()  # says how to go on
                raise
            except Exception as error:
                if self.state not in (states.FAILURE, states.REVERTED):
                    raise
                failure = error
        self._tell(time.monotonic() - began, failure)
        if self.report is not None:
            self._write_report()
        return self._ended()

    def _suspend(self) -> None:
        self.engine.suspend()
        output.say_behind_ctrl_c("suspending: what runs is finished; once more to give it up")

    def _give_up(self) -> None:
        output.say_behind_ctrl_c(f"given up; to go on: wbengine flow resume {self.uuid}")
        logging.shutdown()
        os._exit(errors.INTERRUPTED)

    @property
    def state(self) -> str:
        """The flow's, now."""
        return str(self.engine.storage.get_flow_state())

    def _ended(self) -> int:
        state, printer = self.state, self.context.printer
        if state == self.wanted:
            return errors.OK
        if state == states.SUSPENDED:
            printer.note(f"suspended; to go on: wbengine flow resume {self.uuid}")
            return errors.INTERRUPTED if self._signals.received else errors.TRY_AGAIN
        printer.note(f"{state}; what happened: wbengine flow show {self.uuid} --traceback")
        return errors.UNHEALTHY

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
        from wbengine.telemetry import programs

        with programs.traced(self.engine):
            yield

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        wanted = self.progress
        if wanted is None:
            wanted = output.is_seen(sys.stderr) and not self.context.settings.quiet
        if not wanted:
            yield
            return
        from wbengine.listeners import progress

        mask = self._redactor().text
        with progress.ProgressListener(self.engine, self.context.printer.stderr, mask=mask):
            yield

    def _redactor(self) -> Redactor:
        """It knows the secrets that the flow has by now."""
        return self.context.redactor.with_secrets_of_flow(self.engine.storage.flow_detail)

    def _tell(self, seconds: float, failure: BaseException | None) -> None:
        from wbengine.cli import results

        storage, redactor = self.engine.storage, self._redactor()
        found = storage.fetch_all() if self.state == states.SUCCESS else {}
        failures = [
            {"atom": name, "type": next(iter(failed), ""), "message": failed.exception_str}
            for name, failed in storage.get_failures().items()
        ]
        if failure is not None and not failures:
            failures = [{"message": errors.line_of(failure)}]
        content = {
            "uuid": self.uuid,
            "name": storage.flow_name,
            "state": self.state,
            "duration": round(seconds, 3),
            "results": results.shown(found, redactor.text, repr),
            "failures": results.shown(failures, redactor.text, repr),
        }
        try:
            self.context.printer.document(self.schema, content, always=True)
        except BrokenPipeError:  # who ran it is told by the exit code
            _streams.forget_output()
        except errors.Failed as error:
            how = f"{error.line}; what came of it: wbengine flow show {self.uuid}"
            raise errors.Failed(how, error.code) from error

    def _write_report(self) -> None:
        from wbengine import report
        from wbengine.views import flow as flows

        assert self.report is not None
        with contextlib.closing(self.backend.get_connection()) as connection:
            view = flows.read(connection, self.uuid, redactor=self.context.redactor)
        report.write(self.report, view)
        self.context.printer.note(f"report: {self.report}")


@contextlib.contextmanager
def named(context: Context, backend: persistence.Backend, uuid: str) -> Iterator[None]:
    """Who interrupts what goes on here, before the run or after it, learns of the flow, once it is
    kept, and how to go on with it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        state = _kept_state(context, backend, uuid)
        if state is None:
            raise
        if state in states.FLOW_ENDED:
            how = f"the flow has ended in {state}: wbengine flow show {uuid}"
        else:
            how = f"the flow is kept; to go on: wbengine flow resume {uuid}"
        raise errors.Failed(f"interrupted; {how}", errors.INTERRUPTED) from error


def _kept_state(context: Context, backend: persistence.Backend, uuid: str) -> str | None:
    """None: it is not kept, as far as is known, or not for long."""
    if stores.is_of_this_process(context.settings):
        return None

    def ask() -> str:
        with contextlib.closing(backend.get_connection()) as connection:
            return connection.get_flow_details(uuid, lazy=True).state or states.PENDING

    with contextlib.suppress(exceptions.WbengineException, errors.Failed):
        return stores.answered(context.settings, ask)
    return None


def engine_options(context: Context, engine: str) -> dict[str, Any]:
    """What the settings say that this kind of engine wants to know; a broker that it takes was
    reached.

    :raises Failed: there is no such kind.
    :raises TransportFailure: the broker is not there.
    """
    from wbengine import _plugins
    from wbengine.engines import loading

    settings = context.settings
    with errors.failing(errors.USAGE, exceptions.NotFound, where="--engine"):
        found = _plugins.find(loading.ENGINES_NAMESPACE, engine.partition(":")[0])
    known = found.known_options() if hasattr(found, "known_options") else ()
    told = {
        "url": settings.url,
        "exchange": settings.exchange,
        "transport": settings.transport,
        "transport_options": dict(settings.transport_options) or None,
        "ledger": settings.ledger,
        "keys": settings.keys,
    }
    given = dict(urllib.parse.parse_qsl(engine.partition("?")[2]))
    options = {
        name: value
        for name, value in told.items()
        if name in known and value is not None and name not in given
    }
    if "keys" in options:
        fleets.keys(settings)
    if "url" in known:
        fleets.check(settings, {**options, **given})
    return options
