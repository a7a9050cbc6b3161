"""From names and options to engines; errors say what would have been right."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from wbengine import engines, exceptions, states, task
from wbengine.engines import loading, local
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import backends, models


class Plain(task.Task):
    def execute(self) -> None:
        pass


class Needs(task.Task):
    def execute(self, apple: int) -> None:
        pass


def make_flow(name: str, count: int = 1) -> linear_flow.Flow:
    return linear_flow.Flow(name).add(*[Plain(f"t{n}") for n in range(count)])


def test_kinds_and_uris() -> None:
    """A kind, or a URI with options; keyword options win."""
    assert isinstance(engines.load(Plain("p")), local.SerialActionEngine)
    engine = engines.load(
        Plain("p"), engine="parallel://?max_workers=2&never_resolve=yes", max_workers=5
    )
    assert isinstance(engine, local.ParallelActionEngine)
    assert dict(engine.options) == {"max_workers": 5, "never_resolve": "yes"}


def test_unknown_kinds_name_the_known_ones() -> None:
    """And the nearest."""
    with pytest.raises(exceptions.NotFound, match=r"'paralel'.*'parallel'.*serial"):
        engines.load(Plain("p"), engine="paralel")


def test_unknown_options_name_the_nearest() -> None:
    """A misspelt option would otherwise be ignored in silence."""
    with pytest.raises(ValueError, match=r"'max_worker'.*'max_workers'"):
        engines.load(Plain("p"), engine="parallel", max_worker=2)
    with pytest.raises(ValueError, match="'executor'"):
        engines.load(Plain("p"), engine="serial", executor="threads")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"executor": "thraeds"}, ValueError, "'thraeds'.*'threads'"),
        ({"executor": 7}, TypeError, "7"),
        ({"max_workers": 0}, ValueError, "at least 1"),
        ({"never_resolve": "maybe"}, ValueError, "never_resolve='maybe'"),
    ],
)
def test_options_of_the_wrong_kind(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """The error names option and value."""
    with pytest.raises(error, match=text):
        engines.load(Plain("p"), engine="parallel", **options)


def test_duplicate_names_are_refused_at_load() -> None:
    """Before anything runs."""
    with pytest.raises(exceptions.Duplicate, match="p"):
        engines.load(linear_flow.Flow("f").add(Plain("p"), Plain("p")))


def test_missing_values_are_listed_once_with_near_names() -> None:
    """Each atom that lacks something is told about, in the chain of causes."""
    flow = unordered_flow.Flow("f").add(Needs("n1"), Needs("n2", rebind=["pear"]), Needs("n3"))
    engine = engines.load(flow, store={"appel": 1})
    with pytest.raises(exceptions.MissingDependencies) as caught:
        engine.run()
    assert caught.value.missing_requirements == ["apple", "pear"]
    text = str(caught.value)
    first = text.splitlines()[0]
    assert "requires 'apple' (did you mean 'appel'?), 'pear', but" in first
    asked = "(asked for as 'apple' of 'n1', 'apple', 'pear' of 'n2', 'apple' of 'n3')"
    assert first.endswith(asked)
    assert "'appel'" in text
    assert all(name in text for name in ("n1", "n2", "n3", "apple from pear"))
    assert engine.storage.get_flow_state() == states.PENDING


def test_ten_thousand_missing_values_are_told_briefly() -> None:
    """The chain of causes ends somewhere."""
    flow = unordered_flow.Flow("f").add(*[Needs(f"n{n}") for n in range(300)])
    with pytest.raises(exceptions.MissingDependencies) as caught:
        engines.run(flow)
    assert len(str(caught.value).splitlines()) < 100


def test_an_order_must_be_kept() -> None:
    """compile, prepare, validate; reset and suspend need them too."""
    engine = local.SerialActionEngine(make_flow("f"), models.FlowDetail("f"))
    for early in (engine.prepare, engine.validate, engine.suspend, engine.reset):
        with pytest.raises(exceptions.InvalidState, match="compiled"):
            early()
    assert engine.compilation is None
    assert engine.statistics == {}
    engine.compile()
    for early in (engine.validate, engine.reset):
        with pytest.raises(exceptions.InvalidState, match="prepared"):
            early()
    engine.run()
    assert engine.statistics["completed"] == 1
    assert set(engine.statistics) == {
        "seconds_per_state", "active_for", "completed", "awaiting", "incomplete",
        "discarded_failures",
    }  # fmt: skip


def test_statistics_can_be_left_out() -> None:
    """Then no clock is read."""
    engine = engines.load(make_flow("f"), gather_statistics=False)
    engine.run()
    assert engine.statistics["seconds_per_state"] == {}


def test_injected_constants_can_be_kept() -> None:
    """`inject_transient=False` writes what atoms inject."""
    flow = linear_flow.Flow("f").add(Needs("n", inject={"apple": 1}))
    for transient, kept in ((True, None), (False, {"apple": 1})):
        engine = engines.load(flow, inject_transient=transient)
        engine.run()
        assert engine.storage.record("n").meta.get("injected") == kept


# -- factories ---------------------------------------------------------------------------------


def test_a_flow_made_by_a_factory_is_found_again() -> None:
    """The record says what made it; the engine goes on where it stopped."""
    with backends.backend("memory") as backend:
        engine = engines.load_from_factory(
            make_flow, ["made"], {"count": 2}, backend=backend, store={"x": 1}
        )
        engine.atom_notifier.register(states.SUCCESS, lambda state, details: engine.suspend())
        engine.run()
        with backend.get_connection() as connection:
            detail = connection.get_flow_details(engine.storage.flow_uuid)
        assert len(engines.flow_from_detail(detail)) == 2
        again = engines.load_from_detail(detail, backend=backend)
        again.run()
        assert again.storage.get_flow_state() == states.SUCCESS
        assert again.storage.fetch("x") == 1
        assert again.storage.record("t0").attempt == 1


def test_factories_must_be_importable() -> None:
    """A lambda cannot be found again by name."""
    with pytest.raises(ValueError, match="lambda"):
        engines.load_from_factory(lambda: make_flow("f"))
    with pytest.raises(ValueError, match="does not say"):
        engines.flow_from_detail(models.FlowDetail("f"))


# -- views -------------------------------------------------------------------------------------


def test_the_compilation_as_graphs() -> None:
    """Made on demand, with TaskFlow's attributes; every flow ends in a terminator."""
    inner = linear_flow.Flow("in").add(Plain("b"))
    flow = linear_flow.Flow("f").add(Plain("a"), inner)
    engine = engines.load(flow)
    compilation: Any = engine.compilation  # type: ignore[attr-defined]
    graph = compilation.execution_graph
    kinds = {getattr(node, "name", None): data["kind"] for node, data in graph.nodes(data=True)}
    assert kinds == {
        "f": "flow", "a": "task", "in": "flow", "b": "task", "in[$]": "flow_end",
        "f[$]": "flow_end",
    }  # fmt: skip
    assert {node.name for node in graph if graph.nodes[node]["noop"]} == {
        "f",
        "in",
        "in[$]",
        "f[$]",
    }
    assert [node.name for node in graph.successors(flow)] == ["a"]
    assert {node.name for node in compilation.hierarchy.successors(flow)} == {"a", "in"}
    assert compilation.execution_graph is graph


def test_what_a_worker_imports_does_not_load_the_engine() -> None:
    """`wbengine.engines` resolves its names on first use."""
    code = (
        "import sys, wbengine.engines as e; "
        "assert not [m for m in sys.modules if m in ('wbengine.storage', 'networkx')"
        " or m.startswith('wbengine._core')]; "
        "assert 'load' in dir(e); e.load; "
        "assert 'wbengine.storage' in sys.modules and 'networkx' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        engines.nothing  # noqa: B018
    assert engines.load is loading.load
