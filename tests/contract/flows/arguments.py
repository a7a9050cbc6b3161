"""Flows: sources of arguments and results."""

from __future__ import annotations

from typing import Any

from tests.contract.flows import tasks
from tests.contract.flows.case import flow
from wbengine import exceptions, task
from wbengine.engines import base
from wbengine.patterns import linear_flow, unordered_flow


@flow(">a +a >b +b", results={"whole": ("x", "y"), "copy": ("x", "y")})
def provides_one_name() -> Any:
    """A string names the whole result, even if that is a tuple."""
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="whole", inject={"value": ("x", "y")}),
        tasks.Give("b", provides="copy", rebind={"value": "whole"}),
    )


@flow(">a +a >b +b", results={"one": 1, "two": 2, "sum": 3})
def provides_parts_by_position() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides=("one", "two"), inject={"value": (1, 2, 3)}),
        tasks.Sum("b", provides="sum", rebind=["one", "two"]),
    )


@flow(">a +a >b +b", results={"one": 1, "two": 2, "sum": 3})
def provides_parts_by_key() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides={"one", "two"}, inject={"value": {"one": 1, "two": 2}}),
        tasks.Sum("b", provides="sum", rebind={"x": "one", "y": "two"}),
    )


@flow(
    ">a +a >b !b <b -b <a -a",
    results={},
    raises={"b": (exceptions.NotFound, "'two'")},
    told={"a": ["(1,) | b"]},
)
def result_shorter_than_provides_fails_its_consumer() -> Any:
    """An atom that requires a missing value fails before it runs."""
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides=("one", "two"), inject={"value": (1,)}),
        tasks.Plain("b", rebind={"x": "two"}),
    )


@flow(">a +a", store={"first": 1, "second": 2}, results={"sum": 3})
def rebind_by_list() -> Any:
    """Names apply to required parameters in order; other parameters use their own names."""
    return linear_flow.Flow("f").add(tasks.Sum("a", provides="sum", rebind=["first", "second"]))


@flow(">a +a", store={"other": 4}, results={"sum": 14})
def rebind_by_name() -> Any:
    return linear_flow.Flow("f").add(tasks.Add("a", provides="sum", rebind={"x": "other"}))


@flow(">a +a >b +b >c +c", store={"value": "store"}, results={"a": 1, "b": "store", "c": "mine"})
def injection_shadows_store_and_store_shadows_providers() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Give("a", provides="a", inject={"value": 1}),
        tasks.Give("b", provides="b"),
        tasks.Give("c", provides="c", inject={"value": "mine"}),
    )


@flow(
    ">a +a >b +b", store={"made": "store"},
    results={"made": ["store", "a"], "b": "store"},
)  # fmt: skip
def store_shadows_results_of_tasks() -> Any:
    """All values of the name are stored; arguments use that of the store."""
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="made"), tasks.Give("b", provides="b", rebind=["made"])
    )


def _inject(engine: base.Engine) -> None:
    engine.storage.inject({"value": "later"}, transient=True)
    engine.prepare()
    engine.storage.inject_atom_args("b", {"value": "for b"}, transient=False)
    engine.run()


@flow(">a +a >b +b", results={"value": "later", "a": "later", "b": "for b"}, drive=_inject)
def injection_before_and_after_prepare() -> Any:
    return linear_flow.Flow("f").add(tasks.Give("a", provides="a"), tasks.Give("b", provides="b"))


@flow(">a +a", store={"x": 1}, results={"sum": 11})
def optional_without_provider() -> Any:
    """The default applies."""
    return linear_flow.Flow("f").add(tasks.Add("a", provides="sum"))


@flow(">a +a", store={"x": 1, "y": 2}, results={"sum": 3})
def optional_with_provider() -> Any:
    return linear_flow.Flow("f").add(tasks.Add("a", provides="sum"))


@flow(">a +a >b +b", store={"x": 1}, results={"sum": 11, "y": "b"})
def optional_with_later_provider() -> Any:
    """A value that is provided later is not visible, and causes no error."""
    return linear_flow.Flow("f").add(tasks.Add("a", provides="sum"), tasks.Step("b", provides="y"))


@flow(">a +a", store={"p": 1, "q": 2}, results={"a": [("p", 1), ("q", 2)]})
def requires_adds_names() -> Any:
    return linear_flow.Flow("f").add(tasks.Keywords("a", provides="a", requires=["p", "q"]))


@flow(">a +a", store={"x": 2}, results={"a": 6})
def keyword_only_parameters() -> Any:
    return linear_flow.Flow("f").add(tasks.KeywordOnly("a", provides="a"))


@flow(">a +a", store={"x": 1, "y": 2}, results={"a": 11})
def ignored_parameters_are_not_looked_up() -> Any:
    return linear_flow.Flow("f").add(tasks.Add("a", provides="a", ignore_list=["y"]))


