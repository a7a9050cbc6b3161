"""`wbengine schedule backfill`: submit flows for past times of a schedule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from wbengine._cli import errors, standard_streams
from wbengine._cli.operation_command import Call, create
from wbengine._text import timestamps
from wbengine.schedules import Schedules
from wbengine.views import _formatting

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence

__all__ = ["command"]


class _Backfill(Call):
    """A backfill that waits while flows of it are unfinished, and prints each flow at once."""

    extra_options = (
        click.option("--limit", type=click.IntRange(1, 1000), default=1, metavar="N",
            help="Maximum number of unfinished flows of these times: the command waits."),
    )  # fmt: skip

    def run(self) -> int:
        printer, name = self.context.printer, self.arguments["schedule"]
        is_dry = self.arguments.get("dry_run", False)
        factory = Schedules(self.backend).get(name).schedule.factory
        firings, count = self._firings(self.backend), 0
        while True:
            with standard_streams.aside(), errors.running_user_code(factory):
                if (firing := next(firings, None)) is None:
                    break
            tick, uuid = firing
            count += 1
            scheduled_at = _formatting.iso(tick)
            content = {"name": name, "scheduled_at": scheduled_at, "uuid": uuid}
            printer.event("schedule-backfill/1", {**content, "dry_run": is_dry})
            printer.line(f"{scheduled_at}  {uuid or '-'}")
        printer.note(f"{'would submit' if is_dry else 'submitted'} {count} flows of {name}")
        return errors.OK

    def _firings(self, backend: persistence.Backend) -> Iterator[tuple[int, str | None]]:
        schedules, arguments = Schedules(backend), {**self.operation.defaults, **self.arguments}
        start, end = (
            None if text is None else timestamps.unix_seconds(text)
            for text in (arguments["from_time"], arguments["to_time"])
        )
        assert start is not None
        firings: Iterator[tuple[int, str | None]]
        if arguments["dry_run"]:
            missed = schedules.missed(arguments["schedule"], start, end)
            firings = ((tick, None) for tick in missed)
        else:
            firings = schedules.backfill(
                arguments["schedule"],
                start,
                end,
                limit=self.options["limit"],
                priority=arguments["priority"],
                board=self.context.settings.board,
            )
        return itertools.islice(firings, self.arguments.get("max_flows"))


command: Final = create("schedule backfill", _Backfill)
