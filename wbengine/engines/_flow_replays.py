"""Replays of the workflows of a stored flow. They execute no step and write nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wbengine import exceptions, states
from wbengine._calls import invocation as calls
from wbengine._introspection import object_names
from wbengine._runtime import atom_lifecycle, workflow_call
from wbengine._runtime.workflows import programs, step_records
from wbengine._runtime.workflows.history import History, RecordedStep
from wbengine._runtime.workflows.program import Program
from wbengine.engines import _allowed, _loading
from wbengine.persistence import models

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads
    from wbengine.engines import base
    from wbengine.storage import Storage

__all__ = ["StoredWorkflow", "find", "prepared", "workflows"]


class StoredWorkflow:
    """A workflow of a stored flow, with its latest execution.

    :ivar record: its record, which changes in memory only.
    """

    def __init__(
        self,
        node: int,
        workflow: Any,
        record: models.AtomDetail,
        storage: Storage,
        lifecycle: atom_lifecycle.AtomLifecycle,
        records: step_records.StepRecords,
    ) -> None:
        self.node = node
        self.workflow = workflow
        self.record = record
        self.storage = storage
        self._lifecycle = lifecycle
        self._records = records

    @property
    def attempt(self) -> int:
        """Attempt number of the latest execution."""
        return workflow_call.latest_execution(self.record)

    def recorded(self) -> list[RecordedStep]:
        """Return the steps of the execution.

        :raises CorruptRecord: if a step is missing or damaged.
        """
        return self._records.recorded(self.record.uuid, self.attempt)

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of the function.

        :raises NotFound: if an argument has no value.
        """
        return self._lifecycle.workflow_arguments(self.node, self.workflow)

    def as_executed(self) -> models.AtomDetail:
        """Return the record with the attempt of the execution, which may be reverted since."""
        record, attempts = self.record.copy(), self.record.all_attempts
        if record.attempt != self.attempt:
            record.attempt = self.attempt
            begun = [each.submitted for each in attempts if each.attempt == self.attempt]
            record.submitted = begun[0] if begun else None
        return record

    def replay(self, steps: History) -> Program:
        """Call the function in this thread until it needs a step without a result."""
        call = workflow_call.WorkflowCall(
            self.node, self.workflow, calls.EXECUTE, self.as_executed(), self.arguments()
        )
        now = time.time()
        return programs.replay(call, steps, self.storage, now, self._records.check_tags)


def prepared(
    detail: models.FlowDetail, *, flows: _allowed.Flows = None, payloads: Payloads | None = None
) -> base.Engine:
    """Return an engine for a flow that has no store, so that it writes nothing.

    :param flows: allowed factories, see `flow_from_detail`.
    :param payloads: where large values are.
    :raises Exception: as `load_from_detail` and `Engine.prepare`.
    """
    engine = _loading.load_from_detail(detail, flows=flows)
    engine.storage.payloads = payloads
    engine.prepare()
    return engine


def workflows(engine: base.Engine) -> Iterator[StoredWorkflow]:
    """Yield the workflows of a prepared engine that have begun."""
    compiled, storage = engine.compilation, engine.storage
    if compiled is None or not compiled.has_workflows:
        return
    lifecycle = engine._make_lifecycle(_do_nothing)
    records = step_records.StepRecords(storage, lifecycle)
    for node, item in enumerate(compiled.plan.items):
        record = storage.records[node]
        if record is not None and record.attempt and getattr(item, "runs_steps", False):
            yield StoredWorkflow(node, item, record, storage, lifecycle, records)


def find(
    detail: models.FlowDetail,
    name: str | None = None,
    *,
    flows: _allowed.Flows = None,
    payloads: Payloads | None = None,
) -> StoredWorkflow:
    """Return the workflow of a flow, which may have ended.

    :param name: name of the workflow; None: the only one that has begun.
    :raises NotFound: if there is no such workflow.
    :raises MultipleChoices: if there are several, and no name is given.
    :raises Exception: as `prepared`.
    """
    if detail.state == states.REVERTED:
        detail.state = states.SUSPENDED  # Otherwise its records are reset.
    stored = {each.record.name: each for each in workflows(prepared(
        detail, flows=flows, payloads=payloads))}  # fmt: skip
    if name is None and len(stored) > 1:
        raise exceptions.MultipleChoices(
            f"Flow {detail.name!r} has several workflows: {', '.join(map(repr, stored))}"
        )
    if name is None and stored:
        return next(iter(stored.values()))
    if name not in stored:
        missing = "a workflow" if name is None else f"workflow {name!r}"
        hint = "" if name is None else object_names.hint(name, stored)
        raise exceptions.NotFound(f"Flow {detail.name!r} has not begun {missing}{hint}")
    return stored[name]


def _do_nothing() -> None:
    pass
