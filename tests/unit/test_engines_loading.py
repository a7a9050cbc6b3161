"""Loading of engines by name and options, and error messages with suggestions."""

from __future__ import annotations

import contextlib
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine._configuration import named_options
from wbengine._runtime import executors
from wbengine.engines import _loading, _local
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends, models


class Plain(task.Task):
    def execute(self) -> None:
        pass


class Odd(task.Task):
    def execute(self) -> Any:
        return object()


class Needs(task.Task):
    def execute(self, apple: int) -> None:
        pass


def make_flow(name: str, count: int = 1) -> linear_flow.Flow:
    return linear_flow.Flow(name).add(*[Plain(f"t{n}") for n in range(count)])


def test_engine_is_selected_by_kind_or_uri() -> None:
    """Keyword options take precedence over options of the URI."""
    assert isinstance(engines.load(Plain("p")), _local.SerialActionEngine)
    engine = engines.load(
        Plain("p"), engine="parallel://?max_workers=2&never_resolve=yes", max_workers=5
    )
    assert isinstance(engine, _local.ParallelActionEngine)
    assert dict(engine.options) == {"max_workers": 5, "never_resolve": "yes"}


@pytest.mark.parametrize(
    ("conf", "options"),
    [
        ("parallel", {}),
        ("parallel://?max_workers=2", {"max_workers": "2"}),
        ({"engine": "parallel", "max_workers": 2}, {"max_workers": 2}),
        ({"engine": "parallel", "never_resolve": False}, {}),
        ("parallel://?never_resolve=no", {}),
    ],
    ids=["kind", "uri", "dict", "dict-flag", "uri-flag"],
)
@pytest.mark.parametrize("load", [engines.load, engines.load_from_factory])
def test_engine_conf_selects_engine_and_options(conf: Any, options: Any, load: Any) -> None:
    """Other options take precedence over TaskFlow's old one; the warning names the caller."""
    flow = Plain("p") if load is engines.load else make_flow
    more = {} if load is engines.load else {"factory_args": ("f",)}
    with pytest.warns(DeprecationWarning, match="engine_conf= is deprecated") as caught:
        engine = load(flow, engine_conf=conf, never_resolve=True, **more)
    assert isinstance(engine, _local.ParallelActionEngine)
    assert engine.options == {**options, "never_resolve": True}
    with pytest.warns(DeprecationWarning) as warned:
        assert engines.run(Plain("p"), engine_conf=conf, max_workers=3) == {}
    assert [each.filename for each in (*caught, *warned)] == [__file__, __file__]


@pytest.mark.parametrize(
    ("conf", "error", "words"),
    [
        (3, TypeError, "engine_conf must be a kind, a URI or a dict, got int"),
        ({"engine": "paralel"}, exceptions.NotFound, r"'paralel' .*'parallel'"),
        ({"max_wrkers": 3}, ValueError, r"'max_wrkers' .*'max_workers'"),
    ],
    ids=["type", "kind", "option"],
)
def test_wrong_engine_conf_is_refused(conf: Any, error: type[Exception], words: str) -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(error, match=words):
        engines.load(Plain("p"), engine_conf=conf)


def test_serial_engine_accepts_options_of_parallel() -> None:
    """A service may configure the kind, and pass an executor in any case."""
    with futures.ThreadPoolExecutor(1) as pool:
        for kind in ("serial", "parallel", None, "default"):
            loaded = engines.load(Plain("p"), engine=kind, executor=pool, max_workers=3)
            loaded.run()
            assert loaded.storage.get_flow_state() == states.SUCCESS
    engines.run(Plain("p"), engine="parallel", wait_timeout=0.1)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            ("thread", "threads", "Threaded", "greenthread", "GreenThreads", "greenthreaded"),
            executors.ThreadTaskExecutor,
        ),
        (("process", "processes"), executors.ProcessTaskExecutor),
    ],
    ids=["threads", "processes"],
)
def test_executor_kind_is_selected_by_word(words: tuple[str, ...], kind: type[Any]) -> None:
    """Case is ignored, and URIs accept the same words."""
    for word in words:
        for engine in (
            engines.load(Plain("p"), engine="parallel", executor=word),
            engines.load(Plain("p"), engine=f"parallel://?executor={word}"),
        ):
            assert type(engine.executor) is kind, word  # type: ignore[attr-defined]


