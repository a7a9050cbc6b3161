"""Where a signature ends: which call's result is its result, and counts for the chord it is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wbengine.interop.celery.canvas.signature import CHAIN, CHORD, GROUP, Signature, deeper

__all__ = ["Ids", "ends", "placed", "told", "weight"]

#: Makes a new id.
Ids = Callable[[], str]


def placed(
    signature: Signature,
    new_id: Ids,
    id: str | None = None,
    options: Mapping[str, Any] | None = None,
    depth: int = 0,
) -> Signature:
    """`signature`, with ids, and these options, for the calls that end it.

    A chain ends with its last task, a chord with its body, a group with all of its members.  Ids
    and groups that are there stay.

    :raises Malformed: it is too deep, or what it is built of is no signature.
    """
    depth = deeper(depth)
    options = options or {}
    if signature.kind == CHAIN:
        tasks = signature.tasks
        if not tasks:
            return signature
        last = placed(tasks[-1], new_id, id, options, depth)
        return signature.built_of([*tasks[:-1], last])
    if signature.kind == CHORD and (body := signature.body) is not None:
        return signature.ending_with(placed(body, new_id, id, options, depth))
    own = signature.options
    if signature.kind == GROUP:
        indexed = options.get("group_id") is not None
        members = [
            placed(one, new_id, None, {**options, "group_index": at} if indexed else options, depth)
            for at, one in enumerate(signature.tasks)
        ]
        return signature.built_of(members).having(task_id=own.get("task_id") or id or new_id())
    if own.get("group_id"):
        options = {**options, "group_id": None}
    return signature.having(**{**options, "task_id": own.get("task_id") or id or new_id()})


def told(signature: Signature, depth: int = 0) -> Any:
    """What tells the result of a signature that is `placed`: `((id, None), None)`, and of a group
    what tells those of its members, too.

    :raises Malformed: as `placed`.
    """
    depth = deeper(depth)
    if signature.kind == CHAIN and (tasks := signature.tasks):
        return told(tasks[-1], depth)
    if signature.kind == CHORD and (body := signature.body) is not None:
        return told(body, depth)
    id = signature.options.get("task_id")
    if signature.kind == GROUP:
        return (id, None), [told(one, depth) for one in signature.tasks]
    return (id, None), None


def ends(signature: Signature, depth: int = 0) -> tuple[str, ...]:
    """The ids of the calls that end a signature; none, unless all of them have one.

    :raises Malformed: as `placed`.
    """
    depth = deeper(depth)
    if signature.kind == CHAIN and (tasks := signature.tasks):
        return ends(tasks[-1], depth)
    if signature.kind == CHORD and (body := signature.body) is not None:
        return ends(body, depth)
    if signature.kind == GROUP:
        found = [ends(one, depth) for one in signature.tasks]
        return tuple(id for ids in found for id in ids) if all(found) else ()
    id = signature.options.get("task_id")
    return (id,) if isinstance(id, str) else ()


def weight(signature: Signature, depth: int = 0) -> int:
    """How many parts a signature counts for in the chord it is in: the calls that end it.

    :raises Malformed: as `placed`.
    """
    depth = deeper(depth)
    if signature.kind == GROUP:
        return sum(weight(one, depth) for one in signature.tasks)
    if signature.kind == CHAIN:
        return next((n for one in reversed(signature.tasks) if (n := weight(one, depth))), 0)
    if signature.kind == CHORD and (body := signature.body) is not None:
        return weight(body, depth)
    return 1
