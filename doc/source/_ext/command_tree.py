"""The command `wbengine` with its lazy commands loaded: sphinx-click reads only loaded ones."""

from __future__ import annotations

import copy

import click

from wbengine._cli import app

root = copy.copy(app.root)
_context = click.Context(root)
root.commands = {
    name: command
    for name in (*app.root.commands, *app.root.lazy)
    if (command := app.root.get_command(_context, name)) is not None
}
