"""`wbengine flow suspend`, `cancel` and `signal`: control a flow that another process runs."""

from __future__ import annotations

import contextlib
from typing import Final

import click

from wbengine import operations, signals
from wbengine._cli import errors, flow_selection, params
from wbengine._cli.operation_command import Call, create
from wbengine.persistence._listing import FlowRow
from wbengine.views import _flow_list

__all__ = ["cancel", "signal", "suspend"]


class _Request(Call):
    """A request to the engine of a flow, which the command can wait for."""

    extra_options = (
        click.option("--wait", type=params.WAIT, metavar="DURATION",
            help="Wait until the run has ended; exit with 75 if it lasts longer than this."),
    )  # fmt: skip

    def run_flows(self, selection: flow_selection.Selection) -> int:
        if self.options["wait"] is not None and (not selection.is_single or selection.dry_run):
            raise flow_selection.one_flow_required("wait")
        return super().run_flows(selection)

    def run_one(self, row: FlowRow) -> int:
        # Computed now, because the owner may exit while this command waits.
        before, verb = _flow_list.shown_state(row), self.operation.verb
        with errors.failing(errors.USAGE, ValueError):
            self.operation.check({**self.arguments, "flow": row.uuid})
        request = operations.cancel if verb == "cancel" else operations.suspend
        change = request(
            self.backend,
            row.uuid,
            reason=self.arguments.get("reason"),
            by=self.by,
            wait=self.options["wait"],
        )
        now = operations.find(self.backend, row.uuid)
        printer, shown = self.context.printer, _flow_list.shown_state(now)
        content = {"uuid": row.uuid, "old": change.old, "new": change.new, "shown_state": shown}
        printer.document(f"flow-{verb}/1", content)
        printer.line(f"{row.name} {row.uuid}: {before} → {shown}")
        if now.lease is not None:
            printer.guide(f"to watch it: wbengine flow watch {row.uuid}")
        elif now.command is not None:
            printer.guide(
                f"no engine runs it: its next engine will {now.command} it, a conductor or"
                f" wbengine flow resume {row.uuid}"
            )
        return errors.OK


class _Send(Call):
    """A signal, with a remark if nothing waits for it."""

    def is_selected(self, row: FlowRow) -> bool:
        return any(wait.signal == self.arguments["signal"] for wait in row.waits_for)

    def run_one(self, row: FlowRow) -> int:
        name: str = self.arguments["signal"]
        # Read now, because the wait may end when the signal arrives.
        reason = signals.not_awaited(name, [wait.signal for wait in row.waits_for])
        if reason is not None and not self.arguments.get("strict"):
            with contextlib.closing(self.backend.get_connection()) as connection:
                has_run = connection.get_outline(row.uuid) is not None
                awaited = connection.awaited_signals(row.uuid) if has_run else [name]
            reason = signals.not_awaited(name, awaited)
        result = self.perform_on(row)
        self.context.printer.document("flow-signal/1", result)
        label = signals.label(name, result["number"])
        self.context.printer.line(f"{row.name} {row.uuid}: received signal {label}")
        if reason is not None:
            self.context.printer.hint(reason)
        return errors.OK


suspend: Final = create("flow suspend", _Request)
cancel: Final = create("flow cancel", _Request)
signal: Final = create("flow signal", _Send)
