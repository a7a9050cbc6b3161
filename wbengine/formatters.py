"""Texts that describe a failure and the atoms that ran before it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._runtime import plan as plan_module
from wbengine.types import _failure_text, tree
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines import base

__all__ = ["FailureFormatter", "NamedAtom", "masked", "without_parts"]

#: Replacement of masked values.
MASK: Final = "***"

#: Maximum number of displayed predecessors, and maximum number of their levels.
MAX_ATOMS_SHOWN: Final = 200
MAX_LEVELS: Final = 40

_ATOM_KINDS: Final = {plan_module.TASK: "task", plan_module.RETRY: "retry"}


class NamedAtom:
    """A matcher for the node with this name. Formatters find its node without a search."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, node: tree.Node) -> bool:
        return bool(getattr(node.item, "name", None) == self.name)


class FailureFormatter:
    """Describes a failed atom and its predecessors with their intentions, arguments and results.

    It only reads the storage of the engine. `MAX_ATOMS_SHOWN` and `MAX_LEVELS` limit its cost.
    """

    def __init__(
        self,
        engine: base.Engine,
        hide_inputs_outputs_of: Collection[str] = (),
        mask_inputs_keys: Collection[str] = (),
        mask_outputs_keys: Collection[str] = (),
    ) -> None:
        """Create a formatter.

        :param hide_inputs_outputs_of: names of atoms whose arguments and results are not shown.
        :param mask_inputs_keys: names of arguments, and keys of dicts in arguments at any depth,
            whose values are masked.
        :param mask_outputs_keys: names of provided values, and keys of dicts in results, whose
            values are masked.
        :raises TypeError: if `engine` is not an engine, or names are not strings.
        """
        self._engine = engine
        if not hasattr(engine, "storage"):
            raise TypeError(f"engine must be an engine, got {engine!r}")
        # A string is a single name, not a sequence of characters.
        words = object_names.as_tuple
        self._hide_inputs_outputs_of = words("hide_inputs_outputs_of", hide_inputs_outputs_of)
        self._mask_inputs_keys = words("mask_inputs_keys", mask_inputs_keys)
        self._mask_outputs_keys = words("mask_outputs_keys", mask_outputs_keys)

    def format(
        self, fail: ft.Failure, atom_matcher: Callable[[tree.Node], Any]
    ) -> tuple[ft.ExcInfo | None, str]:
        """Return `(exc_info, details)` for a logger. Append the details to the log message.

        `atom_matcher(node)` selects the failed atom (`node.item`). If the failure has no exception
        (because a worker sent it or it was read from the store), the details contain it.
        """
        exc_info = fail.exc_info
        lines = [] if exc_info is not None else [fail.pformat(), _failure_text.text_of(fail)]
        plan = getattr(getattr(self._engine, "compilation", None), "plan", None)
        if plan is not None:
            node = _find(plan, atom_matcher)
            if node is not None and not self._failed_in_revert(plan, node, fail):
                lines += self._predecessor_lines(plan, node)
        return exc_info, os.linesep.join(lines)

    def _failed_in_revert(self, plan: plan_module.Plan, node: int, fail: ft.Failure) -> bool:
        """Return True if the atom failed in its revert. Predecessors are then irrelevant."""
        try:
            return self._engine.storage.get_revert_failure(plan.names[node]) is fail
        except exceptions.NotFound:
            return False

    def _predecessor_lines(self, plan: plan_module.Plan, node: int) -> Iterator[str]:
        root, count, has_more = _predecessors(plan, node)
        yield f"{count}{' and more' if has_more else ''} predecessors (most recent first):"
        for child in root:
            yield child.pformat(stringify_node=self._node_text, starting_prefix="  ")
        if has_more:
            yield "  ..."

    def _node_text(self, node: tree.Node) -> str:
        item = node.item
        if node.metadata["kind"] == "flow":
            return f"Flow '{item.name}'"
        details = self._known(item)
        return f"Atom '{item.name}' {details}" if details else f"Atom '{item.name}'"

    def _known(self, atom: Any) -> dict[str, Any]:
        storage = self._engine.storage
        details: dict[str, Any] = {}
        try:
            details["intention"] = storage.get_atom_intention(atom.name)
            details["state"] = storage.get_atom_state(atom.name)
        except exceptions.NotFound:
            return {}
        if atom.name in self._hide_inputs_outputs_of:
            return details
        try:
            details["requires"] = self._inputs(atom)
        except (exceptions.NotFound, exceptions.StorageFailure):
            pass
        try:
            details["provides"] = self._outputs(atom)
        except (exceptions.NotFound, exceptions.StorageFailure):
            pass
        return details

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
    """Return a copy of `data` in which values of `keys` in dicts, at any depth, are masked.

    Dicts, lists and tuples are searched. Without keys, `data` itself is returned.
    """
    if not keys:
        return data
    return _masked(data, keys, ())


def _masked(data: Any, keys: Collection[Any], around: tuple[int, ...]) -> Any:
    if not isinstance(data, Mapping | list | tuple):
        return data
    if id(data) in around or len(around) > MAX_LEVELS:
        return MASK  # It contains itself, or is nested too deeply.
    around = (*around, id(data))
    if isinstance(data, Mapping):
        return {
            key: MASK if key in keys else _masked(value, keys, around)
            for key, value in data.items()
        }
    parts = [_masked(value, keys, around) for value in data]
    return tuple(parts) if isinstance(data, tuple) else parts


def without_parts(result: Any, save_as: Mapping[str, Any], keys: Collection[str]) -> Any:
    """Return `result` with the parts masked that have a provided name in `keys`."""
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
    """Return a tree of the predecessors, their number, and whether there are more.

    Each node occurs once, at its nearest position. A tree with all paths would grow exponentially.
    """
    root = _tree_node(plan, start)
    seen, count = {start}, 0
    queue = deque([(start, root, 0)])
    while queue:
        node, tree_node, level = queue.popleft()
        nearest = _directly_before(plan, node, seen)
        if nearest and level == MAX_LEVELS:
            return root, count, True
        for predecessor in nearest:
            if count == MAX_ATOMS_SHOWN:
                return root, count, True
            count += 1
            child = _tree_node(plan, predecessor)
            tree_node.add(child)
            queue.append((predecessor, child, level + 1))
    return root, count, False


def _directly_before(plan: plan_module.Plan, node: int, seen: set[int]) -> list[int]:
    """Return the unseen direct predecessors of a node, most recent first.

    The exit node of a flow is replaced by its predecessors.
    """
    predecessors: list[int] = []
    pending = list(plan.pred[node])
    while pending:
        candidate = pending.pop()
        if candidate in seen:
            continue
        seen.add(candidate)
        if plan.kinds[candidate] == plan_module.FLOW_END:
            pending.extend(plan.pred[candidate])
        else:
            predecessors.append(candidate)
            if len(predecessors) > 4 * MAX_ATOMS_SHOWN:
                break
    return sorted(predecessors, reverse=True)
