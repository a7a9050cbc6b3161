"""`wbengine config`: show the settings, their files and their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from wbengine._cli import base, config, output, settings_schema
from wbengine._cli import context as contexts

__all__ = ["command"]

command = base.Group("config", help="Show settings and their sources.")


@command.command(
    "show",
    help="""Show each setting, its value and its source.

    Passwords are masked.

    \b
    Example:
      wbengine config show --json
    """,
)
def show(context: contexts.Context) -> None:
    settings, printer = context.settings, context.printer
    entries = [
        {"name": name, "value": _shown(context, name), "from": _origin(settings, name)}
        for name in settings_schema.SCHEMA["properties"]
    ]
    printer.document("config-show/1", {"settings": entries})
    rows = [(each["name"], _text(each["value"]), each["from"]) for each in entries]
    printer.table(("SETTING", "VALUE", "FROM"), rows)


def _origin(settings: config.Settings, name: str) -> str:
    source = settings.source(name)
    return settings.origins[name] if source == name else source


def _shown(context: contexts.Context, name: str) -> Any:
    from wbengine.views import redaction

    settings = context.settings
    special = {"persistence": settings.store, "url": settings.broker}
    value = special.get(name) or getattr(settings, name)
    return redaction.Redactor(show_values=True).value(value)


def _text(value: Any) -> str | None:
    if value is None or value == [] or value == {}:
        return None
    return value if isinstance(value, str) else json.dumps(value)


@command.command(
    "path",
    help="""Print the paths of the files of settings, in order of precedence.

    \b
    Example:
      wbengine config path
    """,
)
def path(context: contexts.Context) -> None:
    read = {file.path for file in context.files}
    paths = list(dict.fromkeys([*(file.path for file in context.files), *_candidates(context)]))
    printer = context.printer
    content = [{"path": str(path), "read": path in read} for path in paths]
    printer.document("config-path/1", {"files": content})
    for file in paths:
        if file in read:
            printer.line(str(file))
        else:
            printer.hint(f"not found: {file}")


def _candidates(context: contexts.Context) -> list[Path]:
    if context.file is not None:
        return []
    return [config.current_folder() / config.PROJECT, config.user_file()]


@command.command(
    "schema",
    help="""Print the JSON Schema of the files of settings.

    \b
    Example:
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
    document = {
        **settings_schema.SCHEMA,
        "properties": {
            **tables,
            **{name: settings_schema.schema_of(name) for name in settings_schema.SETTINGS},
        },
        "additionalProperties": False,
    }
    output.write(f"{json.dumps(document, indent=2)}\n")


def _table(ctx: click.Context, command: click.Command | None) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            properties[name] = _table(ctx, command.get_command(ctx, name))
    else:
        for key, option in () if command is None else base.own_options(command):
            properties[key] = {"description": option.help or ""}
    return {"type": "object", "properties": properties, "additionalProperties": False}
