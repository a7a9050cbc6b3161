"""Selection of atoms of a flow by object, name or class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wbengine import atom, exceptions, flow, task
from wbengine._introspection import object_names
from wbengine._runtime import plan as plans
from wbengine._runtime.executors import composite

__all__ = ["local_tasks", "nodes_of", "transactions"]


def nodes_of(plan: plans.Plan, chosen: Iterable[Any]) -> frozenset[int]:
    """Return the nodes of the chosen atoms (or their names), and of those inside chosen flows.

    A chosen retry includes the atoms of its flow.

    :raises NotFound: if the flow has no such element; the text suggests a name.
    :raises TypeError: if an element has another type.
    """
    nodes: set[int] = set()
    for element in chosen:
        nodes.update(_nodes_of(plan, element))
    return frozenset(nodes)


def _nodes_of(plan: plans.Plan, element: Any) -> Iterable[int]:
    if not isinstance(element, str | atom.Atom | flow.Flow):
        raise TypeError(f"atoms must be tasks, retries, flows or their names, got {element!r:.80}")
    name = element if isinstance(element, str) else element.name
    if not isinstance(element, flow.Flow) and name in plan.by_name:
        node = plan.by_name[name]
        return _atoms(plan, plan.scope(node)) if plan.kinds[node] == plans.RETRY else (node,)
    starts = [n for n in plan.end if plan.items[n] is element]
    starts = starts or [n for n in plan.end if plan.names[n] == name]
    if isinstance(element, atom.Atom) or not starts:
        names = {*plan.by_name, *(plan.names[n] for n in plan.end)}
        raise exceptions.NotFound(
            f"Flow {plan.names[0]!r} has no atom or flow {name!r}{object_names.hint(name, names)}"
        )
    return [node for n in starts for node in _atoms(plan, range(n, plan.end[n]))]


def _atoms(plan: plans.Plan, nodes: range) -> Iterator[int]:
    return (node for node in nodes if plan.is_atom(node))


def local_tasks(plan: plans.Plan, chosen: Any) -> composite.LocalTasks | None:
    """Return the tasks that run in the engine's process; None: no task of the flow.

    These are the tasks of the option `local_tasks` and those that are marked `local`. Each
    element is a name, a class, or the dotted name of a class; in one string, they are separated
    by commas.

    :raises ValueError: if a string does not match a task of the flow; the text suggests a name.
    :raises TypeError: if an element has another type.
    """
    if chosen is None:
        return composite.LocalTasks() if any(item.local for item in _tasks(plan)) else None
    if isinstance(chosen, str):
        chosen = [name.strip() for name in chosen.split(",") if name.strip()]
    elif isinstance(chosen, type) or not isinstance(chosen, Iterable):
        chosen = [chosen]
    tasks = {item.name: item for item in _tasks(plan)}
    names: set[str] = set()
    for element in chosen:
        names.update(_matching_tasks(tasks, element))
    marked = any(item.local for item in tasks.values())
    return composite.LocalTasks(names) if names or marked else None


def _tasks(plan: plans.Plan) -> Iterator[Any]:
    pairs = zip(plan.kinds, plan.items, strict=True)
    return (item for kind, item in pairs if kind == plans.TASK)


def transactions(
    plan: plans.Plan, *, in_process: bool, local: composite.LocalTasks | None
) -> dict[str, str]:
    """Return the databases of tasks that run in this process, each with the name of a task."""
    return {
        each.transaction: item.name
        for item in _tasks(plan)
        if (each := item.inner if item.fans_out else item).transaction is not None
        and (in_process or (local is not None and item in local))
    }


def _matching_tasks(tasks: dict[str, Any], element: Any) -> Iterable[str]:
    if isinstance(element, type) and issubclass(element, task.Task):
        return [name for name, item in tasks.items() if element in _classes(item)]
    if not isinstance(element, str):
        raise TypeError(f"local_tasks must be names or classes of tasks, got {element!r:.80}")
    if element in tasks:
        return (element,)
    dotted_name = element.replace(":", ".")
    matching_names = [
        name
        for name, item in tasks.items()
        if dotted_name in map(object_names.dotted, _classes(item))
    ]
    if not matching_names:
        candidates = {*tasks, *(object_names.dotted(type(item)) for item in tasks.values())}
        raise ValueError(
            "local_tasks must be names or classes of tasks of the flow, got"
            f" {element!r}{object_names.hint(element, candidates)}"
        )
    return matching_names


def _classes(item: task.Task) -> Iterator[type]:
    yield from type(item).__mro__
    if isinstance(item, task.Map):
        yield from type(item.inner).__mro__
