"""Replacement of inputs and results of a flow that is prepared to run again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from typing import Any

from wbengine import exceptions, states
from wbengine import storage as storage_module
from wbengine._calls import invocation as calls
from wbengine._runtime import atom_lifecycle, workflow_call
from wbengine._runtime import plan as plan_module
from wbengine._runtime.workflows import history, programs, step_records
from wbengine.engines import _flow_inputs
from wbengine.persistence import _edits as edits_module
from wbengine.persistence import models

__all__ = ["apply", "check", "check_replay", "converted", "read"]

read = edits_module.Edits.from_dict


def check(
    edits: edits_module.Edits,
    plan: plan_module.Plan,
    storage: storage_module.Storage,
    lifecycle: atom_lifecycle.AtomLifecycle,
) -> None:
    """Check that inputs and results of a flow can be replaced.

    The caller has the lease of the flow, and has prepared its records for this plan.

    :raises NotFound: if the flow has no such input or task.
    :raises InvalidState: if a complete task or a recorded step has used a value.
    :raises NotEncodable: if a value cannot be stored.
    """
    flow = storage.flow_detail
    edits.check(flow, _used_names(plan, edits.inputs))
    for name, value in edits.results.items():
        _check_result(name, plan, storage)
        storage.check(value, f"result of {name!r}")
    for node, names in plan.firsts.items():
        record = storage.records[node]
        if record is not None and not names.keys().isdisjoint(edits.inputs):
            _check_continuation(record, plan.items[node], edits.inputs)
            _check_steps(node, record, edits, plan, storage, lifecycle)
    for name, value in edits.inputs.items():
        storage.check(value, f"input {name!r}")


def converted(edits: edits_module.Edits, flow: Any) -> edits_module.Edits:
    """Return the edits with inputs as values of annotated parameters.

    :raises InvalidFormat: if an input does not fit.
    """
    try:
        inputs = _flow_inputs.read(flow, edits.inputs, ())
    except (ValueError, TypeError) as error:
        raise exceptions.InvalidFormat(str(error)) from error
    return dataclasses.replace(edits, inputs=inputs)


def apply(edits: edits_module.Edits, storage: storage_module.Storage) -> None:
    """Replace inputs and results after `check`, in the open batch of the writer."""
    if edits.inputs:
        storage.replace_inputs(edits.inputs)
    for name, value in edits.results.items():
        storage.replace_result(name, value)


def _used_names(plan: plan_module.Plan, inputs: Collection[str]) -> dict[str, list[str]]:
    """Return which of these inputs each atom uses, by name of the atom.

    Values that are injected into the flow have precedence over those that its atoms provide.
    """
    items: Any = plan.items
    return {
        plan.names[node]: [
            name for name in inputs if name in names and name not in (items[node].inject or ())
        ]
        for node, names in plan.firsts.items()
        if not names.keys().isdisjoint(inputs)
    }


def _check_result(name: str, plan: plan_module.Plan, storage: storage_module.Storage) -> None:
    """Check that nothing has used the result of a task.

    :raises InvalidState: if a complete task or a decider has used it.
    """
    node = plan.by_name[name]
    item: Any = plan.items[node]
    refused = f"Result of task {name!r} cannot be replaced:"
    for user, bound in plan.firsts.items():
        record = storage.records[user]
        if record is None or not edits_module.has_used_values(record):
            continue
        injected = storage.injected_for(record.name)
        for value in item.save_as.keys() & bound.keys():
            if any(value in source for source in injected):
                continue
            if _provides(node, user, value, plan, storage):
                raise exceptions.InvalidState(
                    f"{refused} {record.kind} {record.name!r} has used it and is in {record.state}"
                )
    undecided = (None, states.PENDING, states.FAILURE)
    for target, edges in plan.deciders.items():
        if not any(node in plan.whole(plan._begin[edge.end]) for edge in edges):
            continue
        decided = [storage.records[each] for each in plan.whole(target)]
        if any(record is not None and record.state not in undecided for record in decided):
            shown = plan.shown_name(target)
            raise exceptions.InvalidState(f"{refused} the decider before {shown!r} has used it")


def _provides(
    node: int, user: int, name: str, plan: plan_module.Plan, storage: storage_module.Storage
) -> bool:
    """Return whether a node provides a value to another one: ignored nodes provide none."""
    for provider in plan.candidates(user, name):
        if provider.node == node:
            return True
        record = storage.records[provider.node]
        if record is None or record.state != states.IGNORE:
            return False
    return False


def _check_continuation(record: models.AtomDetail, item: Any, inputs: Collection[str]) -> None:
    """Check that no workflow continued as new with another value of an input.

    :raises InvalidState: if it did, because it would ignore the replaced value.
    """
    content = record.meta_value(models.CONTINUED)
    if content is None:
        return
    replaced = [item.rebind.get(name) for name in content["inputs"]]
    if names := [name for name in inputs if name in replaced]:
        raise exceptions.InvalidState(
            f"Input {', '.join(map(repr, names))} of workflow {record.name!r} cannot be replaced,"
            " because the workflow has continued as new (continue_as_new) with another value"
        )


def _check_steps(
    node: int,
    record: models.AtomDetail,
    edits: edits_module.Edits,
    plan: plan_module.Plan,
    storage: storage_module.Storage,
    lifecycle: atom_lifecycle.AtomLifecycle,
) -> None:
    """Call the function of a workflow in progress with the new inputs: its steps must be the same.

    :raises InvalidState: if a recorded step has used an input.
    """
    try:
        check_replay(node, plan, storage, lifecycle, edits.inputs)
    except exceptions.NonDeterministicWorkflow as error:
        names = ", ".join(repr(name) for name in edits.inputs if name in plan.firsts[node])
        raise exceptions.InvalidState(
            f"Input {names} of workflow {record.name!r} cannot be replaced, because a recorded step"
            f" has used it: step {error.step} is recorded as {error.recorded} and {error.actual}"
        ) from error


def check_replay(
    node: int,
    plan: plan_module.Plan,
    storage: storage_module.Storage,
    lifecycle: atom_lifecycle.AtomLifecycle,
    inputs: Mapping[str, Any],
) -> None:
    """Call the function of a workflow in progress with other inputs. Other nodes are ignored.

    :raises NonDeterministicWorkflow: if the function does not repeat its recorded steps.
    """
    workflow: Any = plan.items[node]
    record = storage.records[node]
    assert record is not None
    continues = record.state in (states.PENDING, states.RUNNING)
    if not continues or record.meta_value(models.WORKFLOW) is None or not workflow.runs_steps:
        return
    attempt = workflow_call.latest_execution(record)
    records = step_records.StepRecords(storage, lifecycle)
    steps = history.History(record.name, records.recorded(record.uuid, attempt))
    arguments = lifecycle.workflow_arguments(node, workflow, inputs)
    call = workflow_call.WorkflowCall(node, workflow, calls.EXECUTE, record, arguments)
    program = programs.replay(call, steps, storage, time.time(), records.check_tags)
    if program.error is not None:
        raise program.error
    steps.check_end(program.called_count)
