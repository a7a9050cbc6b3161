"""All commands, and how each is called."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click

from wbengine.cli import app
from wbengine.cli.lazy import Lazy

UNKNOWN = "12345678-1234-4123-8123-123456789012"


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], Lazy]]:
    """All commands that are loaded when they are asked for, with the words that call them."""
    for name, found in getattr(group, "lazy", {}).items():
        yield (*path, name), found
        module, _, attribute = found.path.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


ALL = dict(commands(app.root))
