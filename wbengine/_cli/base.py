"""Classes of commands and groups. Common options are accepted before and after the command name."""

from __future__ import annotations

import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import click

from wbengine._cli import collector, config, errors, params
from wbengine._cli import context as contexts
from wbengine._cli.settings_schema import SETTINGS, VARIABLES, Setting
from wbengine._configuration import plugins
from wbengine._introspection import object_names

__all__ = ["ALIASES", "Command", "Group", "Lazy", "command", "common_options", "own_options"]

#: Short names of commands, valid in all groups.
ALIASES: Final[Mapping[str, str]] = {"ls": "list", "rm": "delete"}


class Command(click.Command):
    """A command with the common options, which only the help of `wbengine` describes.

    Its own options can also be set by an environment variable (`WBENGINE_FLOW_RUN_ENGINE`) or in a
    file (`engine` in the table `[flow.run]`). The first argument of its function is the `Context`.

    :param log_level: the lowest level that is logged, unless a setting defines another one.
    """

    def __init__(self, *args: Any, log_level: str = "warning", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._log_level = log_level
        self.short_help = self.short_help or (self.help or "").strip().partition("\n")[0]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        prefix = variable_prefix(ctx.command_path)
        for key, option in own_options(self):
            option.allow_from_autoenv = False
            option.envvar = f"{prefix}{key.upper()}"
        own_spellings = {spelling for param in own for spelling in param.opts}
        shared_options: list[click.Parameter] = [
            option for option in common_options(hidden=True) if not own_spellings & set(option.opts)
        ]
        return [*own, *shared_options]

    def invoke(self, ctx: click.Context) -> Any:
        context = ctx.ensure_object(contexts.Context)
        context.path = ctx.command_path
        ctx.call_on_close(context.exit_stack.close)
        context.start(self._log_level)
        assert self.callback is not None
        return ctx.invoke(self.callback, context, **ctx.params)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        for _, option in own_options(self):
            path = ".".join(ctx.command_path.split()[1:])
            formatter.write_text(
                f"Other ways to set an option: an environment variable, such as ${option.envvar};"
                f" an"
                f" entry of the table [{path}] in wbengine.toml."
            )
            break
        formatter.write_text("Options of all commands and exit codes: wbengine --help")


def own_options(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """Yield the options that only this command has, with their keys in files of settings."""
    for param in command.params:
        if isinstance(param, click.Option) and param.expose_value:
            spelling = next(each for each in param.opts if each.startswith("--"))
            yield spelling[2:].replace("-", "_"), param


def variable_prefix(path: str) -> str:
    """Return the prefix of the environment variables of a command, such as WBENGINE_FLOW_RUN_."""
    return "_".join(["WBENGINE", *path.upper().split()[1:], ""])


def command(
    name: str, cls: type[Command] = Command, **kwargs: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command that is outside of a group or is loaded lazily."""
    return click.command(name, cls, **kwargs)


class Lazy(NamedTuple):
    """A command that is not loaded yet: its module, first line of help, and attribute name."""

    module: str
    help: str
    name: str = "command"

    def load(self) -> Any:
        with collector.loading():
            module = importlib.import_module(f"{__package__}.{self.module}")
        return getattr(module, self.name)


class Group(click.Group):
    """A group of commands. `lazy` commands are loaded when they are used; help loads none of them.

    :param subject: the subject of operations of the table. Those without another command of this
        name become commands.
    :param renamed: earlier names of commands, which help does not show.
    :param default: the command of a call that names none.
    :param entry_points: the entry point group of commands that other packages provide.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        subject: str | None = None,
        renamed: Mapping[str, Lazy] | None = None,
        default: str | None = None,
        entry_points: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self._subject = subject
        self._renamed = dict(renamed or {})
        self._default = default
        self._entry_points = entry_points

    @functools.cached_property
    def generated(self) -> Mapping[str, Any]:
        """Commands of operations, by name. They are listed when no other command has the name."""
        if self._subject is None:
            return {}
        commands = object_names.load("wbengine._cli.generated_commands:commands_of")(self._subject)
        return {key: commands[key] for key in commands if key not in {**self.commands, **self.lazy}}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._default is not None and not ctx.resilient_parsing:
            first = args[0] if args else "-"
            if first.startswith("-") and first not in ctx.help_option_names:
                args = [self._default, *args]
        if not args and not ctx.resilient_parsing:
            # A call without arguments is a usage error. The exit code of click depends on its
            # version.
            click.echo(ctx.get_help(), err=True)
            ctx.exit(errors.USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        own = (*self.commands, *self.lazy, *self.generated)
        return list(dict.fromkeys((*own, *self._plugin_names())))

    def has_command(self, name: str) -> bool:
        """Return whether there is a command of this name. Aliases do not count."""
        is_own = name in self.commands or name in self.lazy or name in self._renamed
        return is_own or name in self.generated or name in self._plugin_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._full_name(cmd_name)
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        lazy_command: Any = self.lazy.get(cmd_name) or self._renamed.get(cmd_name)
        lazy_command = lazy_command or self.generated.get(cmd_name)
        if lazy_command is not None:
            command = lazy_command.load()
        elif cmd_name in self._plugin_names():
            command = plugins.find(str(self._entry_points), cmd_name)
        else:
            return None
        if not isinstance(command, click.Command):
            raise click.ClickException(
                f"command {cmd_name!r} must be a click command, got {command!r}"
            )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        is_checked = not ctx.resilient_parsing and not name.startswith("-")
        if is_checked and not self.has_command(self._full_name(name)):
            command_names = self.list_commands(ctx)
            raise click.UsageError(
                f"unknown command {name!r}{object_names.hint(name, command_names)};"
                f" known commands: {', '.join(command_names)}",
                ctx,
            )
        matched_name, command, rest = super().resolve_command(ctx, args)
        return (
            (matched_name if matched_name is None else self._full_name(matched_name)),
            command,
            rest,
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = dict.fromkeys(self.list_commands(ctx), "(from a plug-in)")
        rows |= {
            name: command.short_help or command.help or ""
            for name, command in self.commands.items()
        }
        rows |= {name: command.help for name, command in {**self.lazy, **self.generated}.items()}
        aliases = {name: alias for alias, name in ALIASES.items() if alias not in rows}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (f"{name}, {aliases[name]}" if name in aliases else name, text)
                    for name, text in rows.items()
                ]
            )

    def _full_name(self, name: str) -> str:
        full = ALIASES.get(name, name)
        is_known = full in self.commands or full in self.lazy or full in self.generated
        return full if is_known else name

    def _plugin_names(self) -> list[str]:
        return [] if self._entry_points is None else plugins.names(self._entry_points)


def common_options(*, hidden: bool = False) -> list[click.Option]:
    """Return the options of every command. Their values are stored in the `Context`."""

    def option(*spellings: str, **kwargs: Any) -> click.Option:
        kwargs |= {"expose_value": False, "callback": _store_value, "allow_from_autoenv": False}
        return click.Option(spellings, hidden=hidden, **kwargs)

    return [
        option("--config", metavar="FILE", is_eager=True,
            help="Read only this file of settings."
            "  [env var: WBENGINE_CONFIG; default: wbengine.toml and the user's file]"),
        *(
            option(*setting.spellings, name, help=_help(name, setting), **setting.option)
            for name, setting in SETTINGS.items() if setting.spellings
        ),
        option("-v", "--verbose", count=True, default=None,
            help="Log at level info (-vv: at level debug)."),
    ]  # fmt: skip


def _help(name: str, setting: Setting) -> str:
    default = setting.default or setting.schema.get("default")
    details = f"env var: {VARIABLES[name]}"
    if default:
        details += (
            f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
        )
    return f"{setting.schema['description']}  [{details}]"


def _store_value(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    context, name = ctx.ensure_object(contexts.Context), str(param.name)
    if name == "config":
        if value is not None:
            context.file = value
            vars(context).pop("files", None)
        _use_tables(ctx, context)
    elif value is None or value == ():
        pass
    elif name == "keys" and not value:
        raise click.BadParameter("must be a key file, or 'none' for no keys, got ''", ctx, param)
    elif name == "verbose":
        context.option_values["log_level"] = "info" if value == 1 else "debug"
    elif name == "transport_options":
        context.option_values[name] = {**context.option_values.get(name, {}), **dict(value)}
    elif name in ("include", "flows"):
        context.option_values[name] = [*context.option_values.get(name, ()), *value]
    else:
        context.option_values[name] = value
    return value


def _use_tables(ctx: click.Context, context: contexts.Context) -> None:
    """Use the tables of the files of settings as defaults of this command's own options."""
    if ctx.parent is None or isinstance(ctx.command, click.Group):
        return
    path = ctx.command_path.split()[1:]
    _check_tables(ctx, context)
    options = dict(own_options(ctx.command))
    _check_variables(ctx, options)
    defaults: dict[str, Any] = {}
    for file in reversed(context.files):
        table: Any = file.content
        for key in path:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        for key, value in table.items() if isinstance(table, dict) else ():
            name = key.replace("-", "_")
            where = f"{file.path}: [{'.'.join(path)}]"
            if name not in options:
                hint = object_names.hint(name, list(options))
                raise errors.Failed(f"{where}: unknown option {key!r}{hint}", errors.BAD_CONFIG)
            option = options[name]
            if expected := _expected_type(option, value):
                shown = json.dumps(value, default=str)
                raise errors.Failed(
                    f"{where} {key} must be {expected}, got {shown}", errors.BAD_CONFIG
                )
            plain = option.is_flag or option.multiple or isinstance(value, dict)
            defaults[str(option.name)] = value if plain else str(value)
    ctx.default_map = defaults or None


def _check_tables(ctx: click.Context, context: contexts.Context) -> None:
    """Reject tables of commands that do not exist in the groups of this command."""
    path = ctx.command_path.split()[1:]
    group = ctx.parent
    while group is not None and group.parent is not None and isinstance(group.command, Group):
        path.pop()
        # A setting can have the name of a group.
        for file in () if path[0] in SETTINGS else context.files:
            table: Any = file.content
            for key in path:
                table = table.get(key, {}) if isinstance(table, dict) else {}
            for key in table:
                if not group.command.has_command(key):
                    command_names = group.command.list_commands(group)
                    raise errors.Failed(
                        f"{file.path}: [{'.'.join(path)}]: unknown command"
                        f" {key!r}{object_names.hint(key, command_names)}",
                        errors.BAD_CONFIG,
                    )
        group = group.parent


def _check_variables(ctx: click.Context, options: Mapping[str, click.Option]) -> None:
    """Reject variables that resemble those of this command's options.

    A variable that is named like a setting with the prefix of the command is rejected too.
    """
    prefix = variable_prefix(ctx.command_path)
    variables = {f"{prefix}{key.upper()}" for key in options}
    for setting, variable in VARIABLES.items():
        wrong = f"{prefix}{setting.upper()}"
        if wrong not in variables and os.environ.get(wrong):
            raise errors.Failed(
                f"unknown variable ${wrong} (did you mean ${variable}?)", errors.BAD_CONFIG
            )
    config.check_variables(prefix, variables)


def _expected_type(option: click.Option, value: Any) -> str:
    if option.is_flag:
        return "" if isinstance(value, bool) else "true or false"
    if option.multiple:
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return "" if is_list else "a list of strings"
    if option.type is params.INPUTS and isinstance(value, dict):
        return ""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return "" if is_plain else "a string or a number"
