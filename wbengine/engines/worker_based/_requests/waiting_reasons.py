"""Explanations for users why a request waits."""

from __future__ import annotations

from typing import Final

from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery.finder import ProxyWorkerFinder
from wbengine.engines.worker_based._requests.request_state import TrackedRequest

#: Maximum number of names in an error message.
_MAX_NAMED: Final = 8


def why_waiting(tracked: TrackedRequest, finder: ProxyWorkerFinder, now: float) -> str:
    name, waited = tracked.invocation.task.name, now - tracked.since
    why = _why_no_worker(finder, tracked.task_cls)
    if tracked.queue is not None and tracked.state == pr.PENDING:
        why = f"the workers of {tracked.queue!r} offer it, but none has started it"
    return f"task {name!r} has waited {waited:.1f} s: {why}"


def _why_no_worker(finder: ProxyWorkerFinder, task_cls: str) -> str:
    tasks, topics = finder.tasks(), finder.topics()
    if not topics:
        topic_list = ", ".join(map(repr, finder.topic_patterns))
        where = f"on {topic_list} (other topics are ignored)" if topic_list else "on any topic"
        return f"no worker is known {where}, so none offers {task_cls}"
    return (
        f"no worker offers {task_cls}{object_names.hint(task_cls, tasks)};"
        f" known topics: {_shown_names(topics)}; known tasks: {_shown_names(tasks)}"
    )


def _shown_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (", ".join(names[:_MAX_NAMED]) or "none") + more
