"""`wbengine dashboard`: serve pages that show flows and workers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from wbengine.cli import base, errors, fleets, options, params
from wbengine.cli import context as contexts

__all__ = ["command"]


def _host(name: str) -> str:
    from wbengine import dashboard

    return dashboard.check_host(name)


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
@options.PORT
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
@click.option("--allow-host", type=params.Parsed("NAME", _host), multiple=True,
    help="A name under which a proxy makes it known; repeatable.")  # fmt: skip
@click.option("--url-prefix", default="", metavar="/PATH", help="Serve below this path.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def command(
    context: contexts.Context,
    token: str | None,
    token_file: Path | None,
    users_file: Path | None,
    **given: Any,
) -> None:
    if sum(map(bool, (token, token_file, users_file))) > 1:
        raise click.UsageError(
            "--token, --token-file and --users say the same: leave out all but one"
        )
    if (token or token_file or users_file) and given["no_auth"]:
        raise click.UsageError("--no-auth lets everybody in: leave out the token, or the users")
    if token_file is not None:
        token = _secret_in(token_file)
    from wbengine import dashboard

    users = None
    if users_file is not None:
        with errors.failing(errors.USAGE, ValueError, where=str(users_file)):
            users = dashboard.parse_users(_secret_in(users_file))
    settings = context.settings
    show_audit()
    with context.backend(missing_ok=True) as backend, errors.failing(errors.USAGE, ValueError):
        try:
            dashboard.serve(
                backend,
                token=token,
                users=users,
                fleet=fleets.made(settings),
                ledger=settings.ledger,
                allow_hosts=given.pop("allow_host"),
                runner=dashboard.Runner(context.environment()),
                **given,
            )
        except KeyboardInterrupt:
            return  # that is how it ends
        except OSError as error:
            where = f"{given['host']}:{given['port']}"
            raise errors.Failed(
                f"cannot listen at {where}: {error.strerror or error}", errors.UNAVAILABLE
            ) from error


def show_audit() -> None:
    """Who did what is said, whatever else is."""
    logging.getLogger("wbengine.audit").setLevel(logging.INFO)


def _secret_in(path: Path) -> str:
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        line = f"{path} cannot be read: {errors.reason(error)}"
        raise errors.Failed(line, errors.USAGE) from error
    if not found:
        raise errors.Failed(f"{path} is empty: it must hold what lets in", errors.USAGE)
    return found
