"""All commands and their names."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wbengine._cli import app

UNKNOWN = "12345678-1234-4123-8123-123456789012"


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands with the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands(app.root))
