"""`wbengine config`: what is set, by whom, and what may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from wbengine.cli import base, config, output, settings_schema
from wbengine.cli import context as contexts

__all__ = ["command"]

command = base.Group("config", help="Show settings, and where they come from.")


@command.command(
    "show",
    short_help="Show what holds, and where it comes from.",
    help="""Show what holds, and where it comes from.

    Passwords are not shown.

    \b
    wbengine config show --json
    """,
)
def show(context: contexts.Context) -> None:
    settings, printer = context.settings, context.printer
    found = [
        {"name": name, "value": _shown(context, name), "from": settings.origins[name]}
        for name in settings_schema.SCHEMA["properties"]
    ]
    printer.document("config-show/1", {"settings": found})
    rows = [(each["name"], _text(each["value"]), each["from"]) for each in found]
    printer.table(("SETTING", "VALUE", "FROM"), rows)


def _shown(context: contexts.Context, name: str) -> Any:
    from wbengine.views import redaction

    settings = context.settings
    value = settings.store if name == "persistence" else getattr(settings, name)
    return redaction.Redactor(show_values=True).value(value)


def _text(value: Any) -> str | None:
    if value is None or value == [] or value == {}:
        return None
    return value if isinstance(value, str) else json.dumps(value)


@command.command(
    "path",
    short_help="Print which files are read.",
    help="""Print which files are read, those that count more first.

    \b
    wbengine config path
    """,
)
def path(context: contexts.Context) -> None:
    read = {file.path for file in context.files}
    found = list(dict.fromkeys([*(file.path for file in context.files), *_candidates(context)]))
    printer = context.printer
    content = [{"path": str(path), "read": path in read} for path in found]
    printer.document("config-path/1", {"files": content})
    for file in found:
        if file in read:
            printer.line(str(file))
        else:
            printer.hint(f"not there: {file}")


def _candidates(context: contexts.Context) -> list[Path]:
    return [] if context.file is not None else [Path.cwd() / config.PROJECT, config.user_file()]


@command.command(
    "schema",
    short_help="Print the JSON Schema of the files.",
    help="""Print the JSON Schema of the files, for editors and checks.

    \b
    wbengine config schema > wbengine.schema.json
    """,
)
def schema(context: contexts.Context) -> None:
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    tables = {
        name: _table(root, root.command.get_command(root, name))
        for name in root.command.list_commands(root)
    }
    whole = {
        **settings_schema.SCHEMA,
        "properties": {**tables, **settings_schema.SCHEMA["properties"]},
        "additionalProperties": False,
    }
    output.write(f"{json.dumps(whole, indent=2)}\n")


def _table(ctx: click.Context, command: click.Command | None) -> dict[str, Any]:
    """The options of a command, or a table of the commands of a group."""
    properties: dict[str, Any] = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            properties[name] = _table(ctx, command.get_command(ctx, name))
    else:
        for param in command.params if command is not None else ():
            if isinstance(param, click.Option) and param.name != "help":
                properties[str(param.name)] = {"description": param.help or ""}
    return {"type": "object", "properties": properties, "additionalProperties": False}
