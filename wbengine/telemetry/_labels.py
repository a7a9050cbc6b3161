"""Values of labels. Their number is limited."""

from __future__ import annotations

import re
import threading
from typing import Any, Final

from wbengine import task as task_module
from wbengine._introspection import object_names
from wbengine.persistence import models
from wbengine.persistence._step_notes import StepNote

__all__ = ["OTHER", "Bounded", "of_step", "of_task", "of_topic", "of_worker", "text"]

#: The value for all further values of a label that has its maximum number of values.
OTHER: Final = "other"

#: Maximum number of characters.
_MAX_CHARS: Final = 120

_UUID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}", re.IGNORECASE
)

#: The end of the name of a queue, except queues of TaskFlow's workers.
_DIGEST: Final = re.compile(r"\.[0-9a-f]{12}\Z")


class Bounded:
    """Limits a label to its first `maximum` values, and replaces others by `OTHER`. Thread-safe.

    A uuid within a value becomes `*`, and long values are shortened, because a name that is
    generated for each flow must not become a separate series.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._values: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, value: str) -> str:
        if value in self._values:  # Values in the set are short and contain no uuid.
            return value
        value = text(_UUID.sub("*", value)[:_MAX_CHARS])
        if value in self._values:
            return value
        with self._lock:
            if len(self._values) >= self._maximum and value not in self._values:
                return OTHER
            self._values.add(value)
        return value


def text(value: str) -> str:
    """Return `value` with lone surrogates replaced: one of them would invalidate the export."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def of_task(task: Any) -> str:
    """Return the label of a task: the dotted name of its class or function.

    The label of a `Map` also contains that of its inner task. The names of tasks in flows are not
    used as labels, because each flow may have different ones.
    """
    if isinstance(task, task_module.Map):
        return f"{object_names.dotted(type(task))}({of_task(task.inner)})"
    function = getattr(task, "_execute", None) or getattr(task, "_functor", None)
    return object_names.dotted(type(task) if function is None else function)


def of_step(flow: models.FlowDetail, uuid: str) -> str:
    """Return the label of a step of a workflow: that of its task."""
    record = flow.find(uuid)
    note = None if record is None else StepNote.of(record)
    return OTHER if note is None else note.task.replace(":", ".")


def of_topic(queue: str | None) -> str:
    """Return the topic of a queue: its name without the digest at the end."""
    return "" if queue is None else _DIGEST.sub("", queue)


def of_worker(identity: str) -> str:
    """Return the label of a worker: host and process, without the random part."""
    return identity.rpartition("-")[0] or identity
