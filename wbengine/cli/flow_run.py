"""`wbengine flow run`: make a flow, keep it, run it."""

from __future__ import annotations

import uuid as uuids
from typing import Any

import click

from wbengine import _streams
from wbengine.cli import base, detaching, errors, options, params, running, stores
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "run",
    help="""Run a new flow.

    FACTORY is a function that makes the flow, or the flow itself.  Modules of the current folder
    are found.  The result is JSON on the standard output: state, results, failures.

    The flow is kept in the store (--persistence).  Ctrl-C suspends it, a second one gives up what
    runs; either way `wbengine flow resume` goes on with it.

    Exits with 0 for SUCCESS, 1 for FAILURE and REVERTED, 130 if it was interrupted, 75 if somebody
    suspended it.

    \b
    wbengine flow run shop:order --inputs '{"order": 17}'
    wbengine flow run shop:order --engine parallel://?max_workers=8 --report order.html
    """,
)
@options.FACTORY
@click.option("--inputs", "--store", "inputs", type=params.INPUTS, default="{}",
    envvar="WBENGINE_FLOW_RUN_STORE",
    metavar="JSON|@FILE",
    help="Values that are there from the start.")  # fmt: skip
@options.ENGINE
@options.NAME
@options.tags("To find it by (repeatable).")
@click.option("--flow-id", metavar="UUID", help="Uuid of the new flow.")
@click.option("--book", metavar="NAME", help="Log book of the new flow.")
@click.option("--detach", is_flag=True,
    help="Let it run in a process of its own, and print its uuid.")  # fmt: skip
@options.PROGRESS
@options.REPORT
@options.DEADLINE
def command(
    context: contexts.Context,
    factory: str,
    inputs: dict[str, Any],
    engine: str,
    flow_id: str | None,
    detach: bool,
    progress: bool | None,
    report: str | None,
    deadline: float | None,
    **named: Any,
) -> int:
    from wbengine import operations

    if detach:
        stores.check_outlives(context.settings)
    uuid = _uuid(flow_id)
    known = running.engine_options(context, engine)
    with (
        context.backend(upgrade=True, missing_ok=True, patient=True) as backend,
        running.named(context, backend, uuid),
    ):
        with _streams.aside(), errors.making(factory):
            made = operations.start(
                backend, factory, store=inputs, engine=engine, uuid=uuid, **named, **known
            )
        if detach:
            return detaching.start(
                context,
                "resume",
                uuid,
                engine,
                deadline=deadline,
                report=report,
                factory=factory,
            )
        return running.Running(
            context=context,
            backend=backend,
            engine=made,
            schema="flow-run/1",
            progress=progress,
            report=report,
            deadline=deadline,
        ).perform()


def _uuid(text: str | None) -> str:
    """That of the new flow: it is known before anything is kept."""
    try:
        return str(uuids.uuid4() if text is None else uuids.UUID(text))
    except ValueError:
        raise errors.Failed(
            f"--flow-id: {text!r} is no uuid, such as {uuids.uuid4()}", errors.USAGE
        ) from None