def test_strict_results_cannot_be_set_for_given_executor() -> None:
    """The engine cannot change an existing executor."""
    made = executors.ThreadTaskExecutor(strict=True)
    with pytest.raises(ValueError, match="construct it with strict=True"):
        engines.load(Plain("p"), engine="parallel", executor=made, strict_results=True)
    loaded = engines.load(Odd("o"), engine="parallel", executor=made)
    with pytest.raises(exceptions.NotEncodable, match="result: object"):
        loaded.run()


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("YES", True), ("1", True), ("on", True), ("false", False), ("No", False)],
)
def test_flag_options_accept_words(text: str, value: bool) -> None:
    """Options in URIs are always text."""
    for found in (named_options.flag("f", text), named_options.flag("f", value)):
        assert found is value
    engine = engines.load(Odd("o"), engine=f"serial://?strict_results={text}")
    with pytest.raises(exceptions.NotEncodable) if value else contextlib.nullcontext():
        engine.run()


def test_worker_based_options_in_uri_are_converted() -> None:
    engine = engines.load(
        Plain("p"),
        engine="worker-based://?url=memory://uri&topics=a,b.*&transition_timeout=none"
        "&worker_expiry=2.5&strict_results=true&exchange=x",
    )
    executor: Any = engine.executor  # type: ignore[attr-defined]
    assert executor.finder.topic_patterns == ("a", "b.*")
    assert executor._tracker._timeout is None
    with pytest.raises(ValueError, match=r"transition_timeout.*'soon'"):
        engines.load(Plain("p"), engine="worker-based", transition_timeout="soon")


def test_missing_values_are_listed_once_with_suggestions() -> None:
    """The chain of causes names each atom that lacks a value."""
    flow = unordered_flow.Flow("f").add(Needs("n1"), Needs("n2", rebind=["pear"]), Needs("n3"))
    engine = engines.load(flow, store={"appel": 1})
    with pytest.raises(exceptions.MissingDependencies) as caught:
        engine.run()
    assert caught.value.missing_requirements == ["apple", "pear"]
    text = str(caught.value)
    first = text.splitlines()[0]
    assert "requires 'apple' (did you mean 'appel'?), 'pear', but" in first
    asked = "(requested as 'apple' of 'n1', 'apple', 'pear' of 'n2', 'apple' of 'n3')"
    assert first.endswith(asked)
    assert "'appel'" in text
    assert all(name in text for name in ("n1", "n2", "n3", "apple from pear"))
    assert engine.storage.get_flow_state() == states.PENDING


def test_error_about_many_missing_values_is_short() -> None:
    """The chain of causes is truncated."""
    flow = unordered_flow.Flow("f").add(*[Needs(f"n{n}") for n in range(300)])
    with pytest.raises(exceptions.MissingDependencies) as caught:
        engines.run(flow)
    assert len(str(caught.value).splitlines()) < 100


def test_engine_methods_called_out_of_order_raise() -> None:
    """The order is compile, prepare, validate; `reset` and `suspend` depend on it too."""
    engine = _local.SerialActionEngine(make_flow("f"), models.FlowDetail("f"))
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
        "discarded_failures", "withdrawn",
    }  # fmt: skip


def test_injected_values_are_stored_if_not_transient() -> None:
    flow = linear_flow.Flow("f").add(Needs("n", inject={"apple": 1}))
    for transient, kept in ((True, None), (False, {"apple": 1})):
        engine = engines.load(flow, inject_transient=transient)
        engine.run()
        assert engine.storage.record("n").meta.get("injected") == kept


# -- factories ---------------------------------------------------------------------------------


def test_flow_of_factory_is_rebuilt_from_its_record() -> None:
    """The record contains the factory, and the engine resumes after the last completed task."""
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


def test_factory_may_be_given_by_name() -> None:
    """`save_factory_details` records a factory without an engine."""
    name = f"{__name__}.make_flow"
    engine = engines.load_from_factory(name, ("made",), backend={"connection": "memory"})
    assert engine.storage.flow_meta["factory"] == {"name": name, "args": ["made"], "kwargs": {}}
    detail = models.FlowDetail("d")
    engines.save_factory_details(detail, make_flow, None, {"name": "kept", "count": 3})
    assert detail.meta["factory"]["kwargs"] == {"name": "kept", "count": 3}
    assert len(engines.flow_from_detail(detail)) == 3
    loaded = engines.load_from_detail(detail, engine="parallel")
    loaded.run()
    assert len(loaded.storage.get_atoms_states(["t0", "t1", "t2"])) == 3


