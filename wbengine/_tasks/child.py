"""Steps that run a flow of their own and wait for its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine._introspection import object_names
from wbengine._tasks.base import Task
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine.types import codec

__all__ = ["Child"]


class Child(WaitingTask):
    """Waits for the end of a child flow, which the engine starts; its result is that of the flow.

    The revert of the task reverts the flow.

    :param flow: a workflow, a function that makes a flow, or the name of one of both. None: the
        step was recorded by an earlier run, and its flow is not started by this task.
    :param inputs: inputs of the flow by name.
    :param flow_name: name of the flow; None: that of the workflow or flow.
    :param is_detached: whether cancellation, suspension and reversion do not reach the flow.
    """

    def __init__(
        self,
        flow: Any = None,
        inputs: Mapping[str, Any] | None = None,
        flow_name: str | None = None,
        *,
        is_detached: bool = False,
    ) -> None:
        self.flow = flow
        self.inputs = inputs or {}
        self.flow_name = flow_name
        self.is_detached = is_detached
        super().__init__("child", "", None)

    @property
    def path(self) -> str:
        """The flow as `module:name`."""
        return self.flow if isinstance(self.flow, str) else object_names.dotted(self.flow)

    def _home(self) -> str:
        if isinstance(self.flow, str) or self.flow is None:
            return str(self.flow or __name__).partition(":")[0]
        return object_names.module_of(self.flow)

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an exception, because engines revert the flow instead."""
        raise NotImplementedError(
            f"revert of {self.name!r} is never called: the engine reverts the child flow instead"
        )


def check(flow: Any, inputs: Any, name: Any) -> dict[str, Any]:
    """Check the arguments of a child flow, and return a copy of its inputs.

    :raises TypeError: if one has a wrong type.
    :raises NotEncodable: if an input cannot be encoded.
    """
    hint = None
    if isinstance(flow, type) and issubclass(flow, Task) and not flow.runs_steps:
        hint = "use steps.run to execute a task"
    elif not isinstance(flow, str) and not callable(flow):
        hint = "pass the function that makes the flow"
    if hint is not None:
        raise TypeError(
            "A child flow must be a workflow, a function that makes a flow, or its name, got"
            f" {flow!r:.80}: {hint}"
        )
    if not isinstance(inputs, Mapping | None) or not all(
        isinstance(key, str) for key in inputs or ()
    ):
        raise TypeError(f"inputs must be a dict with str keys, got {inputs!r:.80}")
    if name is not None and not (isinstance(name, str) and name):
        raise TypeError(f"name must be a non-empty str, got {name!r:.80}")
    object_names.check_length("The name of a flow", name or "")
    copied: dict[str, Any] = codec.loads(codec.dumps(dict(inputs or {}), "inputs"))
    return copied
