"""The settings of the command line that are options of the chosen engine."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Any

from wbengine import exceptions
from wbengine._cli import errors, fleets

if TYPE_CHECKING:
    from wbengine._cli.context import Context

__all__ = ["from_settings"]


def from_settings(context: Context, engine: str) -> dict[str, Any]:
    """Return the settings that are options of this kind of engine.

    If the engine uses a broker, this function also checks that the broker is reachable.

    :raises Failed: if there is no such kind of engine.
    :raises TransportFailure: if the broker is not reachable.
    """
    from wbengine._configuration import plugins
    from wbengine.engines import _engine_choice

    settings = context.settings
    with errors.failing(errors.USAGE, exceptions.NotFound, where="--engine"):
        engine_class = plugins.find(_engine_choice.ENGINES_NAMESPACE, engine.partition(":")[0])
    known_options = engine_class.known_options() if hasattr(engine_class, "known_options") else ()
    values = {
        "url": settings.url,
        "exchange": settings.exchange,
        "transport": settings.transport,
        "transport_options": dict(settings.transport_options) or None,
        "ledger": settings.ledger,
        "keys": settings.keys,
    }
    query_options = dict(urllib.parse.parse_qsl(engine.partition("?")[2]))
    options = {
        name: value
        for name, value in values.items()
        if name in known_options and value is not None and name not in query_options
    }
    if "keys" in options:
        fleets.keys(settings)
    if "url" in known_options:
        fleets.check(settings, {**options, **query_options})
    return options
