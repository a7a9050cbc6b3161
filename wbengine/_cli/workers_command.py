"""`wbengine workers`: list and control workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine._cli import base, completions, confirmation, errors, fleets, params
from wbengine._cli import context as contexts
from wbengine.views import _formatting

if TYPE_CHECKING:
    from wbengine.fleet.client import WorkerView

__all__ = ["command"]

#: Default maximum wait in seconds for draining workers to end.
_DRAIN_SECONDS: Final = 600.0


command = base.Group(
    "workers",
    help="""List and control workers.

    NAME is the name of a worker, its beginning, or the host of the worker. It must match a single
    worker.
    """,
)


@command.command(
    "list",
    help="""List the workers of the exchange.

    Exits with 69 if no worker answers.

    \b
    Example:
      wbengine workers list --json | jq -r '.workers[].name'
    """,
)
def ls(context: contexts.Context) -> None:
    settings, printer = context.settings, context.printer
    with fleets.create(settings) as fleet:
        workers = fleets.answering_workers(settings, fleet)
    content = {"exchange": settings.exchange, "workers": [worker.to_dict() for worker in workers]}
    printer.document("workers-ls/1", content)
    if not workers:
        raise fleets.no_worker_error(settings, fleet)
    now = time.time()
    rows = [
        (worker.name, worker.state, ", ".join(worker.topics), f"{worker.running}/{worker.slots}",
         f"{_formatting.seconds(max(0.0, now - worker.heard))} ago", worker.version)
        for worker in workers
    ]  # fmt: skip
    printer.table(
        ("NAME", "STATE", "TOPICS", "BUSY", "LAST MESSAGE", "VERSION"), rows, right=("BUSY",)
    )


@command.command(
    "show",
    help="""Show the slots, topics and tasks of workers.

    \b
    Example:
      wbengine workers show web-1
    """,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True,
    shell_complete=completions.workers)  # fmt: skip
def show(context: contexts.Context, names: tuple[str, ...]) -> None:
    settings, printer = context.settings, context.printer
    with fleets.create(settings) as fleet:
        fleets.answering_workers(settings, fleet)
        # A worker includes its running tasks in the answer to a ping.
        fleet.ping(names, timeout=fleets.wait_seconds(settings))
        workers = fleet.find(names)
    printer.document("workers-show/1", {"workers": [worker.to_dict() for worker in workers]})
    for number, worker in enumerate(workers):
        if number:
            printer.line("")
        _show(printer, worker)


def _show(printer: Any, worker: WorkerView) -> None:
    now = time.time()
    printer.pairs(
        [
            ("name", worker.name),
            ("process", f"{worker.pid} on {worker.host}" if worker.host else None),
            ("version", worker.version),
            ("code", worker.code),
            ("state", worker.state),
            ("started", _formatting.iso(worker.born)),
            ("last message", f"{_formatting.seconds(max(0.0, now - worker.heard))} ago"),
            ("slots", f"{worker.running} of {worker.slots} busy"),
            ("tasks ended", f"{worker.succeeded} succeeded, {worker.failed} failed"),
            ("time in tasks", _formatting.seconds(worker.working)),
            *(
                (f"topic {topic}", queue)
                for topic, queue in zip(worker.topics, worker.queues, strict=True)
            ),
            ("ledger", worker.ledger),
            ("offers", "\n".join(worker.tasks)),
            *(
                (
                    f"runs {work.task}",
                    f"for {_formatting.seconds(max(0.0, now - work.began))}, request {work.request}"
                    if work.began
                    else f"request {work.request}",
                )
                for work in worker.current
            ),
        ]
    )


@command.command(
    "ping",
    help="""Ping workers and print their response times.

    Without NAME, ping all workers. Exits with 69 if a worker does not answer, or if no worker
    exists.

    \b
    Example:
      wbengine workers ping --timeout 10
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completions.workers)
def ping(context: contexts.Context, names: tuple[str, ...]) -> None:
    settings, printer = context.settings, context.printer
    with fleets.create(settings) as fleet:
        fleets.answering_workers(settings, fleet)
        answers = fleet.ping(names or None, timeout=settings.timeout)
    printer.document("workers-ping/1", {"workers": [answer.to_dict() for answer in answers]})
    if not answers:
        raise fleets.no_worker_error(settings, fleet)
    rows = [
        (
            answer.name,
            "no answer" if answer.seconds is None else _formatting.seconds(answer.seconds),
        )
        for answer in answers
    ]
    printer.table(("NAME", "ROUND TRIP"), rows, right=("ROUND TRIP",))
    silent = [answer.name for answer in answers if answer.seconds is None]
    if silent:
        raise errors.Failed(
            f"no answer within {settings.timeout:g} s from {', '.join(silent)}", errors.UNAVAILABLE
        )


