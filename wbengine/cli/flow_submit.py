"""`wbengine flow submit`: hand a new flow over to a conductor."""

from __future__ import annotations

from typing import Any

import click

from wbengine import _streams, exceptions
from wbengine.cli import base, errors, params, stores
from wbengine.cli import context as contexts

__all__ = ["command"]


@base.command(
    "submit",
    help="""Keep a new flow in the store (--persistence), for a `wbengine serve` to run it, and
    print its uuid.

    With --board, the job is posted on a board elsewhere, for a `wbengine serve` of that.

    FACTORY is a function that makes the flow, or the flow itself.  Modules of the current folder
    are found, here and by `wbengine serve`.

    \b
    wbengine flow submit shop:order --inputs '{"order": 17}' --unique order-17
    """,
)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--inputs", type=params.INPUTS, default="{}", metavar="JSON|@FILE",
    help="Values that are there from the start.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the new flow (that of what FACTORY makes).")
@click.option("--tag", "tags", type=params.TAG, multiple=True, metavar="KEY=VALUE",
    callback=params.tags_of,
    help="To find it by (repeatable).")  # fmt: skip
@click.option("--priority", default="NORMAL", metavar="PRIORITY",
    help="VERY_HIGH, HIGH, NORMAL (default), LOW or VERY_LOW.")  # fmt: skip
@click.option("--eta", type=params.WAIT, metavar="DURATION",
    help="It does not begin before, such as 90, 5m, 2h from now.")  # fmt: skip
@click.option("--unique", metavar="KEY",
    help="While a flow of this key has not ended, print its uuid, and make none.")  # fmt: skip
def command(
    context: contexts.Context,
    factory: str,
    inputs: dict[str, Any],
    name: str | None,
    tags: dict[str, str],
    priority: str,
    eta: float | None,
    unique: str | None,
) -> None:
    from wbengine import engines

    if stores.is_of_this_process(context.settings):
        raise errors.Failed(
            f"the store {context.settings.store} ends with this process", errors.USAGE
        )
    with context.backend(upgrade=True, missing_ok=True) as backend:
        try:
            with _streams.aside():
                handle = engines.submit(
                    factory,
                    backend=backend,
                    inputs=inputs,
                    name=name,
                    tags=tags,
                    priority=priority,
                    eta=eta,
                    unique=unique,
                    board=context.settings.board,
                )
        except (exceptions.StorageFailure, exceptions.JobFailure):
            raise
        except (exceptions.WbengineException, ValueError, ImportError) as error:
            raise errors.Failed(errors.line_of(error), errors.USAGE) from error
        except Exception as error:
            raise errors.Failed(f"{factory}: {errors.line_of(error)}", errors.USAGE) from error
        if context.printer.as_json:
            content = {"uuid": handle.id, "state": handle.state}
            context.printer.document("flow-submit/1", content)
        else:
            context.printer.line(handle.id)
