"""`wbengine plugins`: what installed packages bring along."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import click

from wbengine import _plugins
from wbengine.cli import base, errors
from wbengine.cli import context as contexts

__all__ = ["command"]

command = base.Group("plugins", help="Show what other packages bring along.")


@command.command(
    "ls",
    short_help="List them.",
    help="""List the engines, stores and commands that installed packages bring along.

    With --check each of them is loaded; exits with 1 if one cannot be.

    \b
    wbengine plugins ls --check
    """,
)
@click.option("--check", is_flag=True, help="Load each of them.")
def ls(context: contexts.Context, check: bool) -> int:
    found = [_look(group, point, check) for group in _plugins.GROUPS for point in _points(group)]
    printer = context.printer
    printer.document("plugins-ls/1", {"plugins": found})
    rows = [tuple(each.values()) for each in found]
    printer.table(("GROUP", "NAME", "OBJECT", "PACKAGE", "ERROR"), rows)
    return errors.UNHEALTHY if any(each["error"] for each in found) else errors.OK


def _points(group: str) -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def _look(group: str, point: metadata.EntryPoint, check: bool) -> dict[str, Any]:
    error = None
    if check:
        try:
            point.load()
        except Exception as problem:
            error = errors.line_of(problem)
    package = None if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return {
        "group": group,
        "name": point.name,
        "object": point.value,
        "package": package,
        "error": error,
    }
