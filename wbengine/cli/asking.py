"""Asks before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from wbengine._terminal import visible
from wbengine.cli import errors

if TYPE_CHECKING:
    from wbengine.cli.context import Context

__all__ = ["confirm", "who"]


def confirm(context: Context, what: str, yes: bool) -> None:
    """Go on only if `yes`, or if somebody who can be asked says so.

    :raises Failed: nobody can be asked.
    :raises Abort: no.
    """
    if yes:
        return
    line = visible(context.redactor.text(what))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise errors.Failed(f"nobody is there to ask whether to {line}: say --yes", errors.USAGE)
    click.confirm(f"{line[:1].upper()}{line[1:]}?", abort=True, err=True)


def who() -> str:
    """Whoever sits here: user and host."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"
