"""Fan-out at run time: one task for each item of a list that is known only when it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from wbengine import _binding, _names, atom
from wbengine._tasks.base import Task
from wbengine._tasks.wait_for import WaitFor

#: What becomes of a `Map` when one of its items fails.
OnItemFailure = Literal["fail", "collect"]

FAIL: Final = "fail"
COLLECT: Final = "collect"


class Map(Task):
    """Runs `inner` once for each item of a list that the flow provides; the results are a list.

    ::

        flow.add(List(provides='files'), task.Map(Resize(), over='files', item='file',
                                                  provides='thumbnails', max_in_flight=8))

    It is one atom: one name, one record, one state.  Its items run wherever tasks run, as
    `name[index]`, many at a time; each has a record of its own (`persistence.models.ItemDetail`).
    The list is fixed when an attempt begins; a flow that was suspended, or whose engine died, goes
    on with the items that are missing.

    Reverting it reverts every item that finished, the latest first: `inner.revert` is given the
    item's own `result` (its `Failure` if it failed).  One that cannot be reverted stops that.

    What `inner` takes besides `item` is bound, injected and required as if it were in the flow
    itself, and so are its `retries`, `backoff` and `retry_on` (all of the list is tried again),
    `priority`, `local`, `idempotent`, `detached`, `cancel_on_revert` (which also ends the other
    items when one fails where that ends the Map) and `version`; its listeners hear of every item.
    What it would provide itself is not used.  `update_progress` tells the part of the items that
    are done.

    :param inner: a task; it may be in the flow as well.
    :param over: the stored name of the items: anything iterable but a mapping or a string (those
        make the atom fail with `TypeError`).  An iterator is stored as a list first.
    :param item: the parameter of `inner` that each item is given to.
    :param provides: as for any task: a string names the whole list of results, which is in the
        order of the items; a list or tuple its members by position.
    :param name: by default that of `inner`.
    :param max_in_flight: so many items run or are queued at a time; None: as many as there are.
    :param on_item_failure: 'fail': no further item starts, and when those under way have ended the
        atom fails with the first failure.  'collect': a failed item's `Failure` takes the place of
        its result, and the atom succeeds.
    :raises TypeError: `inner` is no task, a `Map`, or a class; `over` or `item` is no string.
    :raises ValueError: `inner` does not take `item`; it asks for the list itself, too; an unknown
        `on_item_failure`; `max_in_flight` is no number from 1.
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
        self.priority = inner.priority
        self.local = inner.local
        self.rate_limit = inner.rate_limit
        self.concurrency = inner.concurrency
        self.idempotent = inner.idempotent
        self.cancel_on_revert = inner.cancel_on_revert
        self.detached = inner.detached
        self.version = inner.version
        super().__init__(
            inner.name if name is None else name, provides, inject=inner.inject, auto_extract=False
        )
        self._bind()

    def _bind(self) -> None:
        """Ask for what `inner` asks for, but for the list in the place of the item."""
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
        """Whether a failed item leaves the others alone."""
        return self.on_item_failure == COLLECT

    def listed(self, values: Any) -> list[Any]:
        """The items of what was stored under `over`.

        :raises TypeError: it is a mapping or a string, or nothing that can be iterated over.
        """
        if not isinstance(values, _REFUSED):
            try:
                iterator = iter(values)
            except TypeError:
                pass
            else:
                return list(iterator)
        raise TypeError(
            f"Map {self.name!r} runs over the items of {self.over!r}, which must be a list or"
            f" another iterable, no mapping and no string; it is a {_names.dotted(type(values))}"
        )

    def of_item(self, index: int) -> Task:
        """The task for one item; it is like `inner`, under a name of its own."""
        made = self.inner.copy()
        made.name = f"{self.name}[{index}]"
        return made

    def takes_item(self, action: str) -> bool:
        """Whether the body for `action` is given the item: `revert` need not ask for it."""
        if action == "execute":
            return True
        inner = self.inner
        return self.item in inner.revert_rebind or _binding.signature_of(inner._bodies()[1]).takes(
            self.item
        )

    def _home(self) -> str:
        return self.inner._home()

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Not called: the engine runs the items."""
        raise NotImplementedError(f"Map {self.name!r} is run by an engine, item by item")


_REFUSED: Final = (Mapping, str, bytes, bytearray, memoryview)


def _check_inner(inner: Any) -> None:
    if isinstance(inner, type) and issubclass(inner, Task):
        raise TypeError(
            f"Map needs a task, not the class {_names.dotted(inner)}: did you mean"
            f" {inner.__name__}()?"
        )
    if isinstance(inner, Map):
        raise TypeError(
            f"Map needs a plain task, not another Map ({inner.name!r}): provide one flat list of"
            " items instead"
        )
    if isinstance(inner, WaitFor):
        raise TypeError(
            f"Map cannot run {inner.name!r} for each item: it waits for a signal, which a flow is"
            " given once"
        )
    if not isinstance(inner, Task):
        what = _names.dotted(type(inner))
        if isinstance(inner, atom.Atom):
            raise TypeError(f"Map needs a task, not {what} {inner.name!r}: a retry runs no items")
        raise TypeError(
            f"Map needs a task, not {inner!r} of type {what}"
            + (": put task.task above the function" if callable(inner) else "")
        )


def _check_names(inner: Task, over: Any, item: Any) -> None:
    for what, name in (("over", over), ("item", item)):
        if not isinstance(name, str):
            raise TypeError(f"The {what} of a Map must be a str, not {name!r}")
    execute, _ = inner._bodies()
    signature = _binding.signature_of(execute)
    if item not in inner.rebind and not signature.takes(item):
        known = [*inner.rebind, *signature.required, *signature.optional]
        raise ValueError(
            f"Task {inner.name!r} takes no argument {item!r} for the items of its Map"
            f"{_names.hint(item, known)}; it takes: {', '.join(dict.fromkeys(known)) or 'none'}"
        )
    others = {to: stored for to, stored in inner.rebind.items() if to != item}
    others.update((to, stored) for to, stored in inner.revert_rebind.items() if to != item)
    if over == item or over in others or over in others.values():
        taken = item if over == item else next(to for to, st in others.items() if over in (to, st))
        raise ValueError(
            f"The list {over!r} of a Map clashes with argument {taken!r} of task {inner.name!r}"
            + (
                ": the list needs another name than the item"
                if over == item
                else ", which would get the whole list with every item: rename one of them"
            )
        )


def _limit(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"max_in_flight must be a number from 1, or None, not {value!r}")
    return value


def _policy(value: Any) -> OnItemFailure:
    if value in (FAIL, COLLECT):
        return cast(OnItemFailure, value)
    near = _names.hint(value, (FAIL, COLLECT)) if isinstance(value, str) else ""
    raise ValueError(f"on_item_failure must be 'fail' or 'collect', not {value!r}{near}")
