"""Commands, each of which knows the options that all have, before its name and after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import click

from wbengine import _names
from wbengine.cli import config, errors, params
from wbengine.cli import context as contexts
from wbengine.cli.settings_schema import LEVELS

__all__ = ["Command", "command", "common_options", "pass_context"]

#: What a command gets as its first argument.
pass_context = click.make_pass_decorator(contexts.Context)


class Command(click.Command):
    """A command with the options of all commands; they are told of in the help of `wbengine`.

    Its own options can be set in the environment (`WBENGINE_FLOW_RUN_ENGINE`) and in a file (as
    `engine` in the table `[flow.run]`), too.
    """

    #: The least level that it logs where nothing else is set.
    log_level = "warning"

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {spelling for param in own for spelling in param.opts}
        more: list[click.Parameter] = [
            option for option in common_options(hidden=True) if not taken & set(option.opts)
        ]
        return [*own, *more]

    def invoke(self, ctx: click.Context) -> Any:
        context = ctx.find_object(contexts.Context)
        if context is not None:
            context.path = ctx.command_path
            ctx.call_on_close(context.ends.close)
            context.start(self.log_level)
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Options of every command, and exit codes: wbengine --help")


def command(name: str, **more: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command; the function gets the `Context` first."""

    def decorate(function: Callable[..., Any]) -> Command:
        made: Command = click.command(name, cls=Command, **more)(pass_context(function))
        return made

    return decorate


def common_options(*, hidden: bool = False) -> list[click.Option]:
    """The options of every command; what they say is kept in the `Context`."""
    return [_option(*spellings, hidden=hidden, **more) for spellings, more in _COMMON]


def _option(*spellings: str, **more: Any) -> click.Option:
    return click.Option(
        spellings,
        expose_value=False,
        callback=_keep,
        allow_from_autoenv=False,
        **more,
    )


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


class _KeyValue(params.Kind):
    """`KEY=VALUE`, where the value is JSON if it can be."""

    name = "K=V"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Any]:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


class _Seconds(click.FloatRange):
    name = "S"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=86400)


class _Label(params.Kind):
    name = "NAME"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            config.check("", "exchange", value)
        except errors.Failed:
            self.fail(f"{value!r} is not 1 to 120 of A-Z a-z 0-9 _ . -", param, ctx)
        return str(value)


_COMMON: Final[tuple[tuple[tuple[str, ...], dict[str, Any]], ...]] = (
    (("--config",), {"metavar": "FILE", "is_eager": True,
        "help": "Read this file, not wbengine.toml and that of the user ($WBENGINE_CONFIG)."}),
    (("-b", "--broker", "--url", "url"), {"metavar": "URL",
        "help": "The broker (default: a folder of this user)."}),
    (("-x", "--exchange"), {"type": _Label(), "metavar": "NAME",
        "help": "The exchange that engines and workers meet at ('default')."}),
    (("--transport",), {"metavar": "NAME", "help": "kombu transport, such as filesystem."}),
    (("--transport-option", "transport_options"), {"type": _KeyValue(), "multiple": True,
        "help": "Option of the transport (repeatable)."}),
    (("--ledger",), {"metavar": "URL", "help": "The ledger of the workers (the broker's own)."}),
    (("--keys", "keys"), {"metavar": "FILE",
        "help": "The keys that messages are signed with ($WBENGINE_KEYS; see `wbengine keys`)."}),
    (("--persistence",), {"metavar": "URL",
        "help": "The store of flows: sqlite:////var/lib/flows.db (a folder of this user)."}),
    (("--board",), {"metavar": "URL",
        "help": "The job board of submitted flows: redis://queues/0 (that in the store)."}),
    (("-I", "--include"), {"metavar": "MODULE", "multiple": True,
        "help": "Import this module first (repeatable)."}),
    (("--flows",), {"metavar": "MODULE[:NAME]", "multiple": True,
        "help": "Make flows of records by what is in this module, or by this function, only"
        " (repeatable; without it: by all but what is Python's or in an installed package)."}),
    (("--timeout",), {"type": _Seconds(),
        "help": "Seconds that a broker, store or worker has to answer (5)."}),
    (("--json/--no-json", "json"), {"default": None, "help": "Print JSON instead of tables."}),
    (("-q", "--quiet", "quiet"), {"is_flag": True, "default": None, "flag_value": True,
        "help": "Say nothing but results and errors."}),
    (("-v", "--verbose", "verbose"), {"count": True, "default": None,
        "help": "Log more (-vv: all)."}),
    (("--log-level",), {"type": click.Choice(LEVELS), "help": "Least level logged ('warning')."}),
    (("--log-format",), {"type": click.Choice(("text", "json")), "help": "Form of the log."}),
    (("--color",), {"type": click.Choice(("auto", "always", "never")),
        "help": "Colour (auto: on a terminal; $NO_COLOR and $FORCE_COLOR count)."}),
)  # fmt: skip
