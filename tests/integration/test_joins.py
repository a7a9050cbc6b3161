"""Join rules on engines: branches that meet again, their results, and suspension."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import engines, retry, states, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import models


class Say(task.Task):
    """Task that provides its own name."""

    default_provides = "word"

    def execute(self) -> str:
        return self.name


class Hear(task.Task):
    default_provides = "heard"

    def execute(self, word: str = "nothing") -> str:
        return word


def no(history: Any) -> bool:
    return False


def yes(history: Any) -> bool:
    return True


def meeting(rule: str, left: Any = yes, right: Any = yes) -> graph_flow.Flow:
    """Return a flow of two branches with deciders, whose values the task `hear` receives."""
    first, hear = task.FunctorTask(lambda: None, "first"), Hear("hear")
    flow = graph_flow.Flow("meeting").add(first, Say("left"))
    flow.add(Say("right"), hear, resolve_requires=False)
    members = {node.name: node for node in flow}
    flow.link(first, members["left"], decider=left).link(members["left"], hear)
    flow.link(first, members["right"], decider=right).link(members["right"], hear)
    return flow.join(hear, rule)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
@pytest.mark.parametrize(
    ("rule", "left", "right", "heard"),
    [
        ("any", no, yes, "right"),
        ("any", yes, no, "left"),
        ("any", no, no, None),
        ("none_failed", no, no, "nothing"),
        ("all", no, yes, None),
    ],
)
def test_join_receives_value_of_the_branch_taken(
    kind: str, rule: str, left: Any, right: Any, heard: str | None
) -> None:
    found = engines.run(meeting(rule, left, right), engine=kind)
    assert found.get("heard") == heard


def test_decider_of_join_that_raises_reverts_the_flow() -> None:
    flow = meeting("any", no, yes)
    members = {node.name: node for node in flow}

    def broken(history: Any) -> bool:
        assert history == {"right": "right"}
        raise LookupError("no idea")

    flow.link(members["right"], members["hear"], decider=broken)
    engine = engines.load(flow)
    with pytest.raises(LookupError, match="no idea"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_atom_state("right") == states.REVERTED


def test_flow_runs_in_retry_if_its_decider_raised_only_once() -> None:
    ran: list[str] = []
    answers = iter([LookupError("no idea"), True])

    def decide(history: Any) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    first, left, right = (task.FunctorTask(lambda n=n: ran.append(n), n) for n in "abc")
    inner = linear_flow.Flow("inner").add(left, right)
    flow = graph_flow.Flow("f", retry.Times(2, "r")).add(first, inner)
    engines.run(flow.link(first, inner, decider=decide))
    assert ran == ["a", "a", "b", "c"]


@pytest.mark.parametrize("rule", ["any", "none_failed", "all"])
@pytest.mark.parametrize("last", ["first", "left", "nested"])
def test_resumed_flow_makes_the_same_join_decisions(rule: str, last: str) -> None:
    """The store contains no decisions, only the states of atoms."""
    ran: list[str] = []
    running: Any = None

    def noted(name: str) -> task.FunctorTask:
        def run() -> None:
            ran.append(name)
            if running is not None and name == last:
                running.suspend()

        return task.FunctorTask(run, name)

    def made() -> graph_flow.Flow:
        first, left, right, hear, after = map(noted, ("first", "left", "right", "hear", "after"))
        branches = graph_flow.Flow("branches").add(first, left, right, hear)
        branches.link(first, left, decider=yes if last == "left" else no).link(left, hear)
        branches.link(first, right, decider=no).link(right, hear).join(hear, rule)
        nested = unordered_flow.Flow("nested flow").add(noted("nested"))
        outer = graph_flow.Flow("outer").add(branches, nested, after)
        return outer.link(branches, after).link(nested, after).join(after, rule)

    expected = engines.load(made())
    expected.run()
    once, ran = sorted(ran), []
    detail = models.FlowDetail("f")
    running = engines.load(made(), flow_detail=detail)
    running.run()
    # With rule 'all' atoms are ignored at once, so the first run can complete.
    left = (rule, last) != ("all", "left")
    assert running.storage.get_flow_state() == (states.SUSPENDED if left else states.SUCCESS)
    running = None
    other = engines.load(made(), flow_detail=detail)
    other.run()
    assert sorted(ran) == once
    names = ["first", "left", "right", "hear", "nested", "after"]
    assert other.storage.get_atoms_states(names) == expected.storage.get_atoms_states(names)


def test_retry_after_resume_runs_atoms_that_deciders_had_ignored() -> None:
    """The first run ignored all of them. After the retry the deciders return True."""
    ran: list[str] = []
    running: Any = None
    again = False

    def deciding(history: Any) -> bool:
        return again

    def noted(name: str) -> task.FunctorTask:
        return task.FunctorTask(lambda: ran.append(name), name)

    def pause() -> None:
        running.suspend()

    def fail_once() -> None:
        nonlocal again
        if not again:
            again = True
            raise OSError("once")

    def made() -> graph_flow.Flow:
        one, two, target, last = map(noted, ("one", "two", "target", "last"))
        pausing = task.FunctorTask(pause, "pausing")
        failing = task.FunctorTask(fail_once, "failing")
        tried = graph_flow.Flow("tried", retry.Times(2, name="times"))
        tried.add(one, two, target, pausing, failing)
        tried.link(one, target, decider=deciding, decider_depth="all")
        tried.link(two, target, decider=deciding, decider_depth="atom")
        tried.link(one, pausing).link(two, pausing).link(pausing, failing)
        outer = graph_flow.Flow("outer").add(tried, last)
        return outer.link(tried, last)

    detail = models.FlowDetail("f")
    running = engines.load(made(), flow_detail=detail)
    running.run()
    assert running.storage.get_flow_state() == states.SUSPENDED
    other = engines.load(made(), flow_detail=detail)
    other.run()
    assert ran[-2:] == ["target", "last"]


def test_decider_of_resumed_run_ignores_flow_after_an_ignored_task() -> None:
    """Depth FLOW ignores `target`, but not the member of the nested flow behind it."""
    ran: list[str] = []
    running: Any = None

    def noted(name: str) -> task.FunctorTask:
        return task.FunctorTask(lambda: ran.append(name), name)

    def pause() -> None:
        running.suspend()

    def made() -> graph_flow.Flow:
        one, two, target, late, other = map(noted, ("one", "two", "target", "late", "other"))
        pausing = task.FunctorTask(pause, "pausing")
        group = linear_flow.Flow("group").add(noted("member"))
        flow = graph_flow.Flow("f").add(one, two, target, pausing, late, other, group)
        flow.link(one, target, decider=no, decider_depth="flow")
        flow.link(two, target, decider=yes, decider_depth="all")
        flow.link(target, group)
        flow.link(one, pausing).link(two, pausing).link(pausing, late)
        flow.link(late, other, decider=no, decider_depth="all")
        return flow.link(other, group)

    detail = models.FlowDetail("f")
    running = engines.load(made(), flow_detail=detail)
    running.run()
    assert running.storage.get_flow_state() == states.SUSPENDED
    assert "late" not in ran
    other = engines.load(made(), flow_detail=detail)
    other.run()
    assert ran[-1] == "late"
    assert other.storage.get_atom_state("member") == states.IGNORE


def test_nested_flow_as_join_runs_with_none_failed_rule() -> None:
    first, refused = task.FunctorTask(lambda: None, "first"), Say("refused")
    inner = linear_flow.Flow("inner").add(Hear("hear"))
    flow = graph_flow.Flow("f").add(first, refused, resolve_requires=False)
    flow.add(inner, resolve_requires=False).link(first, refused, decider=no).link(refused, inner)
    assert "heard" not in engines.run(flow)
    flow.join(inner, "none_failed")
    assert engines.run(flow)["heard"] == "nothing"
    view = engines.load(flow)
    view.compile()
    assert view.compilation.execution_graph.nodes[inner]["join"] == "NONE_FAILED"


def test_decider_link_in_execution_graph_starts_at_end_of_its_source() -> None:
    inner, after = linear_flow.Flow("inner").add(Say("say")), Say("after")
    flow = graph_flow.Flow("f").add(inner, after).link(inner, after, decider=yes)
    engine = engines.load(flow)
    engine.compile()
    view = engine.compilation.execution_graph
    [before] = view.predecessors(after)
    assert before.name == "inner[$]"
    assert view.edges[before, after]["decider"] is yes
