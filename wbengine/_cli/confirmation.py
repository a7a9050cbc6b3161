"""Confirmation of actions that cannot be undone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wbengine._cli import errors
from wbengine._text.terminal_text import visible

if TYPE_CHECKING:
    from wbengine._cli.context import Context

__all__ = ["confirm", "current_user"]


def confirm(context: Context, action: str, yes: bool) -> None:
    """Ask for confirmation, unless `yes` is set.

    :raises Failed: if there is no terminal.
    :raises Abort: if the answer is no.
    """
    if yes:
        return
    line = visible(context.redactor.text(action))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise errors.Failed(
            f"cannot ask for confirmation without a terminal; pass --yes to {line}", errors.USAGE
        )
    click.confirm(f"{line[:1].upper()}{line[1:]}?", abort=True, err=True)


def current_user() -> str:
    """Return the current user as `user@host`."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"
