"""Calls of the nodes of a plan."""

from __future__ import annotations

from typing import NamedTuple

from wbengine import retry as retry_module
from wbengine import task as task_module
from wbengine._calls import invocation as calls
from wbengine._runtime.workflow_call import WorkflowCall

__all__ = ["Call", "MapCall", "RetryCall"]


class MapCall(NamedTuple):
    """A Map whose items are about to be executed or reverted."""

    node: int
    task: task_module.Map
    action: calls.Action


class RetryCall(NamedTuple):
    """A retry controller that is about to execute or to be reverted."""

    node: int
    retry: retry_module.Retry
    action: calls.Action


#: A call of a task, an item or a step, or of a node that the engine itself runs.
Call = calls.Invocation | RetryCall | MapCall | WorkflowCall
