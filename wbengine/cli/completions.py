"""What a shell offers for an argument: flows and schedules of the store, workers that answer,
kinds of engines.

Nothing is offered where it cannot be found out in time; a shell shows no errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from wbengine.cli import context as contexts

__all__ = ["engines", "flows", "schedules", "workers"]

#: So many flows are offered, the newest.
_MOST: Final = 50
#: Seconds that somebody waits for the Tab key at most.
_PATIENCE: Final = 2.0

_Found = Iterable[tuple[str, str]]


def _completion(find: Callable[[contexts.Context, str], _Found]) -> Any:
    def complete(ctx: click.Context, param: Any, incomplete: str) -> list[CompletionItem]:
        context = ctx.find_object(contexts.Context)
        with contextlib.suppress(Exception):
            assert context is not None
            context.given = {"timeout": _PATIENCE, "quiet": True, **context.given}
            found = find(context, incomplete)
            return [
                CompletionItem(word, help=text)
                for word, text in found
                if word.startswith(incomplete)
            ]
        return []

    return complete


@_completion
def flows(context: contexts.Context, incomplete: str) -> _Found:
    """Their ids."""
    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        rows = connection.list_flows(uuid=incomplete.lower() or None, limit=_MOST).flows
    return [(row.uuid, f"{row.name} {row.state}") for row in rows]


@_completion
def schedules(context: contexts.Context, incomplete: str) -> _Found:
    """Their names."""
    from wbengine.schedules import Schedules

    with context.backend() as backend:
        return [(entry.name, entry.schedule.times) for entry in Schedules(backend).all()]


@_completion
def workers(context: contexts.Context, incomplete: str) -> _Found:
    """Their names."""
    from wbengine.cli import fleets

    with fleets.made(context.settings) as fleet:
        found = fleets.heard(context.settings, fleet)
    return [(one.name, f"{one.state} {', '.join(one.topics)}") for one in found]


@_completion
def engines(context: contexts.Context, incomplete: str) -> _Found:
    """Their kinds."""
    from wbengine import _plugins
    from wbengine.engines import loading

    return [(name, "") for name in _plugins.names(loading.ENGINES_NAMESPACE)]
