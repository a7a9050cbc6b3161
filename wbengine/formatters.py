"""What to say about a failure: what it was, and what had been done before it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import _names, exceptions
from wbengine.runtime import plan as plan_module
from wbengine.types import failure as ft
from wbengine.types import tree

if TYPE_CHECKING:
    from wbengine.engines import base

__all__ = ["FailureFormatter", "NamedAtom", "masked", "without_parts"]

#: What stands in the place of a masked value.
MASK: Final = "***"

#: How much of what was before a failed atom is shown: so many atoms and flows, so far back.
MOST_SHOWN: Final = 200
MOST_LEVELS: Final = 40

_ATOM_KINDS: Final = {plan_module.TASK: "task", plan_module.RETRY: "retry"}


class NamedAtom:
    """A matcher of the node whose item has a name; a formatter need not search for that one."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, node: tree.Node) -> bool:
        return bool(getattr(node.item, "name", None) == self.name)


class FailureFormatter:
    """Tells of a failed atom, and of its predecessors: what they are for, got and gave.

    Reads the engine's storage only; the cost is bounded (`MOST_SHOWN`, `MOST_LEVELS`), however
    large the flow is.
    """

    def __init__(
        self,
        engine: base.Engine,
        hide_inputs_outputs_of: Collection[str] = (),
        mask_inputs_keys: Collection[str] = (),
        mask_outputs_keys: Collection[str] = (),
    ) -> None:
        """
        :param hide_inputs_outputs_of: names of atoms whose arguments and results are not shown.
        :param mask_inputs_keys: arguments (and keys of dicts in them, at any depth) whose values
            are not shown.
        :param mask_outputs_keys: the same for results: names they are provided under, and keys.
        :raises TypeError: `engine` is none, or names are no strings.
        """
        self._engine = engine
        if not hasattr(engine, "storage"):
            raise TypeError(f"A formatter needs an engine to read from, not {engine!r}")
        # A string is one name: part of a name would mask too much, its letters nothing.
        words = _names.words
        self._hide_inputs_outputs_of = words("hide_inputs_outputs_of", hide_inputs_outputs_of)
        self._mask_inputs_keys = words("mask_inputs_keys", mask_inputs_keys)
        self._mask_outputs_keys = words("mask_outputs_keys", mask_outputs_keys)

    def format(
        self, fail: ft.Failure, atom_matcher: Callable[[tree.Node], Any]
    ) -> tuple[ft.ExcInfo | None, str]:
        """`(exc_info, details)`: for a logger, and the text to put behind its message.

        `atom_matcher(node)` says which atom failed (`node.item`).  A failure without an exception
        of its own (it comes from a worker, or from the store) is told in the details instead.
        """
        lines = [] if fail.exc_info is not None else [fail.pformat(traceback=True)]
        plan = getattr(getattr(self._engine, "compilation", None), "plan", None)
        if plan is not None:
            node = _find(plan, atom_matcher)
            if node is not None and not self._undoes(plan, node, fail):
                lines += self._before(plan, node)
        return fail.exc_info, os.linesep.join(lines)

    def _undoes(self, plan: plan_module.Plan, node: int, fail: ft.Failure) -> bool:
        """Did it fail while it was reverted?  What came before it has nothing to do with that."""
        try:
            return self._engine.storage.get_revert_failure(plan.names[node]) is fail
        except exceptions.NotFound:
            return False

    def _before(self, plan: plan_module.Plan, node: int) -> Iterator[str]:
        root, count, more = _predecessors(plan, node)
        yield f"{count}{' and more' if more else ''} predecessors (most recent first):"
        for child in root:
            yield child.pformat(stringify_node=self._say, starting_prefix="  ")
        if more:
            yield "  ..."

    def _say(self, node: tree.Node) -> str:
        item = node.item
        if node.metadata["kind"] == "flow":
            return f"Flow '{item.name}'"
        known = self._known(item)
        return f"Atom '{item.name}' {known}" if known else f"Atom '{item.name}'"

    def _known(self, atom: Any) -> dict[str, Any]:
        storage = self._engine.storage
        found: dict[str, Any] = {}
        try:
            found["intention"] = storage.get_atom_intention(atom.name)
            found["state"] = storage.get_atom_state(atom.name)
        except exceptions.NotFound:
            return {}
        if atom.name in self._hide_inputs_outputs_of:
            return found
        try:
            found["requires"] = self._inputs(atom)
        except (exceptions.NotFound, exceptions.StorageFailure):
            pass
        try:
            found["provides"] = self._outputs(atom)
        except (exceptions.NotFound, exceptions.StorageFailure):
            pass
        return found

    def _inputs(self, atom: Any) -> Any:
        values = self._engine.storage.fetch_mapped_args(
            atom.rebind, atom_name=atom.name, optional_args=atom.optional
        )
        keys = self._mask_inputs_keys
        hidden = {name for name, source in atom.rebind.items() if source in keys}
        return masked({**values, **dict.fromkeys(hidden & set(values), MASK)}, keys)

    def _outputs(self, atom: Any) -> Any:
        result = self._engine.storage.get_execute_result(atom.name)
        keys = self._mask_outputs_keys
        return masked(without_parts(result, atom.save_as, keys), keys)


