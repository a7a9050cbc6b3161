"""Variables of the environment that nobody reads, most likely for a slip of the pen."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import click

from wbengine import _names
from wbengine.cli.config import VARIABLE
from wbengine.cli.settings_schema import SECRETS, VARIABLES

__all__ = ["unread"]

_PREFIX: Final = "WBENGINE_"

#: Of settings; of files that hold them; and what else is read under such a name.
_KNOWN: Final = (
    *(name for names in VARIABLES.values() for name in names),
    *(f"{name}_FILE" for setting in SECRETS for name in VARIABLES[setting]),
    VARIABLE,
    "WBENGINE_CELERY_BROKER",
    "WBENGINE_CELERY_RESULT_BACKEND",
)


def unread(root: click.Context, environment: Iterable[str] | None = None) -> dict[str, str]:
    """Variable -> its nearest right name ('' if none is near), of those that are named as ours are,
    and mean neither a setting nor an option of a command of `root`.

    A command is loaded only if a variable begins with its name.
    """
    names = os.environ if environment is None else environment
    strange = [name for name in names if name.startswith(_PREFIX) and name not in _KNOWN]
    found: dict[str, str] = {}
    for name in sorted(strange):
        prefix, options = _options(root, root.command, _PREFIX, name)
        if name not in options:
            found[name] = _near(name, prefix, options) or _near(name, _PREFIX, _KNOWN)
    return found


def _near(name: str, prefix: str, choices: Iterable[str]) -> str:
    """The choice that `name` was meant to be; what all begin with makes them no more alike."""
    rests = {choice[len(prefix) :]: choice for choice in choices}
    near = _names.near(name[len(prefix) :], rests, 1)
    return rests[near[0]] if near else ""


def _options(
    root: click.Context, command: click.Command, prefix: str, name: str
) -> tuple[str, list[str]]:
    """The variables of the options of the command that `name` begins with, and with what."""
    if not isinstance(command, click.Group):
        own = [param.name for param in command.params if isinstance(param, click.Option)]
        return prefix, [f"{prefix}{option}".upper() for option in own]
    for inner in command.list_commands(root):
        beginning = f"{prefix}{inner.replace('-', '_').upper()}_"
        if name.startswith(beginning) and (inside := command.get_command(root, inner)) is not None:
            return _options(root, inside, beginning, name)
    return prefix, []
