"""A new flow in a store, ready to be run, here or elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from wbengine import engines, exceptions
from wbengine.engines import base as engines_base
from wbengine.engines import loading
from wbengine.operations import factories
from wbengine.persistence import base, models
from wbengine.persistence.notes import ENGINE, MADE_BY

__all__ = ["kind_of", "start"]

_FACTORY: Final = "wbengine.operations.factories.flow_of"


def start(
    backend: base.Backend,
    path: str,
    *,
    store: Mapping[str, Any] | None = None,
    engine: str = "serial",
    uuid: str | None = None,
    book: str | None = None,
    **options: Any,
) -> engines_base.Engine:
    """Make the flow behind `path` (see `factories.flow_of`), keep it, and load it.

    The records say what made it, so that `resume` finds it again.

    :param store: what is there from the start.
    :param uuid: of the new flow; without one, a random one.
    :param book: name of its log book; without one, that of the flow.
    :raises Duplicate: there is a flow with this uuid.
    """
    flow = factories.flow_of(path)
    if uuid is not None:
        _check_free(backend, uuid)
    made = models.LogBook(book or f"{flow.name} book")
    detail = models.FlowDetail(flow.name, uuid)
    if book is None:
        made.meta[MADE_BY] = "wbengine.operations"
    detail.meta[ENGINE] = kind_of(engine)
    engines.save_factory_details(detail, _FACTORY, [path], None)
    return loading.load_new(flow, detail, made, backend, store=store, engine=engine, **options)


def kind_of(engine: str) -> str:
    """A kind of engine without its options, which may hold a password."""
    return engine.partition(":")[0]


def _check_free(backend: base.Backend, uuid: str) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            kept = connection.get_flow_details(uuid, lazy=True)
        except exceptions.NotFound:
            return
    raise exceptions.Duplicate(f"There is a flow {uuid} already: {kept.name!r}, {kept.state}")
