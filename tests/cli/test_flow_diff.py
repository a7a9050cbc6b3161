"""`wbengine flow diff` shows where two runs part."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Command
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import _step_notes, base, models
from wbengine.steps import Steps
from wbengine.views import _flow_differences

PRICES: dict[str, Any] = {}


@task.task
def quote(item: str) -> Any:
    return PRICES[item]


@task.task
def charge(price: int, card: str) -> str:
    if price > 100:
        raise ValueError("too expensive")
    return "paid"


@task.workflow(name="order")
def order(steps: Steps, items: list[str]) -> None:
    for item in items:
        steps.run(charge, steps.run(quote, item), card="4111")
    steps.wait_any("yes", "no")


class Greet(task.Task):
    def execute(self, name: str) -> str:
        return f"hello {name}"


def run(store: base.Backend, items: list[str], signal: str = "yes", **prices: Any) -> str:
    PRICES.clear()
    PRICES.update({"a": 1, "b": 2} | prices)
    engine = engines.load(order, inputs={"items": items}, backend=store)
    engine.signal(signal)
    try:
        engine.run()
    except ValueError:
        pass
    return engine.storage.flow_uuid


def diff(wbengine: Command, first: str, second: str, *words: str) -> list[tuple[Any, ...]]:
    answer = wbengine("flow", "diff", first, second, "--json", *words)
    differences = [tuple(each.values()) for each in answer.json["differences"]]
    assert answer.code == bool(differences)
    return differences


def test_equal_runs_have_no_differences(wbengine: Command, store: base.Backend) -> None:
    first, second = run(store, ["a", "b"]), run(store, ["a", "b"])
    assert diff(wbengine, first, second) == []
    answer = wbengine("flow", "diff", first, second)
    assert answer.out == "inputs, tasks and steps: 7 equal, 0 different\n"


def test_first_different_result_is_shown_first(wbengine: Command, store: base.Backend) -> None:
    first, second = run(store, ["a", "b"]), run(store, ["a", "b"], a=3)
    path = f"{__name__}:charge"
    assert diff(wbengine, first, second, "--show-values") == [
        ("result", "step 0 of 'order'", "1", "3"),
        (
            "arguments",
            "step 1 of 'order'",
            f'{path}({{"price":1,"card":"4111"}})',
            f'{path}({{"price":3,"card":"4111"}})',
        ),
    ]
    assert diff(wbengine, first, second)[0] == ("result", "step 0 of 'order'", "int", "int")
    answer = wbengine("flow", "diff", first, second)
    assert answer.out.startswith("step 0 of 'order' differs: result\n")
    assert "4111" not in answer.out
    assert answer.out.endswith("5 equal, 2 different (1 result, 1 arguments)\n")
    assert "step 1 of 'order' differs" in wbengine("flow", "diff", first, second, "--all").out


def test_signals_inputs_and_missing_steps_are_compared(
    wbengine: Command, store: base.Backend
) -> None:
    first = run(store, ["a"])
    assert ("signal", "step 2 of 'order'", "yes", "no") in diff(
        wbengine, first, run(store, ["a"], "no")
    )
    kinds = [each[:2] for each in diff(wbengine, first, run(store, ["a", "b"]))]
    assert kinds == [
        ("value", "input 'items'"),
        ("inserted", "step 2 of 'order'"),
        ("inserted", "step 3 of 'order'"),
    ]


def test_inserted_and_removed_steps_leave_later_ones_equal(
    wbengine: Command, store: base.Backend
) -> None:
    first = run(store, ["a", "b", "a", "b"])
    second = run(store, ["a", "c", "b", "a", "b"], c=9)
    path = f"{__name__}:quote"
    quote, charge = f"{path}(...)", f"{__name__}:charge(...)"
    assert diff(wbengine, first, second)[1:] == [
        ("inserted", "step 2 of 'order'", None, quote),
        ("inserted", "step 3 of 'order'", None, charge),
    ]
    assert diff(wbengine, second, first)[1:] == [
        ("removed", "step 2 of 'order'", quote, None),
        ("removed", "step 3 of 'order'", charge, None),
    ]


def test_changed_step_after_an_inserted_one_names_both_positions(
    wbengine: Command, store: base.Backend
) -> None:
    first = run(store, ["a", "b", "a", "b"])
    second = run(store, ["a", "c", "b", "a", "b"], "no", c=9)
    assert [each[:2] for each in diff(wbengine, first, second)][3:] == [
        ("signal", "step 8 of 'order' (step 10 of the second flow)")
    ]


def test_equal_steps_of_long_workflows_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An early change of arguments and an inserted step do not make the comparison quadratic."""
    compared = [0]

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared[0] += 1
            return str.__eq__(self, other)

    def steps(count: int, digest: str, skipped: int = 0) -> list[Any]:
        notes = [
            _step_notes.StepNote("w", 1, position, Key(f"task {position % 2}"), digest)
            for position in range(skipped, count)
        ]
        return [_flow_differences._Step(note, models.TaskDetail("t")) for note in notes]

    pairs = list(_flow_differences._aligned(steps(2001, "x"), steps(2001, "y", skipped=1)))
    assert len(pairs) == 2001 and pairs[0][1] is None
    assert compared[0] < 5 * 2001


def test_failure_is_compared_before_the_state(wbengine: Command, store: base.Backend) -> None:
    first, second = run(store, ["a"]), run(store, ["a"], a=101)
    kinds = [each[:2] for each in diff(wbengine, first, second)]
    assert kinds == [
        ("result", "step 0 of 'order'"),
        ("arguments", "step 1 of 'order'"),
        ("removed", "step 2 of 'order'"),
        ("failure", "task 'order'"),
    ]


def test_tasks_of_graphs_are_compared_by_name(wbengine: Command, store: base.Backend) -> None:
    uuids = []
    for names in ("one", "two"), ("one", "three"):
        flow = linear_flow.Flow("greetings").add(*map(Greet, names))
        engine = engines.load(flow, inputs={"name": names[1]}, backend=store)
        engine.run()
        uuids.append(engine.storage.flow_uuid)
    assert [each[:2] for each in diff(wbengine, *uuids)] == [
        ("value", "input 'name'"),
        ("result", "task 'one'"),
        ("presence", "task 'two'"),
        ("presence", "task 'three'"),
    ]
