"""Values of labels: few of them, and none that is new each time."""

from __future__ import annotations

import re
import threading
from typing import Any, Final

from wbengine import _names
from wbengine import task as task_module

__all__ = ["OTHER", "Bounded", "of_task", "of_topic", "of_worker", "text"]

#: What stands for all values beyond those that a label may have.
OTHER: Final = "other"

#: Longer ones are cut.
_LONGEST: Final = 120

_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}", re.IGNORECASE
)

#: At the end of the names of queues, but for those of TaskFlow's workers.
_DIGEST: Final = re.compile(r"\.[0-9a-f]{12}\Z")


class Bounded:
    """Lets the first `most` values of a label pass, and calls all others `OTHER`.

    A uuid within a value becomes `*`, and what is too long is cut: names that are made anew for
    each flow must not become series of their own.  Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, value: str) -> str:
        if value in self._known:  # and so has no uuid, and is short
            return value
        value = text(_UUID.sub("*", value)[:_LONGEST])
        if value in self._known:
            return value
        with self._lock:
            if len(self._known) >= self._most and value not in self._known:
                return OTHER
            self._known.add(value)
        return value


def text(value: str) -> str:
    """The same, or what can be written of it: halves of characters would spoil all that goes out
    with it."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def of_task(task: Any) -> str:
    """The label of a task: the dotted name of its class, or of the function in it; of a `Map`, also
    of what it does with each item.

    Names that tasks have in a flow are as many as the flow has tasks.
    """
    if isinstance(task, task_module.Map):
        return f"{_names.dotted(type(task))}({of_task(task.inner)})"
    function = getattr(task, "_execute", None) or getattr(task, "_functor", None)
    return _names.dotted(type(task) if function is None else function)


def of_topic(queue: str | None) -> str:
    """The topic of a queue: its name without the digest at its end (see `describing`)."""
    return "" if queue is None else _DIGEST.sub("", queue)


def of_worker(identity: str) -> str:
    """The label of a worker: its host and its process, without what makes it unique for ever."""
    return identity.rpartition("-")[0] or identity
