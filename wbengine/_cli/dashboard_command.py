"""`wbengine dashboard`: serve pages that show flows and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wbengine._cli import base, common_options, errors, fleets, log_output, params
from wbengine._cli import context as contexts
from wbengine._introspection import object_names

__all__ = ["command"]


def _host(name: str) -> str:
    from wbengine import dashboard

    return dashboard.check_host(name)


@base.command(
    "dashboard",
    help="""Serve the dashboard.

    The dashboard shows flows, workers and queues. The command prints its address with the token
    that users need. By default, the dashboard accepts connections from this host only and is
    read-only. With the table [oidc] in wbengine.toml, users sign in at a provider of OpenID
    Connect.

    \b
    Example:
      wbengine dashboard --port 8585 --allow-actions
    """,
)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS",
    help="Address to listen on.")  # fmt: skip
@common_options.PORT
@click.option("--token", metavar="TEXT", help="Token that users need.", show_default="a new one")
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="File that contains the token.")  # fmt: skip
@click.option("--users", "users_file", type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File of users: a name, a role and a token in each line.")  # fmt: skip
@click.option("--no-auth", is_flag=True, help="Require no token.")
@click.option("--allow-actions", is_flag=True,
    help="Allow users to suspend, resume, cancel, retry and revert flows, send signals, control"
    " schedules and drain workers.")  # fmt: skip
@click.option(
    "--show-values", is_flag=True, help="Show arguments and results; secrets stay masked."
)
@click.option("--allow-host", type=params.Parsed("NAME", _host), multiple=True,
    help="Host name under which a proxy serves the dashboard (repeatable).")  # fmt: skip
@click.option("--url-prefix", default="", metavar="/PATH",
    help="Path of the dashboard behind a proxy.", show_default=False)  # fmt: skip
@click.option("--open", "open_browser", is_flag=True, help="Open the dashboard in a browser.")
def command(
    context: contexts.Context,
    token: str | None,
    token_file: Path | None,
    users_file: Path | None,
    **options: Any,
) -> None:
    if sum(map(bool, (options["no_auth"], token, token_file, users_file))) > 1:
        raise click.UsageError(
            "at most one of --no-auth, --token, --token-file and --users can be used"
        )
    if token_file is not None:
        token = read_secret(token_file)
    from wbengine import dashboard

    users = None
    if users_file is not None:
        with errors.failing(errors.USAGE, ValueError, where=str(users_file)):
            users = dashboard.parse_users(read_secret(users_file))
    settings = context.settings
    oidc = settings.oidc or None
    if oidc is not None:
        with settings.failing("oidc", ValueError, ImportError):
            object_names.load("wbengine.dashboard._oidc_settings:parse_settings")(oidc)
    show_audit()
    with context.backend(missing_ok=True) as backend, errors.failing(errors.USAGE, ValueError):
        try:
            dashboard.serve(
                backend,
                token=token,
                users=users,
                oidc=oidc,
                fleet=fleets.create(settings),
                ledger=settings.ledger,
                allow_hosts=options.pop("allow_host"),
                runner=dashboard.Runner(context.environment()),
                **options,
            )
        except KeyboardInterrupt:
            return  # the regular way to stop the command
        except OSError as error:
            where = f"{options['host']}:{options['port']}"
            raise errors.Failed(
                f"cannot listen on {where}: {error.strerror or error}", errors.UNAVAILABLE
            ) from error


def show_audit() -> None:
    """Enable the log lines of the audit log, independent of the log level."""
    log_output.show_all("wbengine.audit")


def read_secret(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        line = f"cannot read {path}: {errors.reason(error)}"
        raise errors.Failed(line, errors.USAGE) from error
    if not text:
        raise errors.Failed(
            f"{path} must contain a token or users, got an empty file", errors.USAGE
        )
    return text
