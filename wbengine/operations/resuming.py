"""Kept flows that are ready to be run: new ones, those to go on with, and what that would do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import engines, exceptions, states
from wbengine.engines import factories
from wbengine.persistence import base, models
from wbengine.persistence.models import ENGINE

if TYPE_CHECKING:
    from wbengine.engines import base as engines_base

__all__ = ["Plan", "kind", "plan", "resume", "retry", "revert", "start"]

RESUME: Final = "resume"
RETRY: Final = "retry"
REVERT: Final = "revert"

#: Atoms in these have done something that can be undone.
_DONE: Final = (states.RUNNING, states.SUCCESS, states.FAILURE, states.REVERTING, states.RETRYING)
#: These are what `revert` undoes: what could not be undone is tried again.
_UNDONE_BY_REVERT: Final = (*_DONE, states.REVERT_FAILURE)
#: In these, they are not run again.
_SETTLED: Final = (states.SUCCESS, states.IGNORE)


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
    :param options: others of `engines.load`: its `name` and `tags`, and those of the engine.
    :raises Duplicate: there is a flow with this uuid.
    """
    return engines.load_from_factory(
        factories.FLOW_OF,
        [path],
        store=store,
        book=None if book is None else models.LogBook(book),
        backend=backend,
        engine=engine,
        uuid=uuid,
        **options,
    )


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
    _check(detail, RESUME)
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
    _check(detail, RETRY)
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
    _check(detail, REVERT)
    loaded = _loaded(backend, detail, engine, options)

    def undo(state: str, details: Any) -> None:
        loaded.cancel(reason=reason)

    # When it begins: a run that is cancelled starts nothing.
    loaded.notifier.register(states.RUNNING, undo)
    return loaded


class Plan(NamedTuple):
    """The names of atoms that would run, and would be reverted, in the order of the flow.

    What fails, what retries decide, and what deciders ignore is not foreseen.
    """

    run: tuple[str, ...]
    revert: tuple[str, ...]


def plan(backend: base.Backend, uuid: str, operation: str) -> Plan:
    """What `resume`, `retry` or `revert` would do, by the flow's records.

    :raises NotFound: there is no such flow.
    :raises InvalidState: it cannot be done to a flow in this state.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(uuid)
        outline = connection.get_outline(uuid)
    _check(detail, operation)
    atoms = [atom for atom in detail if atom.name != models.INJECTOR]
    names = [node.name for node in outline.nodes if node.kind != "flow"] if outline else []
    order = {name: place for place, name in enumerate(names)}
    atoms.sort(key=lambda atom: order.get(atom.name, len(order)))
    recorded = {atom.name for atom in atoms}
    new = [name for name in names if name not in recorded]
    if operation == REVERT:
        return Plan((), _named(atom for atom in atoms if atom.state in _UNDONE_BY_REVERT))
    if operation == RETRY and detail.state == states.REVERTED:
        return Plan((*_named(atoms), *new), ())
    if operation == RESUME and _part_reverted(detail, atoms):
        return Plan((), ())
    if operation == RESUME and any(_fails(atom) for atom in atoms):
        return Plan((), _named(atom for atom in atoms if atom.state in _DONE))
    return Plan((*_named(atom for atom in atoms if atom.state not in _SETTLED), *new), ())


def _check(detail: models.FlowDetail, operation: str) -> None:
    """
    :raises InvalidState: it cannot be done to a flow in this state.
    """
    state = detail.state or states.PENDING
    if operation == RESUME and state in (states.SUCCESS, states.REVERTED):
        anew = "; retry runs it anew" if state == states.REVERTED else ""
        raise exceptions.InvalidState(f"Flow {detail.uuid} has come to its end: {state}{anew}")
    why = None
    if operation == RETRY and state not in (states.FAILURE, states.SUSPENDED, states.REVERTED):
        why = "there is nothing to run again"
    elif operation == REVERT and state == states.SUCCESS:
        why = "a flow that succeeded cannot be reverted"
    elif operation == REVERT and state in (states.REVERTED, states.PENDING):
        why = "there is nothing to revert"
    if why is not None:
        raise exceptions.InvalidState(f"Flow {detail.uuid} is in {state}: {why}")


def _fails(atom: models.AtomDetail) -> bool:
    """Whether it makes its flow be reverted."""
    return atom.intention == states.REVERT or atom.state in (states.FAILURE, states.REVERTING)


def _part_reverted(detail: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> bool:
    """Whether all is reverted that was to be, and something else is left done."""
    ended = (*_SETTLED, states.PENDING, states.REVERTED)
    return detail.state == states.FAILURE and all(atom.state in ended for atom in atoms)


def _named(atoms: Iterable[models.AtomDetail]) -> tuple[str, ...]:
    return tuple(atom.name for atom in atoms)


def kind(backend: base.Backend, uuid: str) -> str:
    """By which kind of engine a flow was last run, as far as its records say."""
    with contextlib.closing(backend.get_connection()) as connection:
        return _kind(connection.get_flow_details(uuid, lazy=True))


def _kind(detail: models.FlowDetail) -> str:
    noted = detail.meta.get(ENGINE) if detail.has_meta else None
    # A kind, and never a URI: records do not say which broker inputs are sent to.
    return noted.partition(":")[0] if isinstance(noted, str) else "serial"


def _detail(backend: base.Backend, uuid: str) -> models.FlowDetail:
    with contextlib.closing(backend.get_connection()) as connection:
        return connection.get_flow_details(uuid)


def _loaded(
    backend: base.Backend, detail: models.FlowDetail, engine: str | None, options: dict[str, Any]
) -> engines_base.Engine:
    return engines.load_from_detail(
        detail, backend=backend, engine=engine or _kind(detail), **options
    )
