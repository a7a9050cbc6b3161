"""`wbengine flow run`: build, store and run a flow."""

from __future__ import annotations

import uuid as uuids
from typing import Any

import click

from wbengine import operations
from wbengine._cli import (
    base,
    common_options,
    engine_options,
    engine_run,
    errors,
    standard_streams,
    store_access,
)
from wbengine._cli import context as contexts
from wbengine.engines._flow_inputs import JsonInputs

__all__ = ["command"]


@base.command(
    "run",
    help="""Run a new flow.

    FACTORY is a flow, a workflow, or a function that builds a flow. Modules of the current folder
    can be imported. The command prints the result as JSON: state, results, failures.

    The flow is saved in the store (--persistence). Ctrl-C suspends the flow after its running
    tasks; a second Ctrl-C stops at once. `wbengine flow resume` continues the flow in both cases.

    Exits with 0 for SUCCESS, 1 for FAILURE and REVERTED, 75 for SUSPENDED, and 130 if the command
    was interrupted.

    \b
    Examples:
      wbengine flow run shop:order --inputs '{"order": 17}'
      wbengine flow run shop:order --engine parallel://?max_workers=8 --report order.html
    """,
)
@common_options.FACTORY
@common_options.INPUTS
@common_options.ARGUMENTS
@common_options.ENGINE
@common_options.NAME
@common_options.tags("Tag of the flow (repeatable); with := a number, boolean or time.")
@common_options.UNDO_UNTIL
@click.option("--flow-id", metavar="UUID", help="Uuid of the flow.", show_default="a new one")
@click.option("--book", metavar="NAME", help="Logbook of the flow.", show_default="a new one")
@click.option("--detach", is_flag=True,
    help="Run the flow in a separate process, and print its uuid.")  # fmt: skip
@common_options.PROGRESS
@common_options.REPORT
@common_options.DEADLINE
def command(
    context: contexts.Context,
    factory: str,
    inputs: dict[str, Any],
    arguments: dict[str, Any] | None,
    engine: str,
    flow_id: str | None,
    detach: bool,
    progress: bool | None,
    report: str | None,
    deadline: float | None,
    **flow_options: Any,
) -> int:
    if detach:
        store_access.check_outlives(context.settings)
    uuid = _uuid(flow_id)
    options = engine_options.from_settings(context, engine)
    with (
        context.backend(upgrade=True, missing_ok=True, patient=True) as backend,
        engine_run.explaining_interrupts(context, backend, uuid),
    ):
        with standard_streams.aside(), errors.running_user_code(factory):
            options = {**options, "store": JsonInputs(inputs), "engine": engine, "uuid": uuid}
            if arguments is not None:
                options["arguments"] = JsonInputs(arguments)
            loaded_engine = operations.start(backend, factory, **flow_options, **options)
        if detach:
            from wbengine._cli import detaching

            return detaching.start(
                context,
                "resume",
                uuid,
                engine,
                deadline=deadline,
                report=report,
                factory=factory,
            )
        return engine_run.Running(
            context=context,
            backend=backend,
            engine=loaded_engine,
            schema="flow-run/1",
            progress=progress,
            report=report,
            deadline=deadline,
        ).perform()


def _uuid(text: str | None) -> str:
    """Return the uuid of the new flow, before anything is stored."""
    try:
        return str(uuids.uuid4() if text is None else uuids.UUID(text))
    except ValueError:
        raise errors.Failed(
            f"--flow-id must be a uuid such as {uuids.uuid4()}, got {text!r}", errors.USAGE
        ) from None
