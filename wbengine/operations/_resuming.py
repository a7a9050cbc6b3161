"""Engines for new flows and for stored ones, and previews of what these would run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wbengine import engines, exceptions, states
from wbengine._introspection import object_names
from wbengine.engines import _flow_factories, _ownership
from wbengine.persistence import _commands, _living_forks, _result_users, base, models
from wbengine.persistence.models import ENGINE
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine._runtime.undo_plan import UndoPlan
    from wbengine.engines import base as engines_base
    from wbengine.persistence._edits import Edits

__all__ = ["Plan", "kind", "plan", "plan_undo", "resume", "retry", "revert", "start"]

RESUME: Final = _commands.RESUME
RETRY: Final = _commands.RETRY
REVERT: Final = _commands.REVERT

_WITH_EFFECTS: Final = (
    states.RUNNING,
    states.SUCCESS,
    states.FAILURE,
    states.REVERTING,
    states.RETRYING,
)
#: Failed reversions run again.
_REVERTIBLE: Final = (*_WITH_EFFECTS, states.REVERT_FAILURE)
_SETTLED_STATES: Final = (states.SUCCESS, states.IGNORE)


def start(
    backend: base.Backend,
    path: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    engine: str = "serial",
    uuid: str | None = None,
    book: str | None = None,
    **options: Any,
) -> engines_base.Engine:
    """Make the flow at `path` (see `engines._flow_factories.flow_of`), store it, and load it.

    The factory is recorded, so that `resume` can make the flow again.

    :param arguments: arguments of the function at `path`.
    :param uuid: uuid of the new flow; random by default.
    :param book: name of its logbook; by default that of the flow.
    :param options: further arguments of `engines.load`: `name`, `tags`, `undo_until` and engine
        options.
    :raises Duplicate: if a flow with this uuid exists.
    :raises MissingDependencies: if inputs are missing; nothing is stored then.
    """
    factory: tuple[str, Any] = _flow_factories.FLOW_OF, [path]
    if arguments is not None:
        find = object_names.load("wbengine.engines._submission:importable_factory")
        factory = find(path, None, arguments)
    return engines.load_from_factory(
        *factory,
        arguments,
        store=store,
        book=None if book is None else models.LogBook(book),
        backend=backend,
        engine=engine,
        uuid=uuid,
        require_inputs=True,
        **options,
    )


def resume(
    backend: base.Backend, uuid: str, *, engine: str | None = None, **options: Any
) -> engines_base.Engine:
    """Return an engine that continues a flow when its `run` is called.

    :param engine: kind of engine, or a URI; None: the kind that ran it before, with its broker.
    :raises NotFound: if the flow does not exist.
    :raises InvalidState: if it has ended, or `engine` is None and its broker was another one. `run`
        raises it too, if another engine ended the flow meanwhile.
    :raises ValueError: if its factory is not recorded.
    :raises ImportError: if the factory cannot be imported here.
    """
    return _load_engine(backend, uuid, RESUME, engine, options)


def retry(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    edits: Edits | None = None,
    engine: str | None = None,
    **options: Any,
) -> engines_base.Engine:
    """Return an engine that runs failed atoms again when its `run` is called.

    For a flow in FAILURE or SUSPENDED, these are the failed atoms, whose failures are deleted now,
    and their successors; for a reverted flow, all atoms.

    :param reason: reason and sender, for the history of the flow.
    :param edits: inputs and results to replace. They are stored now.
    :raises NotFound: if `edits` contains an unknown input or task.
    :raises InvalidState: if a complete task or a recorded step has used a value of `edits`.
    :raises InvalidState: if nothing failed, or part of the flow was reverted or is to be. `run`
        raises it too, if another engine ended the flow meanwhile.
    :raises FlowBusy: if an engine runs it.
    :raises Exception: as `resume`.
    """
    loaded = _load_engine(backend, uuid, RETRY, engine, options)
    if edits:
        loaded.check_edits(edits)
    # A reverted flow starts from the beginning anyway.
    if edits or reason or loaded.storage.get_flow_state() != states.REVERTED:
        loaded.prepare()
        loaded.check_state = functools.partial(_check, backend, uuid, RESUME)
        loaded.reset(failed_only=True, edits=edits, reason=reason)
    return loaded


def revert(
    backend: base.Backend,
    uuid: str,
    *,
    reason: str | None = None,
    partial: bool = False,
    engine: str | None = None,
    **options: Any,
) -> engines_base.Engine:
    """Return an engine that reverts a flow that no engine runs, when its `run` is called.

    `run` raises `Cancelled` with the reason, or the earlier failure of the flow; after SUCCESS, it
    raises nothing if all is reverted. Reversions that failed run again. If the flow has ended, the
    request is stored now: `resume` continues it.

    :param partial: revert a complete flow although it has complete tasks that are `irreversible`.
    :raises InvalidState: if the flow was reverted already, or cannot be undone (see `partial`).
        `run` raises it too, if another engine ended the flow meanwhile.
    :raises Exception: as `resume`.
    """
    loaded = _load_engine(backend, uuid, REVERT, engine, options)
    if loaded.storage.get_flow_state() in states.FLOW_ENDED:
        loaded.prepare()
        loaded.revert(reason=reason, partial=partial)
        loaded.check_state = None
        return loaded

    def undo(state: str, details: Any) -> None:
        loaded.cancel(reason=reason)

    loaded.check_state = functools.partial(_check_unfinished, uuid)
    # At the start of the run: a cancelled run starts nothing.
    loaded.notifier.register(states.RUNNING, undo)
    return loaded


class Plan(NamedTuple):
    """Names of atoms that would run, and that would be reverted, in the order of the flow.

    Failures, decisions of retries and atoms that deciders ignore are not predicted.
    """

    run: tuple[str, ...]
    revert: tuple[str, ...]


def plan(backend: base.Backend, uuid: str, operation: str) -> Plan:
    """Return what `resume`, `retry` or `revert` would do according to the records of the flow.

    :raises NotFound: if the flow does not exist.
    :raises InvalidState: if the state of the flow does not allow the operation.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        detail = engines.read_flow_detail(connection, uuid)
        outline = connection.get_outline(uuid)
    _check(backend, uuid, operation, detail.state)
    atoms = [atom for atom in detail if atom.name != models.INJECTOR and not atom.is_step]
    names = [node.name for node in outline.nodes if node.kind != "flow"] if outline else []
    order = {name: index for index, name in enumerate(names)}
    atoms.sort(key=lambda atom: order.get(atom.name, len(order)))
    recorded = {atom.name for atom in atoms}
    new_names = [name for name in names if name not in recorded]
    if operation == REVERT:
        return Plan((), _visible_names(atom for atom in atoms if atom.state in _REVERTIBLE))
    if operation == RETRY and detail.state == states.REVERTED:
        return Plan((*_visible_names(atoms), *new_names), ())
    if operation == RESUME and _has_nothing_to_revert(detail, atoms):
        return Plan((), ())
    tried_again = {
        atom.meta_value(models.OF_TASK) for atom in atoms if atom.state == states.RETRYING
    }
    if operation == RESUME and any(
        _causes_revert(atom) for atom in atoms if atom.name not in tried_again
    ):
        return Plan((), _visible_names(atom for atom in atoms if atom.state in _WITH_EFFECTS))
    return Plan(
        (*_visible_names(atom for atom in atoms if atom.state not in _SETTLED_STATES), *new_names),
        (),
    )


