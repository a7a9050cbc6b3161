"""All commands and their names."""

from __future__ import annotations

from collections.abc import Iterator

import click

from wbengine._cli import app
from wbengine.operations import _operation

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


def generated(subject: str) -> Iterator[tuple[str, ...]]:
    """Yield words that call each command that is made from an operation on flows."""
    for operation in _operation.table().values():
        command = ALL[operation.group, operation.verb]
        if operation.subject == subject and operation.target == "flow":
            arguments = [each.name for each in command.params if isinstance(each, click.Argument)]
            yield (operation.group, operation.verb, UNKNOWN, *["text"] * (len(arguments) - 1))
