"""Tasks of graphs that run flows of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from wbengine import atom
from wbengine._introspection import binding, object_names
from wbengine._tasks import child
from wbengine._tasks.workflow import Workflow
from wbengine.backoff import Backoff, Errors

__all__ = ["SubFlow"]


class SubFlow(Workflow):
    """Runs a child flow; its result is that of the flow.

    ::

        flow.add(Quote(provides="price"),
                 task.SubFlow(bill, provides="invoice"),
                 Send())

    It is a workflow with one step, `steps.child`, which describes the child. Its arguments are the
    inputs of the child: the parameters of a workflow, or the values that another flow requires.

    :param flow: a workflow, or a function without arguments that makes a flow, or the name of one
        of both. A function is called once here, to read what its flow requires.
    :param name: default: the name of the function.
    :param detached: cancel, suspend and revert the child only by itself.
    :param retries, backoff, retry_on: as for `task.workflow`: each retry runs a new child.
    :raises TypeError, ValueError: if an argument is invalid.
    """

    __module__ = "wbengine.task"

    is_async = True

    def __init__(
        self,
        flow: Any,
        provides: atom.Provides | None = None,
        name: str | None = None,
        *,
        detached: bool = False,
        retries: int = 0,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
    ) -> None:
        child.check(flow, None, None)
        self.fn = _function(flow, detached)  # type: ignore[misc, method-assign]
        self.retries, self.backoff, self.retry_on = retries, backoff, retry_on
        if name is None:
            path = flow if isinstance(flow, str) else object_names.dotted(flow)
            name = path.replace(":", ".").rpartition(".")[2]
        super().__init__(name, provides, auto_extract=False)
        required, optional = _inputs_of(flow)
        self.rebind = {each: each for each in (*required, *optional)}
        self.requires, self.optional = frozenset(required), frozenset(optional)

    def execute(self, **inputs: Any) -> Any:
        """Raise an exception, because engines run the child flow instead."""
        raise NotImplementedError(
            f"execute of {self.name!r} is never called: the engine runs the child flow instead"
        )


def _function(flow: Any, detached: bool) -> Callable[..., Any]:
    async def run_child(steps: Any, **inputs: Any) -> Any:
        return await steps.child(flow, inputs, detached=detached)

    return run_child


def _inputs_of(flow: Any) -> tuple[Collection[str], Collection[str]]:
    """Return the names of the required and the optional inputs of a child."""
    if isinstance(flow, str):
        flow = object_names.load(flow)
    made = flow() if callable(flow) else flow
    if isinstance(made, Workflow):
        signature = binding.signature_of(made.execute)
        return signature.required, signature.optional
    return sorted(made.requires), ()
