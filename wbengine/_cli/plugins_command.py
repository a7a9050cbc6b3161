"""`wbengine plugins`: list plug-ins of installed packages."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import click

from wbengine._cli import base, errors
from wbengine._cli import context as contexts
from wbengine._configuration import plugins as _plugins

__all__ = ["command"]

command = base.Group("plugins", help="List plug-ins of installed packages.")


@command.command(
    "list",
    help="""List the engines, stores and commands that installed packages provide.

    With --check, load each of them, and exit with 1 if one fails to load.

    \b
    Example:
      wbengine plugins list --check
    """,
)
@click.option("--check", is_flag=True, help="Load each plug-in.")
def ls(context: contexts.Context, check: bool) -> int:
    plugins = [
        _describe(group, point, check)
        for group in _plugins.GROUPS
        for point in _entry_points(group)
    ]
    printer = context.printer
    printer.document("plugins-ls/1", {"plugins": plugins})
    rows = [tuple(each.values()) for each in plugins]
    printer.table(("GROUP", "NAME", "OBJECT", "PACKAGE", "ERROR"), rows)
    return errors.UNHEALTHY if any(each["error"] for each in plugins) else errors.OK


def _entry_points(group: str) -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=group), key=lambda point: point.name)


def _describe(group: str, point: metadata.EntryPoint, check: bool) -> dict[str, Any]:
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