@pytest.mark.parametrize("load", [engines.load, engines.load_from_factory])
def test_stored_flow_records_its_engine_kind(load: Any) -> None:
    """Options are not stored, because they may contain a password."""
    made = make_flow("f") if load is engines.load else make_flow
    given = {} if load is engines.load else {"factory_args": ["f"]}
    with backends.backend("memory") as backend:
        engine = load(made, backend=backend, engine="parallel://?max_workers=2", **given)
        with backend.get_connection() as connection:
            detail = connection.get_flow_details(engine.storage.flow_uuid)
    assert detail.meta[models.ENGINE] == "parallel"


def test_factories_must_be_importable() -> None:
    """A lambda cannot be imported by name."""
    with pytest.raises(ValueError, match="lambda"):
        engines.load_from_factory(lambda: make_flow("f"))
    with pytest.raises(ValueError, match="does not record"):
        engines.flow_from_detail(models.FlowDetail("f"))


# -- views -------------------------------------------------------------------------------------


def graph_of_everything() -> tuple[Any, Any]:
    """Return a flow with all kinds of links, and its compilation."""
    first, last = Plain("first", provides="apple"), Needs("last")
    deep = unordered_flow.Flow("deep").add(Plain("c"))
    inner = linear_flow.Flow("in", retry=retry.Times(2, "r")).add(Plain("b"), deep)
    flow = graph_flow.Flow("f").add(first, inner, last)
    flow.link(first, inner)
    flow.link(inner, last, decider=lambda history: True, decider_depth="flow")
    return flow, engines.load(flow).compilation  # type: ignore[attr-defined]


def test_graph_nodes_have_kind_noop_and_retry() -> None:
    _, compilation = graph_of_everything()
    graph = compilation.execution_graph
    known = {node.name: dict(data) for node, data in graph.nodes(data=True)}
    assert all(data["noop"] == data["kind"].startswith("flow") for data in known.values())
    assert {
        name: data["retry"].name for name, data in known.items() if "retry" in data
    } == dict.fromkeys(("b", "deep", "c", "deep[$]"), "r")
    assert known["r"]["kind"] == compilation.RETRY == "retry"
    assert (compilation.TASK, compilation.FLOW, compilation.FLOW_END) == (
        "task",
        "flow",
        "flow_end",
    )


def test_graph_edges_have_their_reasons() -> None:
    _, compilation = graph_of_everything()
    found = {
        (u.name, v.name): {key: value for key, value in data.items() if key != "decider"}
        for u, v, data in compilation.execution_graph.edges(data=True)
    }
    invariant = {"invariant": True}
    assert found == {
        ("f", "first"): invariant,
        ("first", "in"): {"manual": True},
        ("first", "last"): {"reasons": {"apple"}},
        ("in", "r"): invariant,
        ("r", "b"): {"invariant": True, "retry": True},
        ("b", "deep"): invariant,
        ("deep", "c"): invariant,
        ("c", "deep[$]"): invariant,
        ("deep[$]", "in[$]"): invariant,
        ("in[$]", "last"): {"manual": True, "decider_depth": "FLOW"},
        ("last", "f[$]"): invariant,
    }
    # A retry controller of an empty flow starts no atoms.
    engine = engines.load(linear_flow.Flow("empty", retry.Times(1, "r")))
    assert engine.compilation is not None
    edges = engine.compilation.execution_graph.edges(data=True)
    assert [(v.name, data) for u, v, data in edges] == [("r", invariant), ("empty[$]", invariant)]


def test_execution_graph_has_methods_of_taskflow() -> None:
    """These are the methods that applications call."""
    flow, compilation = graph_of_everything()
    graph = compilation.execution_graph
    names = [node.name for node in graph.topological_sort()]
    assert names[0] == "f" and names[-1] == "f[$]" and len(names) == len(graph)
    assert [node.name for node in graph.no_predecessors_iter()] == ["f"]
    assert [node.name for node in graph.no_successors_iter()] == ["f[$]"]
    last = next(node for node in graph if node.name == "last")
    assert [n.name for n in graph.bfs_predecessors_iter(last)][:2] == ["first", "in[$]"]
    assert graph.is_directed_acyclic()
    assert "Nodes: 11" in graph.pformat() and "Cycles: 0" in graph.pformat()
    dot = graph.export_to_dot()
    assert dot.startswith('digraph "f" {') and dot.count(" -> ") == 11
    assert 'label="\\"first==1.0\\"", kind="task"' in dot
    assert 'reasons="apple"' in dot
    assert graph.freeze() is graph and graph.nodes[flow]["kind"] == "flow"


