"""`wbengine dashboard`: serve pages that show flows and workers."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import click

from wbengine.cli import base, config, errors, fleets
from wbengine.cli import context as contexts

__all__ = ["command"]


def _names(context: click.Context, option: click.Parameter, told: tuple[str, ...]) -> Any:
    if not told:
        return told
    from wbengine import dashboard

    try:
        return tuple(dashboard.check_host(name) for name in told)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@base.command(
    "dashboard",
    help="""Serve a dashboard: flows, workers, queues. It prints its address, with the token that
    lets in who has it.

    It listens on this host only, and changes nothing, unless told otherwise.

    \b
    wbengine dashboard --port 8585 --allow-actions
    """,
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
    help="Listen there.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8585, show_default=True,
    help="0: any that is free.")  # fmt: skip
@click.option("--token", metavar="TEXT", help="Let in who has it (a new one is made).")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="It holds the token.")  # fmt: skip
@click.option("--users", "users_file", type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Let in whom it names: a name, a role and a token in each line.")  # fmt: skip
@click.option("--no-auth", is_flag=True, help="Let everybody in.")
@click.option("--allow-actions", is_flag=True, help="Let visitors suspend, resume, revert, drain.")
@click.option(
    "--show-values", is_flag=True, help="Show arguments and results (secrets are masked)."
)
@click.option(
    "--allow-host", multiple=True, metavar="NAME", callback=_names,
    help="A name under which a proxy makes it known; repeatable.",
)  # fmt: skip
@click.option("--url-prefix", default="", metavar="/PATH", help="Serve below this path.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def command(
    context: contexts.Context,
    token: str | None,
    token_file: Path | None,
    users_file: Path | None,
    **options: Any,
) -> None:
    if sum(map(bool, (token, token_file, users_file))) > 1:
        raise click.UsageError(
            "--token, --token-file and --users say the same: leave out all but one"
        )
    if (token or token_file or users_file) and options["no_auth"]:
        raise click.UsageError("--no-auth lets everybody in: leave out the token, or the users")
    if token_file is not None:
        token = _secret_in(token_file)
    from wbengine import dashboard

    users = None
    if users_file is not None:
        try:
            users = dashboard.parse_users(_secret_in(users_file))
        except ValueError as error:
            raise errors.Failed(f"{users_file}: {errors.line_of(error)}", errors.USAGE) from error
    settings = context.settings
    show_audit()
    with context.backend(missing_ok=True) as backend:
        try:
            dashboard.serve(
                backend,
                token=token,
                users=users,
                fleet=fleets.made(settings),
                ledger=settings.ledger,
                allow_hosts=options.pop("allow_host"),
                runner=dashboard.Runner(_environment(context)),
                **options,
            )
        except KeyboardInterrupt:
            return  # that is how it ends
        except ValueError as error:
            raise errors.Failed(errors.line_of(error), errors.USAGE) from error
        except OSError as error:
            where = f"{options['host']}:{options['port']}"
            raise errors.Failed(
                f"cannot listen at {where}: {error.strerror or error}", errors.UNAVAILABLE
            ) from error


def _environment(context: contexts.Context) -> dict[str, str]:
    """What commands are told that run flows for visitors."""
    settings = context.settings
    told = {
        config.VARIABLE: context.file and os.path.abspath(context.file),
        "WBENGINE_PERSISTENCE": settings.store,
        "WBENGINE_URL": settings.url,
        "WBENGINE_EXCHANGE": settings.exchange,
        "WBENGINE_LEDGER": settings.ledger,
        "WBENGINE_FLOWS": ",".join(settings.flows),
        "WBENGINE_KEYS": settings.keys,
    }
    return {name: value for name, value in told.items() if value}


def show_audit() -> None:
    """Who did what is said, whatever else is."""
    logging.getLogger("wbengine.audit").setLevel(logging.INFO)


def _secret_in(path: Path) -> str:
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or "it is no text"
        raise errors.Failed(f"{path} cannot be read: {words}", errors.USAGE) from error
    if not found:
        raise errors.Failed(f"{path} is empty: it must hold what lets in", errors.USAGE)
    return found
