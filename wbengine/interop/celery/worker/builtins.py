"""Celery's own tasks that its clients send to any worker: `celery.map`, `.starmap`, `.accumulate`.

Its others are no tasks any more (`celery.group`, `celery.chain`, `celery.chord`: clients send the
members of them), or look after a result backend of Celery's (`celery.chord_unlock`,
`celery.backend_cleanup`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wbengine import task as task_module
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.interop.celery.worker import calls

if TYPE_CHECKING:
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.worker.mapping import Tasks

__all__ = ["NAMES", "Accumulate", "MapItems", "StarmapItems", "find"]


class Accumulate(task_module.Task):
    """The results of a group, or one of them: what a group that replaced a task ends in."""

    idempotent = True

    def execute(self, *args: Any, index: int | None = None, **kwargs: Any) -> Any:
        return args if index is None else args[index]


class MapItems(task_module.Task):
    """Calls another task with each item of a list, all of it in one call."""

    #: Whether items are arguments themselves, several for each call.
    star: ClassVar[bool] = False
    #: The task that is called, and its name.
    inner: endpoints.Endpoint
    inner_name: str

    def execute(self, task: Any, it: Iterable[Any]) -> Any:
        one = calls.make(self.inner, self.inner_name)
        if one.async_bodies:
            return self._await_all(one, it)
        return [one.execute(*self._arguments(item)) for item in it]

    async def _await_all(self, one: task_module.Task, it: Iterable[Any]) -> list[Any]:
        return [await one.execute(*self._arguments(item)) for item in it]

    def _arguments(self, item: Any) -> Iterable[Any]:
        return item if self.star else (item,)


class StarmapItems(MapItems):
    """As `MapItems`, of items that are lists of arguments."""

    star = True


class _Mapped(endpoints.Endpoint):
    """A task that calls another one; it pickles, like that."""

    def __init__(self, cls: type[MapItems], inner: endpoints.Endpoint, name: str) -> None:
        super().__init__(cls)
        self._inner = inner
        self._inner_name = name

    def generate(self, name: str | None = None) -> task_module.Task:
        made = super().generate(name)
        vars(made).update(inner=self._inner, inner_name=self._inner_name)
        return made


_ACCUMULATE: Final = endpoints.Endpoint(Accumulate)
_MAPS: Final[dict[str, type[MapItems]]] = {
    "celery.map": MapItems,
    "celery.starmap": StarmapItems,
}

#: The names under which they are called.
NAMES: Final = ("celery.accumulate", *_MAPS)


def find(message: TaskMessage, tasks: Tasks) -> endpoints.Endpoint | None:
    """What runs for a message that names one of these; None: it names another task, or is to map
    one that is not offered."""
    if message.task == NAMES[0]:
        return _ACCUMULATE
    cls = _MAPS.get(message.task)
    if cls is None:
        return None
    signature = message.args[0] if message.args else message.kwargs.get("task")
    name = signature.get("task") if isinstance(signature, Mapping) else None
    inner = tasks.find(name) if isinstance(name, str) else None
    return None if inner is None else _Mapped(cls, inner, str(name))
