"""Commands, each of which knows the options that all have, before its name and after it; and groups
of commands.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from wbengine import _names, _plugins
from wbengine.cli import context as contexts
from wbengine.cli import errors, params
from wbengine.cli.settings_schema import SETTINGS

__all__ = ["Command", "Group", "Lazy", "command", "common_options"]


class Command(click.Command):
    """A command with the options of all commands; they are told of in the help of `wbengine`.

    Its own options can be set in the environment (`WBENGINE_FLOW_RUN_ENGINE`) and in a file (as
    `engine` in the table `[flow.run]`), too.  Its function gets the `Context` first.

    :param log_level: the least level that it logs where nothing else is set.
    """

    def __init__(self, *args: Any, log_level: str = "warning", **more: Any) -> None:
        super().__init__(*args, **more)
        self._log_level = log_level

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {spelling for param in own for spelling in param.opts}
        more: list[click.Parameter] = [
            option for option in common_options(hidden=True) if not taken & set(option.opts)
        ]
        return [*own, *more]

    def invoke(self, ctx: click.Context) -> Any:
        context = ctx.ensure_object(contexts.Context)
        context.path = ctx.command_path
        ctx.call_on_close(context.ends.close)
        context.start(self._log_level)
        assert self.callback is not None
        return ctx.invoke(self.callback, context, **ctx.params)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Options of every command, and exit codes: wbengine --help")


def command(
    name: str, cls: type[Command] = Command, **more: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command that is in no group, or is loaded when it is asked for."""
    return click.command(name, cls, **more)


class Lazy(NamedTuple):
    """A command that is not loaded yet: its module here, its first line, and what it is there."""

    module: str
    help: str
    name: str = "command"

    def load(self) -> Any:
        return getattr(importlib.import_module(f"{__package__}.{self.module}"), self.name)


class Group(click.Group):
    """A group of commands; those that are `lazy` are loaded when they are asked for: help shows
    all of them, and loads none.

    :param offers: the entry point group of those that other packages bring along.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        offers: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self._offers = offers

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            # Who asks for nothing has not asked for help: releases of click differ in that.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(errors.USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys([*self.commands, *self.lazy, *self._offered()]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (found := self.lazy.get(cmd_name)) is not None:
            command = found.load()
        elif cmd_name in self._offered():
            command = _plugins.find(str(self._offers), cmd_name)
        else:
            return super().get_command(ctx, cmd_name)
        if not isinstance(command, click.Command):
            raise click.ClickException(f"command {cmd_name!r} is no click command: {command!r}")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-"):
            known = self.list_commands(ctx)
            if name not in known:
                raise click.UsageError(
                    f"there is no command {name!r}{_names.hint(name, known)};"
                    f" known: {', '.join(known)}",
                    ctx,
                )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = dict.fromkeys(self.list_commands(ctx), "(a plug-in)")
        rows |= {name: found.get_short_help_str() for name, found in self.commands.items()}
        rows |= {name: found.help for name, found in self.lazy.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(rows.items()))

    def _offered(self) -> list[str]:
        return [] if self._offers is None else _plugins.names(self._offers)


def common_options(*, hidden: bool = False) -> list[click.Option]:
    """The options of every command; what they say is kept in the `Context`."""

    def option(*spellings: str, **more: Any) -> click.Option:
        more |= {"expose_value": False, "callback": _keep, "allow_from_autoenv": False}
        return click.Option(spellings, hidden=hidden, **more)

    return [
        option("--config", metavar="FILE", is_eager=True,
            help="Read this file, not wbengine.toml and that of the user ($WBENGINE_CONFIG)."),
        *(
            option(*found.spellings, name, help=found.schema["description"], **found.option)
            for name, found in SETTINGS.items() if found.spellings
        ),
        option("-v", "--verbose", count=True, default=None, help="Log more (-vv: all)."),
    ]  # fmt: skip


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    context, name = ctx.ensure_object(contexts.Context), str(param.name)
    if name == "config":
        if value is not None:
            context.file = value
            vars(context).pop("files", None)
        _use_tables(ctx, context)
    elif value is None or value == ():
        pass
    elif name == "keys" and not value:
        raise click.BadParameter("it is empty: name a key file, or 'none' for no keys", ctx, param)
    elif name == "verbose":
        context.given["log_level"] = "info" if value == 1 else "debug"
    elif name == "transport_options":
        context.given[name] = {**context.given.get(name, {}), **dict(value)}
    elif name in ("include", "flows"):
        context.given[name] = [*context.given.get(name, ()), *value]
    else:
        context.given[name] = value
    return value


def _use_tables(ctx: click.Context, context: contexts.Context) -> None:
    """Take what the files say of this command's own options as their defaults."""
    if ctx.parent is None or isinstance(ctx.command, click.Group):
        return
    path = ctx.command_path.split()[1:]
    options = [param for param in ctx.command.params if isinstance(param, click.Option)]
    known = {name.lstrip("-").replace("-", "_"): each for each in options for name in each.opts}
    known |= {str(each.name): each for each in options}
    found: dict[str, Any] = {}
    for file in reversed(context.files):
        table: Any = file.content
        for key in path:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        for key, value in table.items() if isinstance(table, dict) else ():
            name = key.replace("-", "_")
            where = f"{file.path}: [{'.'.join(path)}]"
            if name not in known:
                hint = _names.hint(name, list(known))
                raise errors.Failed(f"{where} has no option {key!r}{hint}", errors.BAD_CONFIG)
            option = known[name]
            if wanted := _refused(option, value):
                shown = json.dumps(value, default=str)
                raise errors.Failed(
                    f"{where} {key} is {shown}: it must be {wanted}", errors.BAD_CONFIG
                )
            plain = option.is_flag or option.multiple or isinstance(value, dict)
            found[str(option.name)] = value if plain else str(value)
    ctx.default_map = found or None


def _refused(option: click.Option, value: Any) -> str:
    """What a table must hold for this option, if `value` is nothing of the kind; else nothing."""
    if option.is_flag:
        return "" if isinstance(value, bool) else "true or false"
    if option.multiple:
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "" if is_list else "a list of texts"
    if option.type is params.INPUTS and isinstance(value, dict):
        return ""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return "" if is_plain else "a text or a number"
