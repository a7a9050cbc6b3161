"""`wbengine workers`: look at workers, and tell them what to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine.cli import asking, base, completions, errors, fleets, params
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.views.fleet import WorkerView

__all__ = ["command"]

#: Seconds in which those who were told to drain are to be gone.
_GONE: Final = 600.0
_WITHIN: Final = "Seconds in which they are to have done it (--timeout; drain --wait: 600)."


command = base.Group(
    "workers",
    help="""Look at workers, and tell them what to do.

    A worker is named by its whole name, its beginning, or its host, if no other one is meant.
    """,
)


@command.command(
    "ls",
    short_help="List workers.",
    help="""List the workers of the exchange. Exits with 69 if none answers.

    \b
    wbengine workers ls --json | jq -r '.workers[].name'
    """,
)
def ls(context: contexts.Context) -> None:
    from wbengine.views import formatting

    settings, printer = context.settings, context.printer
    with fleets.made(settings) as fleet:
        found = fleets.heard(settings, fleet)
    content = {"exchange": settings.exchange, "workers": [one.to_dict() for one in found]}
    printer.document("workers-ls/1", content)
    if not found:
        raise fleets.nobody(settings, fleet)
    now = time.time()
    rows = [
        (one.name, one.state, ", ".join(one.topics), f"{one.running}/{one.slots}",
         f"{formatting.seconds(max(0.0, now - one.heard))} ago", one.version)
        for one in found
    ]  # fmt: skip
    printer.table(("NAME", "STATE", "TOPICS", "BUSY", "HEARD", "VERSION"), rows, right=("BUSY",))


@command.command(
    "show",
    short_help="Show workers: what they offer, and do.",
    help="""Show workers: what they offer, what they did, and what they are doing.

    \b
    wbengine workers show web-1
    """,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True,
    shell_complete=completions.workers)  # fmt: skip
def show(context: contexts.Context, names: tuple[str, ...]) -> None:
    settings, printer = context.settings, context.printer
    with fleets.made(settings) as fleet:
        fleets.heard(settings, fleet)
        fleet.ping(names, timeout=fleets.wait(settings))  # who is asked tells what he does now
        found = fleet.find(names)
    printer.document("workers-show/1", {"workers": [one.to_dict() for one in found]})
    for number, one in enumerate(found):
        if number:
            printer.line("")
        _show(printer, one)


def _show(printer: Any, one: WorkerView) -> None:
    from wbengine.views import formatting

    now = time.time()
    printer.pairs(
        [
            ("name", one.name),
            ("process", f"{one.pid} on {one.host}" if one.host else None),
            ("version", one.version),
            ("state", one.state),
            ("born", formatting.iso(one.born)),
            ("heard", f"{formatting.seconds(max(0.0, now - one.heard))} ago"),
            ("slots", f"{one.running} of {one.slots} busy"),
            ("tasks ended", f"{one.succeeded} well, {one.failed} failed"),
            ("time in tasks", formatting.seconds(one.working)),
            *(
                (f"topic {topic}", queue)
                for topic, queue in zip(one.topics, one.queues, strict=True)
            ),
            ("ledger", one.ledger),
            ("offers", "\n".join(one.tasks)),
            *(
                (
                    f"runs {work.task}",
                    f"for {formatting.seconds(max(0.0, now - work.began))}, request {work.request}"
                    if work.began
                    else f"request {work.request}",
                )
                for work in one.current
            ),
        ]
    )


@command.command(
    "ping",
    short_help="Ask workers whether they are there.",
    help="""Ask workers whether they are there, and how long that takes. Exits with 69 if one does
    not answer, or none is there.

    \b
    wbengine workers ping --timeout 10
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completions.workers)
def ping(context: contexts.Context, names: tuple[str, ...]) -> None:
    from wbengine.views import formatting

    settings, printer = context.settings, context.printer
    with fleets.made(settings) as fleet:
        fleets.heard(settings, fleet)
        found = fleet.ping(names or None, timeout=settings.timeout)
    printer.document("workers-ping/1", {"workers": [one.to_dict() for one in found]})
    if not found:
        raise fleets.nobody(settings, fleet)
    rows = [
        (one.name, "no answer" if one.seconds is None else formatting.seconds(one.seconds))
        for one in found
    ]
    printer.table(("NAME", "ROUND TRIP"), rows, right=("ROUND TRIP",))
    silent = [one.name for one in found if one.seconds is None]
    if silent:
        raise errors.Failed(
            f"no answer within {settings.timeout:g} s of {', '.join(silent)}", errors.UNAVAILABLE
        )


def _add_order(what: str, short_help: str, text: str) -> None:
    @command.command(what, short_help=short_help, help=text)
    @click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completions.workers)
    @click.option("--all", "everybody", is_flag=True, help="All workers of the exchange.")
    @click.option("--wait", is_flag=True, help="Wait until they are gone (drain).")
    @click.option("--within", type=params.WAIT, metavar="S", help=_WITHIN)
    @click.option("--yes", is_flag=True, help="Do not ask (stop --all).")
    def order(
        context: contexts.Context,
        names: tuple[str, ...],
        everybody: bool,
        wait: bool,
        within: float | None,
        yes: bool,
    ) -> None:
        if bool(names) == everybody:
            raise click.UsageError("name workers, or say --all" if not names else
                "name workers or say --all, not both")  # fmt: skip
        if what == "stop" and everybody:
            asking.confirm(context, "let all workers of the exchange give up what they run", yes)
        _tell(context, what, names, wait and what == "drain", within)


def _tell(
    context: contexts.Context,
    what: str,
    names: tuple[str, ...],
    to_the_end: bool,
    within: float | None,
) -> None:
    settings, printer = context.settings, context.printer
    with fleets.made(settings) as fleet:
        fleets.heard(settings, fleet)
        told = fleet.control(what, names or None)
        if not told:
            raise fleets.nobody(settings, fleet)
        seconds = within or (_GONE if to_the_end else settings.timeout)
        left = fleet.obeyed(what, told, seconds, to_the_end=to_the_end)
    content = {
        "order": what,
        "workers": [{"name": one.name, "done": one.name not in left} for one in told],
    }
    printer.document(f"workers-{what}/1", content)
    for one in told:
        done = "not yet" if one.name in left else "done"
        printer.line(f"{one.name}  {what}  {done}")
    if left:
        raise errors.Failed(
            f"not done within {seconds:g} s: {what} of {', '.join(left)}", errors.TRY_AGAIN
        )


_add_order(
    "suspend",
    "Let workers take nothing new.",
    """Let workers take nothing new until they are told to resume. What runs goes on.

    \b
    wbengine workers suspend web-1
    """,
)
_add_order(
    "resume",
    "Let suspended workers go on.",
    """Let suspended workers take tasks again.

    \b
    wbengine workers resume --all
    """,
)
_add_order(
    "drain",
    "Let workers finish what runs, and end.",
    """Let workers take nothing new, finish what runs, and end.

    \b
    wbengine workers drain web-1 --wait
    """,
)
_add_order(
    "stop",
    "Let workers give up what runs, and end.",
    """Let workers end at once, and give up what runs: those tasks fail as WorkerLost, or are sent
    to another worker, as their flows want it.

    \b
    wbengine workers stop web-1
    """,
)
