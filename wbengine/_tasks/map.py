"""A task that runs another task for each item of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from wbengine import atom
from wbengine._introspection import object_names
from wbengine._tasks.base import Task
from wbengine._tasks.sleep_and_wait_for import WaitingTask

#: Behaviour of a `Map` after the failure of an item.
OnItemFailure = Literal["fail", "collect"]

FAIL: Final = "fail"
COLLECT: Final = "collect"

#: Maximum length of the name of a Map. The names of its items have an index as suffix.
_MAX_NAME_LENGTH: Final = object_names.MAX_NAME_LENGTH - len("[2147483647]")


class Map(Task):
    """Runs `inner` once for each item of a list that the flow provides; the result is a list.

    ::

        flow.add(List(provides='files'), task.Map(Resize(), over='files', item='file',
                                                  provides='thumbnails', max_in_flight=8))

    A Map is one atom, with one record. Its items run as tasks named `name[index]`, many at a time.
    Each item has its own record (`persistence.models.ItemDetail`). The list is fixed when an
    attempt begins. A resumed flow continues with the unfinished items.

    A revert of the Map reverts all finished items, latest first: `inner.revert` receives the result
    of the item (a `Failure` if it failed). If the revert of an item fails, the revert of the Map
    ends.

    All other arguments of `inner` are bound, injected and required as if it were in the flow. The
    Map adopts its `retries`, `backoff`, `retry_on` and `retry_for` (they apply to the whole list),
    `priority`, `local`, `idempotent`, `detached`, `version`, `irreversible` and `cancel_on_revert`
    (a failure that ends the Map then also cancels the other items). It ignores its `provides`. The
    listeners of `inner` receive the events of all items. The progress of the Map is the fraction of
    finished
    items.

    :param inner: a task. The flow may also contain it directly.
    :param over: stored name of the items: any iterable except mappings and strings. An iterator is
        stored as a list first.
    :param item: the parameter of `inner` that receives the item.
    :param provides: as for other tasks: a string names the list of results, in the order of the
        items; a list or tuple names its members by position.
    :param name: default: the name of `inner`.
    :param max_in_flight: maximum number of items that run or are queued; None: all.
    :param on_item_failure: 'fail': after a failure no further item starts. When the started items
        have ended, the Map fails with the first failure. 'collect': the result of a failed item is
        its `Failure`, and the Map succeeds.
    :raises TypeError: if `inner` is a `Map`, a class or not a task, or `over` or `item` is not a
        string.
    :raises ValueError: if `inner` does not accept `item` or requires the list itself,
        `on_item_failure` is unknown, or `max_in_flight` is not a positive number.
    """

    __module__ = "wbengine.task"

    fans_out = True

    def __init__(
        self,
        inner: Task,
        over: str = "items",
        item: str = "item",
        provides: atom.Provides | None = None,
        name: str | None = None,
        max_in_flight: int | None = None,
        on_item_failure: OnItemFailure = "fail",
    ) -> None:
        _check_inner(inner)
        _check_names(inner, over, item)
        self.inner = inner
        self.over = over
        self.item = item
        self.max_in_flight = _limit(max_in_flight)
        self.on_item_failure = _policy(on_item_failure)
        self.retries = inner.retries
        self.backoff = inner.backoff
        self.retry_on = inner.retry_on
        self.retry_for = inner.retry_for
        self.priority = inner.priority
        self.local = inner.local
        self.rate_limit = inner.rate_limit
        self.concurrency = inner.concurrency
        self.idempotent = inner.idempotent
        self.cancel_on_revert = inner.cancel_on_revert
        self.irreversible = inner.irreversible
        self.detached = inner.detached
        self.version = inner.version
        super().__init__(
            inner.name if name is None else name, provides, inject=inner.inject, auto_extract=False
        )
        object_names.check_length("The name of a Map", self.name, _MAX_NAME_LENGTH)
        self._bind()

    def _bind(self) -> None:
        """Require the arguments of `inner`, with the list in place of the item."""
        inner = self.inner
        forward = {to: stored for to, stored in inner.rebind.items() if to != self.item}
        back = {to: stored for to, stored in inner.revert_rebind.items() if to != self.item}
        names = {*forward.values(), *back.values()}
        self.rebind = {self.over: self.over, **forward}
        self.revert_rebind = back
        self.optional = inner.optional.intersection(forward.values())
        self.revert_optional = inner.revert_optional.intersection(back.values())
        self.revert_requires = inner.revert_requires.intersection(back.values())
        self.requires = inner.requires & names | {self.over}.difference(inner.inject or ())

    @property
    def collects(self) -> bool:
        """Whether the other items continue after the failure of an item."""
        return self.on_item_failure == COLLECT

    def listed(self, values: Any) -> list[Any]:
        """Return the items of the value stored under `over`.

        :raises TypeError: if the value is a mapping, a string or not iterable.
        """
        if not isinstance(values, _REFUSED):
            try:
                iterator = iter(values)
            except TypeError:
                pass
            else:
                return list(iterator)
        raise TypeError(
            f"{self.over!r}, the list of Map {self.name!r}, must be a list or another"
            f" iterable, not a mapping or a string, got {object_names.dotted(type(values))}"
        )

    def of_item(self, index: int) -> Task:
        """Return the task of one item: a copy of `inner` with its own name."""
        item_task = self.inner.copy()
        item_task.name = f"{self.name}[{index}]"
        return item_task

    def takes_item(self, action: str) -> bool:
        """Return True if the function for `action` accepts the item. A `revert` may not."""
        if action == "execute":
            return True
        inner = self.inner
        return self.item in inner.revert_rebind or inner._signatures()[1].takes(self.item)

    def _home(self) -> str:
        return self.inner._home()

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an exception, because engines run the items instead."""
        raise NotImplementedError(
            f"execute of Map {self.name!r} is never called: the engine runs the inner task for"
            " each item"
        )


