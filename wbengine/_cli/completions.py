"""Shell completion of arguments: flows, schedules, workers and kinds of engines.

Errors and timeouts yield no completions, because a shell cannot show errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from wbengine._cli import context as contexts

__all__ = ["engines", "flows", "schedules", "workers"]

#: Maximum number of suggested flows, newest first.
_MAX_FLOWS: Final = 50
_TIMEOUT_SECONDS: Final = 2.0

_Completions = Iterable[tuple[str, str]]


def _completion(find: Callable[[contexts.Context, str], _Completions]) -> Any:
    def complete(ctx: click.Context, param: Any, incomplete: str) -> list[CompletionItem]:
        context = ctx.find_object(contexts.Context)
        with contextlib.suppress(Exception):
            assert context is not None
            context.option_values = {
                "timeout": _TIMEOUT_SECONDS,
                "quiet": True,
                **context.option_values,
            }
            candidates = find(context, incomplete)
            return [
                CompletionItem(word, help=text)
                for word, text in candidates
                if word.startswith(incomplete)
            ]
        return []

    return complete


@_completion
def flows(context: contexts.Context, incomplete: str) -> _Completions:
    """Return the uuids of flows with their names and states."""
    with context.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
        rows = connection.list_flows(uuid=incomplete.lower() or None, limit=_MAX_FLOWS).flows
    return [(row.uuid, f"{row.name} {row.state}") for row in rows]


@_completion
def schedules(context: contexts.Context, incomplete: str) -> _Completions:
    """Return the names of schedules with their times."""
    from wbengine.schedules import Schedules

    with context.backend() as backend:
        return [(entry.name, entry.schedule.times) for entry in Schedules(backend).all()]


@_completion
def workers(context: contexts.Context, incomplete: str) -> _Completions:
    """Return the names of the workers that answer, with their states and topics."""
    from wbengine._cli import fleets

    with fleets.create(context.settings) as fleet:
        worker_views = fleets.answering_workers(context.settings, fleet)
    return [(view.name, f"{view.state} {', '.join(view.topics)}") for view in worker_views]


@_completion
def engines(context: contexts.Context, incomplete: str) -> _Completions:
    """Return the kinds of engines."""
    from wbengine._configuration import plugins
    from wbengine.engines import _engine_choice

    return [(name, "") for name in plugins.names(_engine_choice.ENGINES_NAMESPACE)]
