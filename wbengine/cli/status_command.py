"""`wbengine status`: who is there, and how busy; for people and for gates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine.cli import base, errors, fleets
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.views.fleet import Fleet, WorkerView

__all__ = ["command"]

_BLOCKED: Final = " (takes no messages now: it is short of memory or disk)"


@base.command(
    "status",
    help="""Show who is there, and how busy. Exits with 69 if fewer workers answer than wanted.

    \b
    wbengine status --min-workers 3 --timeout 60
    """,
)
@click.option("--min-workers", "least", type=click.IntRange(0, 100_000), metavar="N",
    help="So many have to answer (1), and are waited for (--timeout).")  # fmt: skip
def command(context: contexts.Context, least: int | None) -> None:
    settings, printer = context.settings, context.printer
    min_workers = 1 if least is None else least
    with fleets.made(settings) as fleet:
        wait = fleets.wait(settings) if least is None else settings.timeout
        found = fleet.workers(least=min_workers, wait=wait)
        content = _summary(fleet, found)
    printer.document("status/1", content)
    printer.pairs(
        [
            ("broker", content["broker"] + (_BLOCKED if content["blocked"] else "")),
            ("exchange", content["exchange"]),
            ("workers", _counts(content["workers"], content["states"])),
            ("slots", f"{content['running']} of {content['slots']} busy"),
            ("topics", _counts(len(content["topics"]), content["topics"])),
            ("versions", ", ".join(sorted(content["versions"])) or None),
            ("requests waiting", content["waiting"]),
        ]
    )
    if not found and min_workers:
        raise fleets.nobody(settings, fleet)
    if len(found) < min_workers:
        raise errors.Failed(
            f"{len(found)} workers answer within {wait:g} s, and not {min_workers}",
            errors.UNAVAILABLE,
        )


def _summary(fleet: Fleet, found: list[WorkerView]) -> dict[str, Any]:
    from wbengine.views import queues

    there = queues.look(fleet)
    return {
        "broker": fleet.target.shown,
        "blocked": fleet.is_blocked,
        "exchange": fleet.exchange,
        "workers": len(found),
        "states": dict(Counter(one.state for one in found)),
        "slots": sum(one.slots for one in found),
        "running": sum(one.running for one in found),
        "topics": dict(Counter(topic for one in found for topic in one.topics)),
        "versions": dict(Counter(one.version or "?" for one in found)),
        "waiting": sum(one.messages for one in there if one.kind == queues.REQUESTS),
    }


def _counts(total: int, parts: dict[str, int]) -> str:
    told = ", ".join(f"{count} {name}" for name, count in sorted(parts.items()))
    return f"{total} ({told})" if told else str(total)
