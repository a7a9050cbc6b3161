"""Tasks: atoms that do the work of a flow.

Write a class with an `execute` method (and `revert` to undo it), or decorate a function with
`@task`. `FunctorTask` and related classes wrap existing callables. `Map` runs a task once for each
item of a list. `WaitFor` waits for a signal, `Sleep` for a time. A function with `@workflow`
decides its steps while it runs. `SubFlow` runs a flow of its own.
"""

from __future__ import annotations

from wbengine._tasks.base import EVENT_UPDATE_PROGRESS as EVENT_UPDATE_PROGRESS
from wbengine._tasks.base import LOG as LOG
from wbengine._tasks.base import Task as Task
from wbengine._tasks.function import FunctionTask as FunctionTask
from wbengine._tasks.function import task as task
from wbengine._tasks.functors import FunctorTask as FunctorTask
from wbengine._tasks.functors import MapFunctorTask as MapFunctorTask
from wbengine._tasks.functors import ReduceFunctorTask as ReduceFunctorTask
from wbengine._tasks.map import Map as Map
from wbengine._tasks.sleep_and_wait_for import Sleep as Sleep
from wbengine._tasks.sleep_and_wait_for import WaitFor as WaitFor
from wbengine._tasks.sub_flow import SubFlow as SubFlow
from wbengine._tasks.workflow import Workflow as Workflow
from wbengine._tasks.workflow import workflow as workflow
from wbengine.atom import REVERT_FLOW_FAILURES as REVERT_FLOW_FAILURES
from wbengine.atom import REVERT_RESULT as REVERT_RESULT

__all__ = [
    "EVENT_UPDATE_PROGRESS",
    "REVERT_FLOW_FAILURES",
    "REVERT_RESULT",
    "FunctionTask",
    "FunctorTask",
    "Map",
    "MapFunctorTask",
    "ReduceFunctorTask",
    "Sleep",
    "SubFlow",
    "Task",
    "WaitFor",
    "Workflow",
    "task",
    "workflow",
]