def _add_control(action: str, text: str) -> None:
    def control(
        context: contexts.Context,
        names: tuple[str, ...],
        all_workers: bool,
        within: float | None,
        wait: bool = False,
        yes: bool = False,
    ) -> None:
        if bool(names) == all_workers:
            raise click.UsageError("exactly one of NAME and --all is required")
        if action == "stop" and all_workers:
            confirmation.confirm(
                context,
                "stop all workers of the exchange without waiting for their running tasks",
                yes,
            )
        _send_control(context, action, names, wait, within)

    if action == "drain":
        control = click.option("--wait", is_flag=True, help="Wait until the workers have ended.")(
            control
        )
    if action == "stop":
        control = click.option(
            "--yes", is_flag=True, help="With --all, do not ask for confirmation."
        )(control)
    control = click.option(
        "--within",
        type=params.WAIT,
        metavar="DURATION",
        help="Maximum wait for the workers; then exit with 75.",
        show_default="--timeout; 10m for --wait" if action == "drain" else "--timeout",
    )(control)
    control = click.option(
        "--all", "all_workers", is_flag=True, help="Select all workers of the exchange."
    )(control)
    control = click.argument(
        "names", metavar="[NAME]...", nargs=-1, shell_complete=completions.workers
    )(control)
    command.command(action, help=text)(control)


def _send_control(
    context: contexts.Context,
    action: str,
    names: tuple[str, ...],
    to_the_end: bool,
    within: float | None,
) -> None:
    settings, printer = context.settings, context.printer
    with fleets.create(settings) as fleet:
        fleets.answering_workers(settings, fleet)
        workers = fleet.control(action, names or None)
        if not workers:
            raise fleets.no_worker_error(settings, fleet)
        seconds = within or (_DRAIN_SECONDS if to_the_end else settings.timeout)
        unfinished = fleet.wait_until_obeyed(action, workers, seconds, until_stopped=to_the_end)
    content = {
        "order": action,
        "workers": [
            {"name": worker.name, "done": worker.name not in unfinished} for worker in workers
        ],
    }
    printer.document(f"workers-{action}/1", content)
    for worker in workers:
        status = "not yet" if worker.name in unfinished else "done"
        printer.line(f"{worker.name}  {action}  {status}")
    if unfinished:
        raise errors.Failed(
            f"{action} not completed within {seconds:g} s by {', '.join(unfinished)}",
            errors.TRY_AGAIN,
        )


_add_control(
    "suspend",
    """Suspend workers.

    Their running tasks continue. The workers receive no requests until `wbengine workers resume`.

    \b
    Example:
      wbengine workers suspend web-1
    """,
)
_add_control(
    "resume",
    """Resume suspended workers.

    \b
    Example:
      wbengine workers resume --all
    """,
)
_add_control(
    "drain",
    """Stop workers after their running tasks.

    The workers receive no more requests, finish their running tasks and end.

    \b
    Example:
      wbengine workers drain web-1 --wait
    """,
)
_add_control(
    "stop",
    """Stop workers at once.

    Their running tasks fail with WorkerLost, or are resent to another worker if they are
    idempotent.

    \b
    Example:
      wbengine workers stop web-1
    """,
)
