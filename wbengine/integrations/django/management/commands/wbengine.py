"""`manage.py wbengine`: the command `wbengine` in a process with the settings of Django."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from wbengine.integrations.django import _configured, _connections, _databases

__all__ = ["Command"]

_VARIABLE: Final = "WBENGINE_PERSISTENCE"
_OPTION: Final = "--backend"


class Command(BaseCommand):  # type: ignore[misc]
    help = (
        "Run wbengine with the store of the task backend, for example: manage.py wbengine serve."
        " If TASKS has several backends of wbengine: manage.py wbengine --backend NAME serve."
    )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command with all arguments, and end the process with its exit code."""
        try:
            words = self._use_store(argv[2:])
        except (CommandError, ImproperlyConfigured) as error:
            self.stderr.write(f"{type(error).__name__}: {error}")
            sys.exit(1)
        from wbengine._cli import app

        _connections.close_around_calls()
        sys.exit(app.main(words))

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command with arguments of `call_command`."""
        self.run_from_argv(["manage.py", "wbengine", *args])

    def _use_store(self, words: Sequence[str]) -> list[str]:
        """Let commands without `--persistence` use the store of a backend. Return other arguments.

        :raises CommandError: if it is not clear which backend.
        """
        name, words = _split(words)
        databases = _configured.databases()
        if name is None:
            if _VARIABLE in os.environ or not databases or {"--help", "--version"} & {*words}:
                return words
            if len({*databases.values()}) > 1:
                raise CommandError(
                    f"TASKS contains several backends of wbengine: use {_OPTION} with one of"
                    f" {', '.join(databases)}"
                )
            name = next(iter(databases))
        elif name not in databases:
            raise CommandError(
                f"{_OPTION} must be one of {', '.join(databases) or 'TASKS'}, got {name!r}"
            )
        os.environ[_VARIABLE] = _databases.url_of(databases[name])
        if len(databases) > 1:
            self.stderr.write(
                f"backends of database {databases[name]!r}: "
                + ", ".join(each for each in databases if databases[each] == databases[name])
            )
        return words


def _split(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of `--backend`, which precedes the command, and the other arguments."""
    first, rest = next(iter(words), ""), list(words[1:])
    option, separator, name = first.partition("=")
    if option != _OPTION:
        return None, list(words)
    if not separator:
        if not rest:
            raise CommandError(f"{_OPTION} requires a name of TASKS")
        name, rest = rest[0], rest[1:]
    return name, rest
