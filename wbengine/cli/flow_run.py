"""`wbengine flow run`: make a flow, keep it, run it."""

from __future__ import annotations

import uuid as uuids
from typing import Any

import click

from wbengine import _streams, exceptions
from wbengine.cli import base, completions, detaching, errors, params, running, stores
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
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--inputs", "--store", "inputs", type=params.INPUTS, default="{}",
    envvar="WBENGINE_FLOW_RUN_STORE",
    metavar="JSON|@FILE",
    help="Values that are there from the start.")  # fmt: skip
@click.option("--engine", default="serial", metavar="KIND", shell_complete=completions.engines,
    help="serial (default), parallel, workers, or a URI with options.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the new flow (that of what FACTORY makes).")
@click.option("--tag", "tags", type=params.TAG, multiple=True, metavar="KEY=VALUE",
    callback=params.tags_of,
    help="To find it by (repeatable).")  # fmt: skip
@click.option("--flow-id", metavar="UUID", help="Uuid of the new flow.")
@click.option("--book", metavar="NAME", help="Log book of the new flow.")
@click.option("--detach", is_flag=True,
    help="Let it run in a process of its own, and print its uuid.")  # fmt: skip
@click.option("--progress/--no-progress", default=None,
    help="Show how far it is (default: on a terminal).")  # fmt: skip
@click.option("--report", type=params.NEW_FILE, metavar="FILE",
    help="Write a report of the run (HTML) into this file.")  # fmt: skip
@click.option("--deadline", type=params.WAIT, metavar="DURATION",
    help="Revert it if it takes longer, such as 90, 5m, 2h.")  # fmt: skip
def command(
    context: contexts.Context,
    factory: str,
    inputs: dict[str, Any],
    engine: str,
    name: str | None,
    tags: dict[str, str],
    flow_id: str | None,
    book: str | None,
    detach: bool,
    progress: bool | None,
    report: str | None,
    deadline: float | None,
) -> int:
    from wbengine import operations

    if detach and stores.is_of_this_process(context.settings):
        raise errors.Failed(
            f"--detach: the store {context.settings.store} ends with this process", errors.USAGE
        )
    uuid = _uuid(flow_id)
    options = running.engine_options(context, engine)
    with (
        context.backend(upgrade=True, missing_ok=True, patient=True) as backend,
        running.named(context, backend, uuid),
    ):
        try:
            with _streams.aside():
                made = operations.start(
                    backend,
                    factory,
                    store=inputs,
                    engine=engine,
                    uuid=uuid,
                    book=book,
                    name=name,
                    tags=tags,
                    **options,
                )
        except (exceptions.StorageFailure, exceptions.TransportFailure):
            raise
        except (exceptions.WbengineException, ValueError, ImportError) as error:
            raise errors.Failed(errors.line_of(error), errors.USAGE) from error
        except Exception as error:
            raise errors.Failed(f"{factory}: {errors.line_of(error)}", errors.USAGE) from error
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
            context,
            backend,
            made,
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