@flow(">a +a", store={"p": 1, "x": 7}, results={"a": [("p", 1)]})
def without_auto_extract_only_required_names_are_passed() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Keywords("a", provides="a", requires=["p"], auto_extract=False)
    )


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"x": 1, "y": 2, "w": 3},
    raises={"b": (ValueError, "b fails")},
    told={"a": [[1, 3, 5, ["flow_failures", "result"]]], "b": ["ValueError(b fails) | b"]},
)
def revert_takes_its_own_values() -> Any:
    return linear_flow.Flow("f").add(
        tasks.RevertsWith("a", revert_rebind={"y": "w"}), tasks.Boom("b")
    )


@flow(
    ">a +a >b +b >c !c <c -c <b -b <a -a",
    raises={"c": (ValueError, "c fails")},
    told={"a": ["alone"], "b": ["b | c"], "c": ["ValueError(c fails) | c"]},
)
def reverts_receive_result_and_failures() -> Any:
    """`revert` receives the arguments it accepts; a failed task receives its own failure."""
    return linear_flow.Flow("f").add(tasks.RevertsAlone("a"), tasks.Step("b"), tasks.Boom("c"))


def _values_of_x(engine: base.Engine) -> None:
    assert engine.storage.fetch("x") == "a"
    assert engine.storage.fetch("x", many_handler=list) == ["a", "b"]


@flow(
    ">a >b +a +b >last +last", order=["+a >last", "+b >last"],
    results={"x": ["a", "b"], "last": "b"}, check=_values_of_x,
)  # fmt: skip
def several_unordered_providers() -> Any:
    """Of unordered providers, the one added last is used."""
    inner = unordered_flow.Flow("in").add(
        tasks.Step("a", provides="x"), tasks.Step("b", provides="x")
    )
    return linear_flow.Flow("f").add(inner, tasks.Give("last", provides="last", rebind=["x"]))


@flow(">a +a >b +b >c +c", results={"x": ["a", "b"], "c": "b"})
def nearest_provider_is_used() -> Any:
    return linear_flow.Flow("f").add(
        tasks.Step("a", provides="x"),
        tasks.Step("b", provides="x"),
        tasks.Give("c", provides="c", rebind=["x"]),
    )


@flow(
    ">a +a >b >c +b +c", order=["+a >b", "+a >c"],
    results={"x": ["a", "b"], "c": "a"},
)  # fmt: skip
def unordered_sibling_is_not_visible() -> Any:
    """The search continues in the outer flow."""
    inner = unordered_flow.Flow("in").add(
        tasks.Step("b", provides="x"), tasks.Give("c", provides="c", rebind=["x"])
    )
    return linear_flow.Flow("f").add(tasks.Step("a", provides="x"), inner)


@flow(">b +b", store={"left": "four", "right": ""}, results={"lengths": [4, 0]})
def map_functor() -> Any:
    return linear_flow.Flow("f").add(tasks.Lengths("b"))


@flow(">b +b", store={"x": 1, "y": 2, "z": 3}, results={"total": 6})
def reduce_functor() -> Any:
    return linear_flow.Flow("f").add(tasks.Total("b"))


@flow(
    ">a +a >b !b <b -b <a -a",
    store={"text": "so"},
    raises={"b": (ValueError, "b fails")},
    told={"a": ["so! | b"], "b": ["ValueError(b fails) | b"]},
)
def functor_task_as_a_class() -> Any:
    return linear_flow.Flow("f").add(tasks.Shouting("a"), tasks.Boom("b"))


def _twice(value: int) -> int:
    return 2 * value


def _square(value: int) -> int:
    return value * value


def _here(made: task.Task) -> task.Task:
    """Mark a task as local: workers run only classes, not wrapped functions."""
    made.local = True
    return made


@flow(
    ">a +a >b +b >c +c >d +d", store={"value": 2},
    results={"a": 4, "b": [1, 4], "c": 16, "d": "d"},
)  # fmt: skip
def functor_tasks_of_functions_and_lambdas() -> Any:
    return linear_flow.Flow("f").add(
        _here(task.FunctorTask(_twice, "a", provides="a")),
        _here(task.MapFunctorTask(_square, ["p", "q"], "b", provides="b", inject={"p": 1, "q": 2})),
        _here(task.ReduceFunctorTask(lambda p, q: p * q, ["a", "r"], "c", "c", inject={"r": 4})),
        tasks.Step("d", provides="d"),
    )


@flow(
    ">a +a >b +b >c !c <c -c <b -b <a -a",
    store={"who": "you"},
    raises={"c": (ValueError, "c fails")},
    told={"a": ["hello you | c"], "b": ["goodbye you | c"], "c": ["ValueError(c fails) | c"]},
)
def decorated_functions() -> Any:
    return linear_flow.Flow("f").add(
        tasks.greet("a"), tasks.greet("b", inject={"greeting": "goodbye"}), tasks.Boom("c")
    )


@flow(
    ">a +a", store={"count": 4}, results={"done": "a"},
    heard={"a": [("update_progress", {"progress": n / 4}) for n in (0, 1, 2, 3, 4)]
           + [("update_progress", {"progress": 1.0})]},
)  # fmt: skip
def decorated_function_with_self_argument() -> Any:
    return linear_flow.Flow("f").add(tasks.steps_of("a", provides="done"))
