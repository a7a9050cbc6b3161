"""A new flow in a store, ready to be run, here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine import engines
from wbengine.engines import base as engines_base
from wbengine.persistence import base, models

__all__ = ["start"]

_FACTORY: Final = "wbengine.engines.factories.flow_of"


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
    """Make the flow behind `path` (see `engines.factories.flow_of`), keep it, and load it.

    The records say what made it, so that `resume` finds it again.

    :param store: what is there from the start.
    :param uuid: of the new flow; without one, a random one.
    :param book: name of its log book; without one, that of the flow.
    :raises Duplicate: there is a flow with this uuid.
    """
    return engines.load_from_factory(
        _FACTORY,
        [path],
        store=store,
        book=None if book is None else models.LogBook(book),
        backend=backend,
        engine=engine,
        uuid=uuid,
        **options,
    )
