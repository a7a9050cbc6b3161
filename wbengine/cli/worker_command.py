"""`wbengine worker`: `python -m wbengine.worker`, with the settings of all commands."""

from __future__ import annotations

import argparse
from typing import Any, Final

import click

from wbengine import worker
from wbengine.cli import base, fleets, logs
from wbengine.cli import context as contexts

__all__ = ["command"]

#: What the settings of all commands say; option of the worker -> setting.
_SHARED: Final = {
    "--url": "url",
    "--exchange": "exchange",
    "--transport": "transport",
    "--transport-option": "transport_options",
    "--ledger": "ledger",
    "--color": "color",
    "--log-level": "log_level",
    "--quiet": "quiet",
    "--version": "",
    "--help": "",
}


class _Worker(base.Command):
    """It has the log of a worker."""

    def invoke(self, ctx: click.Context) -> Any:
        context = ctx.find_object(contexts.Context)
        assert context is not None
        context.path = ctx.command_path
        context.import_here()
        if context.settings.log_format == "json":
            logs.install(_level(context), "json", context.settings.color)
        return click.Command.invoke(self, ctx)


def _level(context: contexts.Context) -> str:
    settings = context.settings
    if settings.origins.get("log_level") == "default":
        return "info"  # a worker tells what it does
    return settings.log_level


def _options() -> list[click.Parameter]:
    """Those of the module that are not options of all commands."""
    parser = worker.parser()
    formatter = parser._get_formatter()
    made: list[click.Parameter] = [click.Argument(["topics"], metavar="[TOPIC]...", nargs=-1)]
    for action in parser._actions:
        names = list(action.option_strings)
        if not _SHARED.keys().isdisjoint(names):
            continue
        flag = isinstance(action, argparse._StoreTrueAction)
        repeats = isinstance(action, argparse._AppendAction)
        more: dict[str, Any] = {"is_flag": True} if flag else {"type": _type(action)}
        text = formatter._expand_help(action)
        metavar = None if flag or action.choices else action.metavar
        made.append(
            click.Option(
                names,
                help=text[:1].upper() + text[1:] + ".",
                metavar=metavar,
                multiple=repeats,
                **more,
            )
        )
    return made


def _type(action: argparse.Action) -> Any:
    return click.Choice(list(action.choices)) if action.choices else str


def _words(given: dict[str, Any]) -> list[str]:
    """The command line of the module."""
    found: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(option)
        elif isinstance(value, tuple | list):
            found += [f"{option}={one}" for one in value]
        elif value not in (None, False):
            found.append(f"{option}={value}")
    return found


def _settings(context: contexts.Context) -> dict[str, Any]:
    settings = context.settings
    options = [f"{key}={value}" for key, value in settings.transport_options.items()]
    return {
        "url": settings.url,
        "exchange": settings.exchange,
        "transport": settings.transport,
        "transport_option": options,
        "ledger": settings.ledger,
        "color": settings.color,
        "log_level": _level(context),
        "quiet": settings.quiet,
    }


@base.pass_context
def _run(context: contexts.Context, /, topics: tuple[str, ...], **given: Any) -> int:
    given["topic"] = (*given.get("topic", ()), *topics)
    if not given.get("tasks"):
        given["tasks"] = context.settings.include
    if given["tasks"]:  # else it is called wrongly
        fleets.check(context.settings, vars(context.settings))
    return worker.main([*_words(_settings(context)), *_words(given)], prog="wbengine worker")


command = _Worker(
    "worker",
    params=_options(),
    callback=_run,
    help="""Run tasks for the flows of worker-based engines, until told to stop.

    The first SIGTERM or Ctrl-C lets it finish what runs; the second one gives that up (exit code 1,
    as when --drain-timeout is over).  Without --tasks, the modules of --include are offered.

    \b
    wbengine worker orders --tasks orders
    """,
)
