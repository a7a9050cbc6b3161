"""Groups of commands that are loaded when they are asked for: help shows all, and loads none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from wbengine import _names, _plugins
from wbengine.cli import errors

__all__ = ["COMMANDS_NAMESPACE", "Group", "Lazy"]

#: Entry points of other people's commands.
COMMANDS_NAMESPACE: Final = "wbengine.commands"


class Lazy(NamedTuple):
    """A command that is not loaded yet: where it is ('module:attribute'), and its first line."""

    path: str
    help: str


class Group(click.Group):
    """A group whose commands are loaded when they are asked for.

    `offers` is the entry point group of those that other packages bring along.
    """

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
        return [*self.lazy, *(name for name in self._offered() if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (found := self.lazy.get(cmd_name)) is not None:
            module, _, attribute = found.path.partition(":")
            command = getattr(importlib.import_module(module), attribute)
        elif self._offers is not None and cmd_name in self._offered():
            command = _plugins.find(self._offers, cmd_name)
        else:
            return None
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
        rows = [(name, found.help) for name, found in self.lazy.items()]
        rows += [(name, "(a plug-in)") for name in self._offered() if name not in self.lazy]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _offered(self) -> list[str]:
        return [] if self._offers is None else _plugins.names(self._offers)
