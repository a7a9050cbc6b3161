"""Ends of child flows, which a store reports to their parents in the write that ends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from wbengine import signals, states
from wbengine.persistence import _history, models
from wbengine.types import _tags

__all__ = ["ChildEnd", "deletion_of", "end_of"]


class ChildEnd(NamedTuple):
    """A signal to a parent, or to a fork of it, that a child flow has ended."""

    parent: str
    signal: signals.Signal


def end_of(flow: models.FlowDetail) -> ChildEnd | None:
    """Return the end of a child flow with this record; None for other flows and unfinished ones."""
    if flow.state not in states.FLOW_ENDED or (parent := _receiver(flow.own_meta)) is None:
        return None
    at = _history.entered_at(flow.history) or 0.0
    return ChildEnd(parent, signals.end_of_child(flow.uuid, flow.epoch, at))


def deletion_of(
    uuid: str, state: str | None, meta: Mapping[str, Any], epoch: int
) -> ChildEnd | None:
    """Return the end of a flow that is deleted; None if it is no child, or has ended before."""
    parent = _receiver(meta)
    if state in states.FLOW_ENDED or parent is None:
        return None
    return ChildEnd(parent, signals.end_of_child(uuid, epoch + 1, 0.0))


def _receiver(meta: Mapping[str, Any]) -> str | None:
    """Return the flow that waits for the end: the parent, or a fork that reverts its results."""
    return meta.get(models.REVERTING_PARENT) or _tags.parent_in(meta)
