"""Which atoms of a flow somebody means, by object, name or class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wbengine import _names, atom, composite_executor, exceptions, flow, task
from wbengine.runtime import plan as plans

__all__ = ["local_tasks", "nodes_of"]


def nodes_of(plan: plans.Plan, chosen: Iterable[Any]) -> frozenset[int]:
    """The nodes of tasks and retries: those given, and those inside the flows and retries given.

    Each is an atom, a flow, or the name of one.

    :raises NotFound: the flow has no such thing; the text names the nearest.
    :raises TypeError: it is none of these.
    """
    found: set[int] = set()
    for one in chosen:
        found.update(_nodes_of(plan, one))
    return frozenset(found)


def _nodes_of(plan: plans.Plan, one: Any) -> Iterable[int]:
    if not isinstance(one, str | atom.Atom | flow.Flow):
        raise TypeError(f"What is chosen is a task, a retry, a flow, or its name, not {one!r:.80}")
    name = one if isinstance(one, str) else one.name
    if not isinstance(one, flow.Flow) and name in plan.by_name:
        node = plan.by_name[name]
        return _atoms(plan, plan.scope(node)) if plan.kinds[node] == plans.RETRY else (node,)
    starts = [n for n in plan.end if plan.items[n] is one]
    starts = starts or [n for n in plan.end if plan.names[n] == name]
    if isinstance(one, atom.Atom) or not starts:
        known = {*plan.by_name, *(plan.names[n] for n in plan.end)}
        raise exceptions.NotFound(
            f"Flow {plan.names[0]!r} has no {name!r}{_names.hint(name, known)}"
        )
    return [node for n in starts for node in _atoms(plan, range(n, plan.end[n]))]


def _atoms(plan: plans.Plan, nodes: range) -> Iterator[int]:
    return (node for node in nodes if plan.is_atom(node))


def local_tasks(plan: plans.Plan, chosen: Any) -> composite_executor.LocalTasks | None:
    """Which tasks stay in the engine's process: those of the option `local_tasks`, and those that
    are marked.  None: no task of the flow.

    Each is a name, a class, or the dotted name of one; in one text, they are separated by commas.

    :raises ValueError: a text is none of these in the flow; names the nearest.
    :raises TypeError: it is something else.
    """
    if chosen is None:
        return composite_executor.LocalTasks() if any(item.local for item in _tasks(plan)) else None
    if isinstance(chosen, str):
        chosen = [name.strip() for name in chosen.split(",") if name.strip()]
    elif isinstance(chosen, type) or not isinstance(chosen, Iterable):
        chosen = [chosen]
    tasks = {item.name: item for item in _tasks(plan)}
    found: set[str] = set()
    for one in chosen:
        found.update(_named(tasks, one))
    marked = any(item.local for item in tasks.values())
    return composite_executor.LocalTasks(found) if found or marked else None


def _tasks(plan: plans.Plan) -> Iterator[Any]:
    pairs = zip(plan.kinds, plan.items, strict=True)
    return (item for kind, item in pairs if kind == plans.TASK)


def _named(tasks: dict[str, Any], one: Any) -> Iterable[str]:
    if isinstance(one, type) and issubclass(one, task.Task):
        return [name for name, item in tasks.items() if one in _classes(item)]
    if not isinstance(one, str):
        raise TypeError(f"Option local_tasks takes names and classes of tasks, not {one!r:.80}")
    if one in tasks:
        return (one,)
    wanted = one.replace(":", ".")
    found = [name for name, item in tasks.items() if wanted in map(_names.dotted, _classes(item))]
    if not found:
        known = {*tasks, *(_names.dotted(type(item)) for item in tasks.values())}
        raise ValueError(
            f"Option local_tasks names {one!r}, which is no task of the flow, nor the class of"
            f" one{_names.hint(one, known)}"
        )
    return found


def _classes(item: task.Task) -> Iterator[type]:
    """What a task is an instance of; a Map is also what its items are."""
    yield from type(item).__mro__
    if isinstance(item, task.Map):
        yield from type(item.inner).__mro__
