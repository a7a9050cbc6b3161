"""Which tasks of a graph a fork inherits, compared with the compiled plan."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.scheduling import GRAPH, LINEAR, UNORDERED, Step
from wbengine import engines, retry, states
from wbengine._runtime import plan as plan_module
from wbengine._runtime import reverting
from wbengine.persistence import _forks, models


def random_flow(source: random.Random, names: list[str], depth: int = 0) -> Any:
    """Return a nested flow whose tasks have the next numbers as names."""
    kind = source.choice((LINEAR, UNORDERED, GRAPH))
    controller = retry.Times(1, name=f"r{len(names)}") if source.random() < 0.2 else None
    names.append("")
    flow = kind(f"f{len(names)}", controller)
    members = []
    for _ in range(source.randint(1, 4)):
        if depth < 2 and source.random() < 0.4:
            members.append(random_flow(source, names, depth + 1))
        else:
            names.append(f"t{len(names)}")
            members.append(Step(names[-1]))
    flow.add(*members)
    if isinstance(flow, GRAPH):
        for number, member in enumerate(members[1:], 1):
            if source.random() < 0.6:
                flow.link(members[source.randrange(number)], member)
    return flow


def rerun(plan: Any, start: set[int]) -> set[int]:
    """Return the atoms that run again: a fixpoint over the edges and scopes of the plan."""
    again = set(start)
    while True:
        wider = {other for node in again for other in reverting.dependants(plan, node)}
        for node, kind in enumerate(plan.kinds):
            if kind == plan_module.RETRY and wider.intersection(plan.scope(node)):
                wider.update(plan.scope(node))
        wider |= again
        if wider == again:
            return {node for node in again if plan.is_atom(node)}
        again = wider


@pytest.mark.parametrize("seed", range(150))
def test_inherited_tasks_are_those_that_depend_on_nothing_that_runs_again(seed: int) -> None:
    source = random.Random(seed)
    flow = random_flow(source, [])
    engine = engines.load(flow)
    engine.compile()
    assert engine.compilation is not None
    plan, outline = engine.compilation.plan, engine.compilation.outline
    detail = models.FlowDetail("flow")
    tasks = [node for node in plan.atoms() if plan.kinds[node] == plan_module.TASK]
    incomplete = {node for node in tasks if source.random() < 0.1}
    for node in plan.atoms():
        is_task = plan.kinds[node] == plan_module.TASK
        record = (models.TaskDetail if is_task else models.RetryDetail)(plan.names[node])
        record.state = states.FAILURE if node in incomplete else states.SUCCESS
        detail.add(record)
    start = source.choice(tasks)
    inherited = _forks.inherited_atoms(detail, outline, plan.names[start])
    again = rerun(plan, {start, *incomplete})
    assert inherited == {plan.names[node] for node in plan.atoms() if node not in again}
