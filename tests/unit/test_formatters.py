"""Formatting of failures: predecessors, masking and limits."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import engines, formatters, task
from wbengine.engines import _local
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.types import failure as ft


class Give(task.Task):
    """Task that returns a given value."""

    def __init__(self, name: str, value: Any = None, **options: Any) -> None:
        super().__init__(name, **options)
        self.value = value

    def execute(self, **taken: Any) -> Any:
        return self.value


class Boom(task.Task):
    def execute(self, **taken: Any) -> None:
        raise ValueError("boom")


def failing(flow: Any, **options: Any) -> tuple[Any, ft.Failure]:
    """Run the flow and return its engine and the failure of task 'boom'."""
    engine = engines.load(flow, never_resolve=True, **options)
    with pytest.raises(ValueError, match="boom"):
        engine.run()
    failure = engine.storage.get_execute_failure("boom")
    assert failure is not None
    return engine, failure


def told(flow: Any, store: Any = None, **options: Any) -> list[str]:
    engine, failure = failing(flow, store=store)
    formatter = formatters.FailureFormatter(engine, **options)
    exc_info, text = formatter.format(failure, formatters.NamedAtom("boom"))
    assert exc_info is not None and exc_info[1] is failure.exception
    return text.splitlines()


def without_values(lines: list[str]) -> list[str]:
    return [line.partition(" {")[0] for line in lines]


DONE = "'intention': 'EXECUTE', 'state': 'SUCCESS'"


def test_failure_text_shows_inputs_and_results_of_predecessors():
    flow = linear_flow.Flow("f").add(
        Give("a", 1, provides="x"), Give("b", [2], requires=["x", "y"]), Boom("boom")
    )
    assert told(flow, {"y": "why"}) == [
        "3 predecessors (most recent first):",
        f"  Atom 'b' {{{DONE}, 'requires': {{'x': 1, 'y': 'why'}}, 'provides': [2]}}",
        f"  |__Atom 'a' {{{DONE}, 'requires': {{}}, 'provides': 1}}",
        "     |__Flow 'f'",
    ]


def test_predecessor_with_several_paths_is_shown_once():
    flow = graph_flow.Flow("f").add(
        Give("a", 1, provides="x"),
        Give("b", 1, requires=["x"], provides="y"),
        Give("c", 1, requires=["x"], provides="z"),
        Boom("boom", requires=["x", "y", "z"]),
    )
    lines = without_values(told(flow, hide_inputs_outputs_of=["a", "b", "c"]))
    assert lines == [
        "4 predecessors (most recent first):",
        "  Atom 'c'",
        "  Atom 'b'",
        "  Atom 'a'",
        "  |__Flow 'f'",
    ]


def test_tasks_of_preceding_flow_are_shown():
    flow = linear_flow.Flow("f").add(
        unordered_flow.Flow("inner").add(Give("a"), Give("b")), Boom("boom")
    )
    assert without_values(told(flow)) == [
        "4 predecessors (most recent first):",
        "  Atom 'b'",
        "  |__Flow 'inner'",
        "     |__Flow 'f'",
        "  Atom 'a'",
    ]


def test_hidden_and_masked_values_are_not_shown():
    secret = {"user": "me", "password": "secret", "more": [{"password": "secret"}, ("x",)]}
    flow = linear_flow.Flow("f").add(
        Give("hidden", "secret", requires=["key"]),
        Give("result", secret, requires=["key"], rebind={"opener": "key"}),
        Give("whole", "secret", provides="password"),
        Give("part", ("secret", 2), provides=("password", "two")),
        Give("named", {"a": "secret", "b": 2}, provides={"a", "b"}),
        Boom("boom"),
    )
    lines = told(
        flow,
        {"key": "secret"},
        hide_inputs_outputs_of=["hidden"],
        mask_inputs_keys=["key"],
        mask_outputs_keys=["password", "a"],
    )
    text = "\n".join(lines)
    assert "secret" not in text
    masked = "{'user': 'me', 'password': '***', 'more': [{'password': '***'}, ('x',)]}"
    assert "'requires': {'key': '***', 'opener': '***'}" in text
    assert f"'provides': {masked}" in text
    assert "'provides': '***'" in text and "'provides': ['***', 2]" in text
    assert "'provides': {'a': '***', 'b': 2}" in text
    assert f"Atom 'hidden' {{{DONE}}}" in text
    assert secret["password"] == "secret"


def test_masking_terminates_for_recursive_and_deep_values():
    loop: dict[str, Any] = {"password": 1}
    loop["again"] = [loop]
    assert formatters.masked(loop, ["password"]) == {"password": "***", "again": ["***"]}
    assert formatters.masked(loop, []) is loop
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    assert "***" in repr(formatters.masked(deep, ["x"]))


def test_custom_matcher_selects_the_failed_atom():
    flow = linear_flow.Flow("f").add(Give("a"), Boom("boom"))
    engine, failure = failing(flow)
    formatter = formatters.FailureFormatter(engine)
    _, text = formatter.format(failure, lambda node: isinstance(node.item, Boom))
    assert text.startswith("2 predecessors")
    assert formatter.format(failure, lambda node: False)[1] == ""
    assert formatter.format(failure, formatters.NamedAtom("other"))[1] == ""


def test_remote_failure_is_formatted_with_its_traceback_text():
    engine, failure = failing(linear_flow.Flow("f").add(Boom("boom")))
    afar = ft.Failure.from_dict(failure.to_dict())
    exc_info, text = formatters.FailureFormatter(engine).format(afar, formatters.NamedAtom("boom"))
    assert exc_info is None
    lines = text.splitlines()
    assert lines[0] == "Failure: ValueError: boom" and "Traceback" in lines[1]
    assert lines[-2:] == ["1 predecessors (most recent first):", "  Flow 'f'"]


def test_remote_failure_is_formatted_with_causes_and_notes():
    engine, _ = failing(linear_flow.Flow("f").add(Boom("boom")))
    error = ValueError("boom")
    error.add_note("row 3")
    error.__cause__ = KeyError("k")
    afar = ft.Failure.from_dict(ft.Failure.from_exception(error).to_dict())
    _, text = formatters.FailureFormatter(engine).format(afar, lambda node: False)
    assert text.splitlines() == [
        "Failure: ValueError: boom",
        "KeyError: 'k'",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "ValueError: boom",
        "row 3",
    ]


def test_engine_not_compiled_shows_failure_without_predecessors():
    engine = _local.SerialActionEngine(linear_flow.Flow("f"), models.FlowDetail("f"), None, {})
    afar = ft.Failure.from_dict(ft.Failure.from_exception(ValueError("boom")).to_dict())
    _, text = formatters.FailureFormatter(engine).format(afar, formatters.NamedAtom("boom"))
    assert text.splitlines()[0] == "Failure: ValueError: boom" and "predecessors" not in text


def test_failed_reversion_shows_no_predecessors():
    class Stuck(Give):
        def revert(self, **kwargs: Any) -> None:
            raise OSError("stuck")

    engine = engines.load(linear_flow.Flow("f").add(Stuck("a"), Boom("boom")))
    with pytest.raises(OSError, match="stuck"):
        engine.run()
    failure = engine.storage.get_revert_failure("a")
    _, text = formatters.FailureFormatter(engine).format(failure, formatters.NamedAtom("a"))
    assert text == ""


def layers(depth: int, width: int) -> graph_flow.Flow:
    """Return a graph whose tasks require all tasks of the previous layer: width ** depth paths."""
    flow = graph_flow.Flow("f")
    before: list[str] = []
    for level in range(depth):
        names = [f"{level}.{place}" for place in range(width)]
        flow.add(*(Give(name, 1, provides=name, requires=before) for name in names))
        before = names
    return flow.add(Boom("boom", requires=before))


def test_layered_graph_shows_each_task_once():
    lines = told(layers(20, 5), hide_inputs_outputs_of=[])
    assert lines[0] == "101 predecessors (most recent first):"
    assert len(lines) == 102


@pytest.mark.parametrize(
    ("flow", "shown"),
    [
        (linear_flow.Flow("f").add(*(Give(f"{n}") for n in range(2000))), formatters.MAX_LEVELS),
        (
            unordered_flow.Flow("f").add(*(Give(f"{n}") for n in range(2000))),
            formatters.MAX_ATOMS_SHOWN,
        ),
    ],
    ids=["long", "wide"],
)
def test_large_flow_shows_only_the_nearest_predecessors(flow, shown):
    lines = told(linear_flow.Flow("outer").add(flow, Boom("boom")))
    assert lines[0] == f"{shown} and more predecessors (most recent first):"
    assert lines[-1] == "  ..." and len(lines) == shown + 2
    assert lines[1].startswith("  Atom '1999'")
