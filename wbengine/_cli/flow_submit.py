"""`wbengine flow submit`: submit a new flow to a conductor."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from wbengine import engines
from wbengine._cli import base, common_options, errors, params, standard_streams, store_access
from wbengine._cli import context as contexts
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.jobs import _queue_access
from wbengine.jobs._places import DEFAULT_QUEUE
from wbengine.persistence import _codes, _debounce_keys
from wbengine.persistence import base as persistence

__all__ = ["command"]


@base.command(
    "submit",
    help="""Submit a new flow to `wbengine serve`.

    The command writes the flow and a job to the store (--persistence) and prints the uuid of the
    flow. With --board, it posts the job on that job board instead.

    FACTORY is a flow, a workflow, or a function that builds a flow. This command and `wbengine
    serve` can import modules of their current folder.

    \b
    Example:
      wbengine flow submit shop:order --inputs '{"order": 17}' --unique order-17
    """,
)
@common_options.FACTORY
@common_options.INPUTS
@common_options.ARGUMENTS
@common_options.NAME
@common_options.tags("Tag of the flow (repeatable); with := a number, boolean or time.")
@common_options.UNDO_UNTIL
@common_options.PRIORITY
@click.option("--queue", metavar="NAME", show_default="default",
    help="Queue of the flow (`wbengine serve --queue`).")  # fmt: skip
@click.option("--fair-key", metavar="KEY",
    help="Conductors take flows of different keys in turn.")  # fmt: skip
@click.option("--fair-weight", type=click.FloatRange(0.001, 1000), metavar="NUMBER",
    show_default="1", help="Share of the key, relative to others.")  # fmt: skip
@click.option("--eta", type=params.WAIT, metavar="DURATION",
    help="Earliest start, from now, such as 90, 5m, 2h.")  # fmt: skip
@click.option("--unique", metavar="KEY",
    help="If a flow with this key has not ended, submit nothing and print its uuid.")  # fmt: skip
@click.option("--unique-for", type=params.LIFETIME, metavar="DURATION",
    help="Time for which the key outlives the flow: 24h, 30d, forever. The factory and the inputs"
    " must be the same then.")  # fmt: skip
@click.option("--debounce", metavar="KEY",
    help="Until the flow starts, further submissions with this key replace it and postpone its"
    " start. Not with --unique or --eta.")  # fmt: skip
@click.option("--debounce-for", type=params.DURATION, metavar="DURATION",
    help="Time from the latest submission with this key to the start: 30, 5m.")  # fmt: skip
@click.option("--debounce-max", type=params.DURATION, metavar="DURATION",
    help="Maximum time from the first submission with this key to the start.")  # fmt: skip
def command(
    context: contexts.Context,
    factory: str,
    inputs: dict[str, Any],
    arguments: dict[str, Any] | None,
    debounce: str | None,
    debounce_for: float | None,
    **options: Any,
) -> None:
    store_access.check_outlives(context.settings)
    with errors.failing(errors.USAGE, ValueError):
        options["debounce"] = _debounce_keys.pair(debounce, debounce_for)
    with context.backend(upgrade=True, missing_ok=True) as backend:
        with standard_streams.aside(), errors.running_user_code(factory):
            board = context.settings.board
            handle = engines.submit(
                factory,
                factory_kwargs=None if arguments is None else JsonInputs(arguments),
                backend=backend,
                board=board,
                inputs=JsonInputs(inputs),
                **options,
            )
        context.printer.document("flow-submit/1", {"uuid": handle.id, "state": handle.state})
        context.printer.line(handle.id)
        with contextlib.closing(backend.get_connection()) as connection:
            if not _codes.is_served(connection.codes()):
                context.printer.note(f"{_codes.NO_CONDUCTOR}: the next one runs the flow")
            elif options["queue"] not in (None, DEFAULT_QUEUE) and not _is_served(
                backend, board, options["queue"]
            ):
                context.printer.note(
                    f"no conductor serves queue {options['queue']!r} now: start"
                    f" wbengine serve --queue {options['queue']}"
                )
        context.printer.guide(
            f"submitted; wbengine serve runs it; to watch it: wbengine flow watch {handle.id}"
        )


def _is_served(backend: persistence.Backend, board: str | None, queue: str) -> bool:
    with _queue_access.opened(backend, board) as queues:
        return queues.is_served(queue)
