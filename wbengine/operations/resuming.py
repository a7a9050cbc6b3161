"""Going on with kept flows: engines that are ready to run them, one way or the other."""

from __future__ import annotations

import contextlib
from typing import Any

from wbengine import engines, exceptions, states
from wbengine.engines import base as engines_base
from wbengine.persistence import base, models
from wbengine.persistence.models import ENGINE

__all__ = ["kind", "resume", "retry", "revert"]


def resume(
    backend: base.Backend, uuid: str, *, engine: str | None = None, **options: Any
) -> engines_base.Engine:
    """An engine that goes on with a flow where it stopped; call its `run`.

    :param engine: kind of engine, or a URI; None: as it was run before.
    :raises NotFound: there is no such flow.
    :raises InvalidState: it has come to its end.
    :raises ValueError: its records do not say what made it.
    :raises ImportError: what made it cannot be imported here.
    """
    detail = _detail(backend, uuid)
    if detail.state in (states.SUCCESS, states.REVERTED):
        raise exceptions.InvalidState(
            f"Flow {uuid} has come to its end: {detail.state}"
            + ("; retry runs it anew" if detail.state == states.REVERTED else "")
        )
    return _loaded(backend, detail, engine, options)


def retry(
    backend: base.Backend, uuid: str, *, engine: str | None = None, **options: Any
) -> engines_base.Engine:
    """An engine that runs again what failed; call its `run`.

    Of a flow that was kept in FAILURE, or suspended, that is what failed and what comes after it;
    of one that was reverted everything.  What was kept in FAILURE is forgotten when this returns.

    :raises InvalidState: nothing failed, or part of the flow was or is to be reverted.
    :raises FlowBusy: somebody runs it.
    :raises Exception: as `resume`.
    """
    detail = _detail(backend, uuid)
    if detail.state not in (states.FAILURE, states.SUSPENDED, states.REVERTED):
        raise exceptions.InvalidState(
            f"Flow {uuid} is in {detail.state or states.PENDING}: there is nothing to run again"
        )
    loaded = _loaded(backend, detail, engine, options)
    if detail.state != states.REVERTED:  # such a flow starts anew by itself
        loaded.prepare()
        loaded.reset(failed_only=True)
    return loaded


def revert(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    engine: str | None = None,
    **options: Any,
) -> engines_base.Engine:
    """An engine that undoes what a flow did, that nobody runs; call its `run`, which raises
    `Cancelled` with the reason, or what the flow had failed with.

    What could not be reverted before is reverted again.

    :raises InvalidState: it came to a good end, or was reverted already.
    :raises Exception: as `resume`.
    """
    detail = _detail(backend, uuid)
    if detail.state == states.SUCCESS:
        raise exceptions.InvalidState(
            f"Flow {uuid} is in SUCCESS: a flow that succeeded cannot be reverted"
        )
    if detail.state in (states.REVERTED, None, states.PENDING):
        raise exceptions.InvalidState(
            f"Flow {uuid} is in {detail.state or states.PENDING}: there is nothing to revert"
        )
    loaded = _loaded(backend, detail, engine, options)

    def undo(state: str, details: Any) -> None:
        loaded.cancel(reason=reason)

    # When it begins: a run that is cancelled starts nothing.
    loaded.notifier.register(states.RUNNING, undo)
    return loaded


def kind(backend: base.Backend, uuid: str) -> str:
    """By which kind of engine a flow was last run, as far as its records say."""
    with contextlib.closing(backend.get_connection()) as connection:
        return _kind(connection.get_flow_details(uuid, lazy=True))


def _kind(detail: models.FlowDetail) -> str:
    noted = detail.meta.get(ENGINE) if detail.has_meta else None
    return noted if isinstance(noted, str) else "serial"


def _detail(backend: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def _loaded(
    backend: base.Backend, detail: models.FlowDetail, engine: str | None, options: dict[str, Any]
) -> engines_base.Engine:
    return engines.load_from_detail(
        detail, backend=backend, engine=engine or _kind(detail), **options
    )