_REFUSED: Final = (Mapping, str, bytes, bytearray, memoryview)


def _check_inner(inner: Any) -> None:
    if isinstance(inner, type) and issubclass(inner, Task):
        raise TypeError(
            f"Map requires a task, got the class {object_names.dotted(inner)}: did you mean"
            f" {inner.__name__}()?"
        )
    if isinstance(inner, Map):
        raise TypeError(
            f"Map requires a plain task, got another Map ({inner.name!r}): provide one"
            " flat list of items instead"
        )
    if isinstance(inner, WaitingTask):
        raise TypeError(
            f"Map cannot run {inner.name!r} for each item: a flow receives each signal only once,"
            " and sleeping once is enough"
        )
    if not isinstance(inner, Task):
        type_name = object_names.dotted(type(inner))
        if isinstance(inner, atom.Atom):
            raise TypeError(f"Map requires a task, got {type_name} {inner.name!r}")
        raise TypeError(
            f"Map requires a task, got {inner!r} of type {type_name}"
            + (": decorate the function with task.task" if callable(inner) else "")
        )


def _check_names(inner: Task, over: Any, item: Any) -> None:
    for option, name in (("over", over), ("item", item)):
        if not isinstance(name, str):
            raise TypeError(f"{option} must be a str, got {name!r}")
        object_names.check_length(f"The {option} of a Map", name)
    signature = inner._signatures()[0]
    if item not in inner.rebind and not signature.takes(item):
        parameters = [*inner.rebind, *signature.required, *signature.optional]
        raise ValueError(
            f"Task {inner.name!r} has no argument {item!r} for the items of its"
            f" Map{object_names.hint(item, parameters)}; its arguments:"
            f" {', '.join(dict.fromkeys(parameters)) or 'none'}"
        )
    other_rebinds = {to: stored for to, stored in inner.rebind.items() if to != item}
    other_rebinds.update((to, stored) for to, stored in inner.revert_rebind.items() if to != item)
    if over == item or over in other_rebinds or over in other_rebinds.values():
        conflicting_parameter = (
            item
            if over == item
            else next(to for to, st in other_rebinds.items() if over in (to, st))
        )
        raise ValueError(
            f"The list {over!r} of a Map clashes with argument {conflicting_parameter!r} of task"
            f" {inner.name!r}"
            + (
                ": use different names for the list and the item"
                if over == item
                else ", which would receive the whole list for each item: rename one of them"
            )
        )


def _limit(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(
            f"max_in_flight must be a whole number of at least 1, or None, got {value!r}"
        )
    return value


def _policy(value: Any) -> OnItemFailure:
    if value in (FAIL, COLLECT):
        return cast(OnItemFailure, value)
    near = object_names.hint(value, (FAIL, COLLECT)) if isinstance(value, str) else ""
    raise ValueError(f"on_item_failure must be 'fail' or 'collect', got {value!r}{near}")