def plan_undo(backend: base.Backend, uuid: str) -> UndoPlan:
    """Return what `revert` of a complete flow would undo, according to its records and code.

    It contains the unfinished flows that use results of the flow.

    :raises InvalidState: if the flow is not in SUCCESS.
    :raises Exception: as `resume`.
    """
    with contextlib.closing(backend.get_connection()) as connection:
        detail = engines.read_flow_detail(connection, uuid)
        users = _result_users.users(connection, detail)
    if detail.state != states.SUCCESS:
        raise exceptions.InvalidState(f"Flow {uuid} must be in SUCCESS, got {detail.state}")
    loaded = engines.load_from_detail(detail, backend=backend)
    loaded.compile()
    return loaded.plan_undo()._replace(used_by=users)


def _check(backend: base.Backend, uuid: str, operation: str, state: str | None) -> None:
    reason = _commands.refusal(operation, uuid, state)
    if reason is None:
        with contextlib.closing(backend.get_connection()) as connection:
            with codec.unknown_classes_as_text():
                detail = connection.get_flow_details(uuid, lazy=True)
            reason = _living_forks.refusal(connection, detail, operation)
    if reason is not None:
        raise _ownership.StateRefused(reason)


def _check_unfinished(uuid: str, state: str | None) -> None:
    if state in states.FLOW_ENDED:
        raise _ownership.StateRefused(f"Flow {uuid} has ended in {state} meanwhile")


def _causes_revert(atom: models.AtomDetail) -> bool:
    return atom.intention == states.REVERT or atom.state in (states.FAILURE, states.REVERTING)


def _has_nothing_to_revert(detail: models.FlowDetail, atoms: Iterable[models.AtomDetail]) -> bool:
    ended = (*_SETTLED_STATES, states.PENDING, states.REVERTED)
    return detail.state == states.FAILURE and all(atom.state in ended for atom in atoms)


def _visible_names(atoms: Iterable[models.AtomDetail]) -> tuple[str, ...]:
    return tuple(atom.name for atom in atoms if atom.meta_value(models.OF_TASK) is None)


def kind(backend: base.Backend, uuid: str) -> str:
    """Return the kind of engine that last ran a flow, according to its records."""
    with contextlib.closing(backend.get_connection()) as connection:
        return _kind(connection.get_flow_details(uuid, lazy=True))


def _kind(detail: models.FlowDetail) -> str:
    recorded = detail.meta.get(ENGINE) if detail.has_meta else None
    # Never a URI: a record must not decide to which broker inputs are sent.
    return recorded.partition(":")[0] if isinstance(recorded, str) else "serial"


def _load_engine(
    backend: base.Backend, uuid: str, operation: str, engine: str | None, options: dict[str, Any]
) -> engines_base.Engine:
    """Load a flow for an operation; the engine checks the state again when it has the lease."""
    with contextlib.closing(backend.get_connection()) as connection:
        detail = engines.read_flow_detail(connection, uuid)
    _check(backend, uuid, operation, detail.state)
    loaded = engines.load_from_detail(
        detail, backend=backend, engine=engine or _kind(detail), **options
    )
    previous = getattr(loaded, "previous_broker", None)
    if engine is None and previous is not None:
        raise exceptions.InvalidState(
            f"Flow {uuid} last ran with the broker {previous}: use this broker, or name the engine"
            f" ({_kind(detail)}) to use another one"
        )
    loaded.check_state = functools.partial(_check, backend, uuid, operation)
    return loaded