def masked(data: Any, keys: Collection[Any]) -> Any:
    """A copy of `data` with `MASK` in place of the values of `keys` in its dicts, at any depth.

    Looks into dicts, lists and tuples.  Nothing is copied when there are no keys.
    """
    if not keys:
        return data
    return _masked(data, keys, ())


def _masked(data: Any, keys: Collection[Any], around: tuple[int, ...]) -> Any:
    if not isinstance(data, Mapping | list | tuple):
        return data
    if id(data) in around or len(around) > MOST_LEVELS:
        return MASK  # it holds itself, or nobody would read that far
    around = (*around, id(data))
    if isinstance(data, Mapping):
        return {
            key: MASK if key in keys else _masked(value, keys, around)
            for key, value in data.items()
        }
    parts = [_masked(value, keys, around) for value in data]
    return tuple(parts) if isinstance(data, tuple) else parts


def without_parts(result: Any, save_as: Mapping[str, Any], keys: Collection[str]) -> Any:
    """`result` with `MASK` in place of what is provided under a name in `keys`."""
    hidden = [index for name, index in save_as.items() if name in keys]
    if not hidden:
        return result
    if None in hidden:
        return MASK
    if isinstance(result, Mapping):
        return {key: MASK if key in hidden else value for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [MASK if place in hidden else value for place, value in enumerate(result)]
    return MASK


def _find(plan: plan_module.Plan, matcher: Callable[[tree.Node], Any]) -> int | None:
    if isinstance(matcher, NamedAtom):
        return plan.by_name.get(matcher.name)
    return next((node for node in plan.atoms() if matcher(_tree_node(plan, node))), None)


def _tree_node(plan: plan_module.Plan, node: int) -> tree.Node:
    kind = _ATOM_KINDS.get(plan.kinds[node], "flow")
    return tree.Node(plan.items[node], kind=kind)


def _predecessors(plan: plan_module.Plan, start: int) -> tuple[tree.Node, int, bool]:
    """What is before a node, as a tree that shows each thing once, where it is nearest.

    Also how many things these are, and whether there are more.  (A tree with a branch for every
    path would grow exponentially.)
    """
    root = _tree_node(plan, start)
    seen, count = {start}, 0
    queue = deque([(start, root, 0)])
    while queue:
        node, shown, level = queue.popleft()
        before = _directly_before(plan, node, seen)
        if before and level == MOST_LEVELS:
            return root, count, True
        for other in before:
            if count == MOST_SHOWN:
                return root, count, True
            count += 1
            child = _tree_node(plan, other)
            shown.add(child)
            queue.append((other, child, level + 1))
    return root, count, False


def _directly_before(plan: plan_module.Plan, node: int, seen: set[int]) -> list[int]:
    """The unseen atoms and flows that lead to a node, the most recent first.

    Where a flow ends there is nothing to show: what is at its end stands for it.
    """
    found: list[int] = []
    pending = list(plan.pred[node])
    while pending:
        other = pending.pop()
        if other in seen:
            continue
        seen.add(other)
        if plan.kinds[other] == plan_module.FLOW_END:
            pending.extend(plan.pred[other])
        else:
            found.append(other)
            if len(found) > 4 * MOST_SHOWN:
                break
    return sorted(found, reverse=True)