def test_hierarchy_is_tree_and_graph() -> None:
    """It has the methods of TaskFlow's tree and those of a graph."""
    flow, compilation = graph_of_everything()
    hierarchy = compilation.hierarchy
    assert hierarchy.item is flow and hierarchy.root.item is flow
    walk = [node.item.name for node in hierarchy.dfs_iter(include_self=True)]
    assert walk == ["f", "first", "in", "r", "b", "deep", "c", "last"]
    assert [n.item.name for n in hierarchy.bfs_iter(right_to_left=True)][:3] == [
        "first",
        "in",
        "last",
    ]
    assert hierarchy.pformat(stringify_node=lambda node: node.item.name).splitlines() == [
        "f", "|__first", "|__in", "|  |__r", "|  |__b", "|  |__deep", "|     |__c", "|__last",
    ]  # fmt: skip
    deep = next(node for node in hierarchy if node.name == "deep")
    assert hierarchy.find(deep).metadata == {"kind": "flow"}
    assert [node.item.name for node in hierarchy.find(deep).path_iter()] == ["deep", "in", "f"]
    assert {node.name for node in hierarchy.successors(deep)} == {"c"}
    part = hierarchy.subgraph([deep]).copy()
    assert "Nodes: 1" in part.pformat()
    with pytest.raises(ValueError, match="no root"):
        part.find(deep)


@pytest.mark.parametrize("depth", [1, 10_000])
def test_graph_and_hierarchy_support_deep_flows_and_single_task(depth: int) -> None:
    """The implementation does not recurse."""
    task_only: Any = engines.load(Plain("p")).compilation  # type: ignore[attr-defined]
    assert [node.name for node in task_only.hierarchy] == ["p"]
    assert task_only.hierarchy.pformat() == '"p==1.0"'
    flow = linear_flow.Flow("f")
    for number in range(depth):
        flow = linear_flow.Flow(f"f{number}").add(flow)
    compilation: Any = engines.load(flow).compilation  # type: ignore[attr-defined]
    assert len(compilation.execution_graph) == 2 * len(compilation.hierarchy) == 2 * (depth + 1)


# -- listening ---------------------------------------------------------------------------------


def test_notifiers_receive_documented_details() -> None:
    flow = linear_flow.Flow("f", retry=retry.Times(1, "r")).add(Plain("p"))
    engine: Any = engines.load(flow)
    told: list[tuple[str, dict[str, Any]]] = []
    for notifier in (engine.notifier, engine.atom_notifier):
        notifier.register("*", lambda state, details: told.append((state, details)))
    engine.run()
    storage = engine.storage
    of_flow = [(state, details) for state, details in told if "engine" in details]
    assert [(state, details["old_state"]) for state, details in of_flow] == [
        ("RUNNING", "PENDING"), ("SUCCESS", "RUNNING"),
    ]  # fmt: skip
    assert of_flow[0][1] == {
        "engine": engine, "flow_name": "f", "flow_uuid": storage.flow_uuid, "old_state": "PENDING",
    }  # fmt: skip
    for kind, name, result in (("task", "p", None), ("retry", "r", 1)):
        mine = [(state, details) for state, details in told if f"{kind}_name" in details]
        assert [(state, details["old_state"]) for state, details in mine] == [
            ("RUNNING", "PENDING"), ("SUCCESS", "RUNNING"),
        ]  # fmt: skip
        assert mine[1][1][f"{kind}_name"] == name
        assert mine[1][1][f"{kind}_uuid"] == storage.get_atom_uuid(name)
        assert mine[1][1]["result"] == result and "result" not in mine[0][1]


def test_unknown_name_of_engines_package_is_refused() -> None:
    assert "load" in dir(engines) and engines.load is _loading.load
    with pytest.raises(AttributeError, match="nothing"):
        engines.nothing  # noqa: B018


def test_plug_in_without_known_options_gets_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_engine.py").write_text(
        "from wbengine.engines import _local as local\n"
        "def make(flow, detail, backend, given):\n"
        "    return local.SerialActionEngine(flow, detail, backend, {'lease': given['anything']})\n"
    )
    info = tmp_path / "own_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own_engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wbengine.engines]\nown = own_engine:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert engines.load(Plain("p"), engine="own", anything=3).options == {"lease": 3}
