"""What a wrong program gets: one clear error, a legal state, and never a hang."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import sample_tasks
from wbengine import deciders, engines, exceptions, formatters, retry, states, storage, task
from wbengine.listeners import base, capturing, claims, progress, timing
from wbengine.listeners import logging as logs
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import backends, models
from wbengine.types import codec, notifier
from wbengine.types import failure as ft


class Plain(task.Task):
    def execute(self) -> None: ...


@task.task
def noted(x: Any = None) -> None: ...


class Stops(task.Task):
    def execute(self) -> None:
        next(iter(()))


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_task_that_raises_stop_iteration(kind: str) -> None:
    """It is raised as itself, although the run loop is a generator."""
    engine = engines.load(Stops("s"), engine=kind)
    with pytest.raises(StopIteration):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_run_iter_raises_what_the_flow_failed_with() -> None:
    def fail() -> None:
        raise KeyError("k")

    engine = engines.load(task.FunctorTask(fail, name="f"))
    with pytest.raises(KeyError):
        list(engine.run_iter())
    assert engine.storage.get_flow_state() == states.REVERTED


@pytest.mark.parametrize("flow", [None, 3, "flow", Plain, retry.Times(1, name="r")])
def test_loading_an_object_that_is_no_flow_is_refused(flow: Any) -> None:
    with pytest.raises(exceptions.NotAFlow, match="Only a flow or a task can be loaded") as caught:
        engines.load(flow)
    assert isinstance(caught.value, exceptions.CompilationFailure)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"store": 3}, "store must be a dict or pairs, not 3"),
        ({"store": ["a"]}, r"injected values must be a dict or pairs, not \['a'\]"),
        ({"flow_detail": 3}, "flow_detail must be a FlowDetail, not 3"),
        ({"book": 3}, "book must be a LogBook, not 3"),
        ({"backend": 3}, "backend must be a Backend, a dict of its options or a URI, not 3"),
        ({"engine": 3}, "engine must be the name of a kind, or a URI, not 3"),
    ],
)
def test_loading_with_arguments_of_a_wrong_type(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        engines.load(Plain("p"), **arguments)


@pytest.mark.parametrize("kind", ["parallel", "serial"])
@pytest.mark.parametrize("workers", [0, -1, "x", []])
def test_a_pool_of_no_size(workers: Any, kind: str) -> None:
    """The serial engine has no pool, and refuses the same: which it is may be configured."""
    with pytest.raises(ValueError, match=r"max_workers=.* is no whole number of 1 or more"):
        engines.load(Plain("p"), engine=kind, max_workers=workers)


def test_a_priority_that_is_no_number() -> None:
    only = Plain("p")
    only.priority = "high"  # type: ignore[assignment]
    with pytest.raises(exceptions.CompilationFailure, match=r"priority of atom 'p' .* not 'high'"):
        engines.load(linear_flow.Flow("f").add(only))


def test_asking_for_names_that_are_none() -> None:
    engine = engines.load(Plain("p"))
    engine.prepare()
    with pytest.raises(TypeError, match="A stored name is a str, not None"):
        engine.storage.fetch(None)  # type: ignore[arg-type]
    with pytest.raises(exceptions.NotFound, match="Unknown atom name None"):
        engine.storage.get_atom_state(None)  # type: ignore[arg-type]


def test_values_of_one_name_come_innermost_first() -> None:
    """What is inside a flow comes before the flow's retry; `fetch` gives the first."""
    inner = linear_flow.Flow("inner", retry.ForEach(["inner"], "r2", provides="x"))
    inner.add(task.FunctorTask(lambda: "task", name="t", provides="x"))
    flow = linear_flow.Flow("f", retry.ForEach(["outer"], "r1", provides="x")).add(inner)
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.fetch("x") == "task"
    assert engine.storage.fetch_all()["x"] == ["task", "inner", "outer"]
    assert [record.name for record in engine.storage.flow_detail] == ["t", "r2", "r1"]


def test_a_retry_that_could_not_be_reverted_provides_nothing() -> None:
    class Stuck(retry.AlwaysRevert):
        def revert(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("stuck")

    def fail() -> None:
        raise ValueError("x")

    flow = linear_flow.Flow("f", Stuck("r", provides="x"))
    engine = engines.load(flow.add(task.FunctorTask(fail, name="t")))
    with pytest.raises(KeyError, match="stuck"):
        engine.run()
    assert engine.storage.get_atom_state("r") == states.REVERT_FAILURE
    assert engine.storage.fetch_all() == {}


def test_deciders_of_an_empty_flow_are_not_asked() -> None:
    """There is nobody to be ignored; what comes after it runs, and running again asks nobody."""
    asked: list[Any] = []

    def decide(history: dict[str, Any]) -> bool:
        asked.append(history)
        return False

    a, b, empty = Plain("a"), Plain("b"), linear_flow.Flow("empty")
    flow = graph_flow.Flow("f").add(a, empty, b)
    engine = engines.load(flow.link(a, empty, decider=decide).link(empty, b))
    engine.run()
    engine.run()
    assert asked == []
    assert engine.storage.get_atom_state("b") == states.SUCCESS


def test_a_flow_detail_of_a_flow_that_was_loaded_before() -> None:
    detail = models.FlowDetail("f")
    engines.load(Plain("p"), flow_detail=detail).run()
    engine = engines.load(Plain("p"), flow_detail=detail)
    engine.run()
    assert engine.storage.get_attempt("p").attempt == 1  # type: ignore[union-attr]


# One row for each wrong program: what is done, what is raised, and what its text must say. -------


class Takes(task.Task):
    def execute(self, x: int, y: int = 0) -> None: ...


class Unmade(task.Task):
    """Forgot to call super().__init__()."""

    def __init__(self) -> None: ...

    def execute(self) -> None: ...


class Bodiless(task.Task): ...


async def pages() -> Any:
    yield 1


def by_position(x: int, /) -> None: ...


def nothing(**kwargs: Any) -> None: ...


def make_flow() -> Any:
    return linear_flow.Flow("made").add(Plain("p"))


def make_nothing() -> Any:
    return 7


A, B = Plain("charge"), Plain("ship")
LINE, GRAPH = linear_flow.Flow, graph_flow.Flow
FUNCTOR, MAP = task.FunctorTask, task.Map
CAUGHT = ft.Failure.from_exception(ValueError("x"))


def twice() -> Any:
    one = Plain("one")
    return LINE("f").add(one, LINE("g").add(one))


def itself() -> Any:
    flow = LINE("f")
    return flow.add(flow)


def both(x: str, y: str, name: str) -> Any:
    return FUNCTOR(eval(f"lambda {x}: 1"), name, provides=y)


ATOMS: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: Plain(3), TypeError, "name of an atom must be a str, not 3"),
    (lambda: Plain(""), ValueError, "must not be empty"),
    (lambda: Plain(provides=3), TypeError, "provides should be a str, set, list or tuple, not 3"),
    (lambda: Plain(provides=["a", 3]), TypeError, "provides should hold names .* not 3"),
    (lambda: Plain(requires=["x"]), ValueError, r"execute\(\) takes no 'x'"),
    (lambda: Takes(requires=3), TypeError, "should be a str or an iterable, not 3"),
    (lambda: Takes(requires=["yy"]), ValueError, r"takes no 'yy' \(did you mean 'y'\?\)"),
    (lambda: Takes(rebind=3), TypeError, "rebind value 3: expected a dict, list or tuple"),
    (lambda: Takes(rebind={"xx": "z"}), ValueError, r"takes no 'xx' \(did you mean 'x'\?\)"),
    (lambda: Takes(rebind={"x": 3}), TypeError, "Rebind should hold names .* not 3"),
    (lambda: Takes(rebind=["a", "b"]), ValueError, "takes no 'b'"),
    (lambda: Takes(inject=3), TypeError, "inject should be a dict, not 3"),
    (lambda: Takes(inject={3: 1}), TypeError, "inject should hold names .* not 3"),
    (lambda: Takes(auto_extract=False), ValueError, "Missing arguments .* needs 'x'"),
    (lambda: Takes(ignore_list=3), TypeError, "ignored names should be .* not 3"),
    (lambda: Takes(revert_requires=3), TypeError, "should be a str or an iterable, not 3"),
    (lambda: Bodiless(), TypeError, "abstract .*execute"),
    (lambda: engines.load(Unmade()), AttributeError, "Unmade .* must call super"),
    (lambda: FUNCTOR(3), ValueError, "executing must be callable, not 3"),
    (lambda: FUNCTOR(nothing, revert=3), ValueError, "reverting must be callable, not 3"),
    (lambda: FUNCTOR(by_position), ValueError, r"\['x'\] by position only"),
    (lambda: FUNCTOR(pages), ValueError, "asynchronous generator"),
    (lambda: task.MapFunctorTask(abs, "ab"), TypeError, "iterable of names, not 'ab'"),
    (lambda: task.MapFunctorTask(by_position, 3), TypeError, "iterable of names, not 3"),
    (lambda: task.MapFunctorTask(max, ["a"]) and task.MapFunctorTask(pow, ["a"]), ValueError,
     "exactly 1 argument"),
    (lambda: task.ReduceFunctorTask(pow, ["a"]), ValueError, "at least 2 names"),
    (lambda: task.task(3), TypeError, "above a function, not above 3"),
    (lambda: noted("a", retries=5), TypeError, r"noted.* 'retries': .*@task.task\(retries=...\)"),
    (lambda: noted("a", rebnd={}), TypeError, r"no option 'rebnd' \(did you mean 'rebind'"),
    (lambda: task.task(provide="x"), TypeError, r"no option 'provide' \(did you mean 'provides'"),
    (lambda: Plain("p").update_progress(None), TypeError, "progress of 'p' .* not None"),
    (lambda: Plain("p").update_progress("50%"), TypeError, "must be a number, not '50%'"),
    (lambda: Plain().notifier.register("update_progres", nothing), ValueError,
     "did you mean 'update_progress'"),
    (lambda: MAP(3), TypeError, "Map needs a task, not 3"),
    (lambda: MAP(Takes), TypeError, r"did you mean Takes\(\)"),
    (lambda: MAP(MAP(Takes("t"), item="x")), TypeError, "not another Map"),
    (lambda: MAP(retry.Times(1)), TypeError, "a retry runs no items"),
    (lambda: MAP(Takes("t"), item="z"), ValueError, "takes no argument 'z'.* it takes: x, y"),
    (lambda: MAP(Takes("t"), item="x", over=3), TypeError, "over of a Map must be a str, not 3"),
    (lambda: MAP(Takes("t"), item="x", on_item_failure="colect"), ValueError,
     "did you mean 'collect'"),
    (lambda: MAP(Takes("t"), item="x", max_in_flight=0), ValueError, "from 1, or None, not 0"),
]  # fmt: skip

RETRIES: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: retry.Retry("r"), TypeError, "abstract .*execute"),
    (lambda: retry.Times(True), TypeError, "attempts of a Times retry must be an int, not True"),
    (lambda: retry.Times(-1), ValueError, "attempts of a Times retry cannot be negative, as -1"),
    (lambda: retry.Times(1, retry_on="Value Error"), ValueError, "retry_on='Value Error' is not"),
    (lambda: retry.Times("3"), TypeError, "attempts of a Times retry must be an int, not '3'"),
    (lambda: retry.ForEach(3), TypeError, "values of a ForEach retry .* not 3"),
    (lambda: retry.Times(1, 3), TypeError, "name of an atom must be a str, not 3"),
    (lambda: retry.Times(1, backoff="1"), TypeError, "a Backoff or a number of seconds, not '1'"),
    (lambda: retry.Times(1, backoff=-1), ValueError, "delay of a Backoff .* -1"),
    (lambda: retry.Times(1, retry_on=3), TypeError, "retry_on takes exception classes .* not 3"),
    (lambda: retry.Times(1, give_up_on=[int]), TypeError, "give_up_on .* not <class 'int'>"),
    (lambda: retry.Backoff(multiplier="x"), TypeError, "multiplier of a Backoff .* not 'x'"),
    (lambda: retry.Backoff(jitter=-1), ValueError, "jitter of a Backoff .* -1"),
    (lambda: retry.History([(1, {"a": CAUGHT})]).caused_by(3), TypeError, "classes .* not 3"),
]  # fmt: skip

FLOWS: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: LINE("f", 3), TypeError, "retry of flow 'f' must be a Retry, not 3"),
    (lambda: LINE("f", retry.Times), TypeError, "must be a Retry, not <class"),
    (lambda: LINE("f").add(3), TypeError, "Flow 'f' takes tasks and flows, not 3"),
    (lambda: LINE("f").add(Plain), TypeError, r"add an instance: Plain\(\.\.\.\)"),
    (lambda: LINE("f").add([A]), TypeError, "one by one"),
    (lambda: GRAPH("f").add(nothing), TypeError, "wrap it: task.FunctorTask"),
    (lambda: LINE("f").add(retry.Times(1)), TypeError, r"sits on a flow: Flow\(name, retry="),
    (lambda: engines.load(LINE("f").add(Plain("a"), Plain("a"))), exceptions.Duplicate, "'a'"),
    (lambda: engines.load(twice()), ValueError, "'one' is in there twice"),
    (lambda: engines.load(itself()), ValueError, "Flow 'f' is in there twice"),
    (lambda: GRAPH("f").add(A).link(A, B), ValueError,
     "not found to link to: .*ship.* no member of flow 'f'"),
    (lambda: GRAPH("f").add(A).link(Plain("chrage"), A), ValueError,
     r"not found to link from: .*\(did you mean 'charge'\?\)"),
    (lambda: GRAPH("f").add(A).link(Plain("charge"), A), ValueError,
     "another object of that name is"),
    (lambda: GRAPH("f").add(A).link(A, A), exceptions.DependencyFailure, "charge -> charge"),
    (lambda: GRAPH("f").add(A, B).link(A, B).link(B, A), exceptions.DependencyFailure,
     "in a circle: ship -> charge -> ship"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=3), ValueError, "must be callable, not 3"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=pages), ValueError, "nobody would await it"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider_depth="all"), ValueError, "needs a decider"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=nothing, decider_depth="neighbour"),
     ValueError, r"depth 'neighbour' \(did you mean 'NEIGHBORS'"),
    (lambda: GRAPH("f").add(A).join(B, "any"), ValueError, "no member of flow 'f'"),
    (lambda: GRAPH("f").add(A).join(A, "anny"), ValueError, r"'anny' \(did you mean 'ANY'"),
    (lambda: GRAPH("f").add(A).join(A, 3), TypeError, "a Join or a string, not 3"),
    (lambda: GRAPH("f").add(both("**k", "x", "a"), both("**k", "x", "b"), Takes("c")),
     exceptions.AmbiguousDependency, "'c' requires 'x'.* provide: 'a', 'b'"),
    (lambda: GRAPH("f").add(both("y", "x", "a"), both("x", "y", "b")),
     exceptions.DependencyFailure, "b -> a -> b"),
    (lambda: graph_flow.TargetedFlow("f").set_target(A), ValueError, "no member of flow 'f'"),
    (lambda: deciders.Depth.translate("x"), ValueError, "one of ALL, FLOW, NEIGHBORS, ATOM"),
    (lambda: engines.run(Takes("t")), exceptions.MissingDependencies, "requires 'x'.* of 't'"),
    (lambda: engines.run(Takes("t", rebind=["sise"]), store={"size": 1}),
     exceptions.MissingDependencies, r"'sise' \(did you mean 'size'\?\).*as 'x'.* of 't'"),
    (lambda: engines.run(LINE("f").add(Takes("t"), both("**k", "x", "late"))),
     exceptions.MissingDependencies, "nothing that comes before provides it"),
]  # fmt: skip


def load(engine: str = "serial", **options: Any) -> Any:
    return engines.load(Plain("p"), engine=engine, **options)


def remote(**options: Any) -> Any:
    return load("worker-based", **{"url": "memory://wrong", **options})


LOADING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: load("seral"), exceptions.NotFound, "'seral' .*'serial'.*known kinds: default"),
    (lambda: load("://x"), exceptions.NotFound, "engine kind ''"),
    (lambda: load(namespace="nowhere"), exceptions.NotFound, "known kinds: none"),
    (lambda: load("serial://?never_resolv=1"), ValueError, "did you mean 'never_resolve'"),
    (lambda: load(never_resolve="maybe"), ValueError, "never_resolve='maybe' is neither"),
    (lambda: load(strict_results="maybe"), ValueError, "strict_results='maybe' is neither"),
    (lambda: load(topics=2), ValueError, "SerialActionEngine has no option 'topics'"),
    (lambda: load("parallel", max_worker=2), ValueError, "did you mean 'max_workers'"),
    (lambda: load("parallel", max_workers=1.5), ValueError, "max_workers=1.5 is no whole number"),
    (lambda: load("parallel", max_workers=True), ValueError, "max_workers=True is no whole number"),
    (lambda: load("parallel", executor="treads"), ValueError, "'treads' .*'threads'"),
    (lambda: load("parallel", executor=3), TypeError, "executor must be a word or a .* not 3"),
    (lambda: load(backend="memry"), exceptions.NotFound, "'memry' .*'memory'"),
    (lambda: load(backend={}), ValueError, "needs a 'connection'"),
    (lambda: load(store={1: 2}), TypeError, "name of an injected value is a str, not 1"),
    (lambda: remote(url=3), TypeError, "url of a broker must be a str, not 3"),
    (lambda: remote(url="amq://x"), ValueError, r"'amq' .*'amqp'"),
    (lambda: remote(transport="memry"), ValueError, "'memry' .*'memory'"),
    (lambda: remote(transport_options=3), TypeError, "transport_options must be a dict, not 3"),
    (lambda: remote(transport_options={"polling_interval": 0}), ValueError, "interval is 0"),
    (lambda: remote(transport_options={"poling_interval": 1}), ValueError,
     r"memory transport has no option 'poling_interval' \(did you mean 'polling_interval'"),
    (lambda: remote(url="filesystem:///tmp", transport_options={"data_folder": "/x"}), ValueError,
     r"filesystem transport has no option 'data_folder' \(did you mean 'data_folder_in'"),
    (lambda: remote(url="redis://h", transport_options={"socket_timout": 1}), ValueError,
     r"redis transport has no option 'socket_timout' \(did you mean 'socket_timeout'"),
    (lambda: remote(url="amqp://h", transport_options={"hartbeat": 1}), ValueError,
     r"RabbitMQ has no option 'hartbeat' \(did you mean 'heartbeat'"),
    (lambda: remote(url="amqps://h", transport_options={"ssl_cert_reqs": "no"}), ValueError,
     "ssl_cert_reqs is one of none, optional, required, not 'no'"),
    (lambda: remote(url="rediss://h", transport_options={"ssl_cert_reqs": "no"}), ValueError,
     "ssl_cert_reqs is one of none, optional, required, not 'no'"),
    (lambda: remote(transition_timout=3), ValueError, "did you mean 'transition_timeout'"),
    (lambda: remote(transition_timeout="soon"), ValueError, "transition_timeout .* not 'soon'"),
    (lambda: remote(transition_timeout=-1), ValueError, "transition_timeout .* not -1"),
    (lambda: remote(worker_expiry="x"), ValueError, "worker_expiry .* not 'x'"),
    (lambda: remote(topics=3), TypeError, "topics takes a str or several, not 3"),
    (lambda: remote(topics=["a/b"]), ValueError, "topic 'a/b' is not allowed"),
    (lambda: remote(exchange="a b"), ValueError, "exchange 'a b' is not allowed"),
    (lambda: remote(retry_options=3), TypeError, "retry_options must be a dict, not 3"),
    (lambda: remote(retry_options={"max_retry": 3}), ValueError,
     r"no option 'max_retry' \(did you mean 'max_retries'"),
    (lambda: remote(retry_options={"max_retries": -1}), ValueError, "max_retries=-1 is no whole"),
    (lambda: remote(retry_options={"interval_max": "long"}), ValueError, "interval_max='long'"),
    (lambda: remote(retry_options={"interval_start": -1}), ValueError, "interval_start=-1"),
    (lambda: remote(retry_options={"interval_step": math.inf}), ValueError, "interval_step=inf"),
    (lambda: remote(executor="threads"), TypeError, "must be a WorkerTaskExecutor, not 'threads'"),
    (lambda: remote(interop="celery"), ValueError, "'taskflow' or nothing, not 'celery'"),
    (lambda: remote(max_workers=1), ValueError, "no option 'max_workers'"),
    (lambda: engines.load_from_factory(3), TypeError, "function or its dotted name, not 3"),
    (lambda: engines.load_from_factory(lambda: A), ValueError, "cannot be imported by name"),
    (lambda: engines.load_from_factory("nowhere.at.all"), ValueError, "'nowhere.at.all'"),
    (lambda: engines.load_from_factory(f"{__name__}.make_flo"), ValueError, "'make_flow'"),
    (lambda: engines.load_from_factory(make_nothing), exceptions.NotAFlow, "but 7"),
    (lambda: engines.load_from_factory(make_flow, 3), TypeError, "factory_args .* not 3"),
    (lambda: engines.load_from_factory(make_flow, None, 3), TypeError, "factory_kwargs .* not 3"),
    (lambda: engines.load_from_factory(make_flow, ["x"]), TypeError, "takes 0 positional"),
    (lambda: engines.flow_from_detail(3), TypeError, "must be a FlowDetail, not 3"),
    (lambda: engines.load_from_detail(models.FlowDetail("f")), ValueError, "what made its flow"),
    (lambda: engines.save_factory_details(3, make_flow, None, None), TypeError, "FlowDetail"),
]  # fmt: skip


def loaded() -> Any:
    return engines.load(LINE("f", retry.Times(1, "again")).add(Plain("pay")))


def kept() -> Any:
    engine = loaded()
    engine.prepare()
    return engine.storage


RUNNING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: loaded().run("soon"), TypeError, "timeout must be .* not 'soon'"),
    (lambda: loaded().run(deadline="soon"), TypeError, "deadline must be .* not 'soon'"),
    (lambda: loaded().run(deadline=-1), ValueError, "deadline must be .* not -1"),
    (lambda: list(loaded().run_iter(deadline=float("nan"))), ValueError, "deadline .* nan"),
    (lambda: engines.run(A, deadline="x"), TypeError, "deadline must be .* not 'x'"),
    (lambda: engines.run(A, deadlin=1), ValueError, "no option 'deadlin'"),
    (lambda: loaded().validate(), exceptions.InvalidState, "prepared before it is validated"),
    (lambda: loaded().reset(), exceptions.InvalidState, "prepared before it is reset"),
]  # fmt: skip

STORAGE: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: storage.Storage(3), TypeError, "flow_detail must be a FlowDetail, not 3"),
    (lambda: kept().fetch("x"), exceptions.NotFound, "'x' is not provided .* flow 'f'"),
    (lambda: kept().fetch(3), TypeError, "a str, not 3"),
    (lambda: kept().get("pya"), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: kept().get("pay"), exceptions.NotFound, "'pay' is not known .*PENDING"),
    (lambda: kept().get_atom_state(["pay"]), exceptions.NotFound, r"\['pay'\]"),
    (lambda: loaded().storage.get("pay"), exceptions.NotFound, "no atom is prepared yet"),
    (lambda: kept().get_revert_result("pay"), exceptions.NotFound, "'pay' is not known"),
    (lambda: kept().save("pya", 1), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: kept().save("pay", 1, "SUCESS"), ValueError, "'SUCESS' .*'SUCCESS'"),
    (lambda: kept().save("pay", "x", "FAILURE"), TypeError, "FAILURE a Failure is saved, not 'x'"),
    (lambda: kept().set_atom_state("pay", "RUNING"), ValueError, "'RUNING' .*'RUNNING'"),
    (lambda: kept().set_atom_state("pay", None), ValueError, "None is no state of an atom"),
    (lambda: kept().set_atom_intention("pay", "EXEC"), ValueError, "'EXEC' .*'EXECUTE'"),
    (lambda: kept().reset("pay", "PENDNG"), ValueError, "'PENDNG' .*'PENDING'"),
    (lambda: kept().set_flow_state("PAUSED"), ValueError, "'PAUSED' is no state of a flow"),
    (lambda: kept().change_flow_state("SUCESS"), exceptions.InvalidState, "'SUCCESS'"),
    (lambda: kept().change_flow_state("SUCCESS"), exceptions.InvalidState, "PENDING: RUNNING"),
    (lambda: kept().inject(3), TypeError, "must be a dict or pairs, not 3"),
    (lambda: kept().inject({1: 2}), TypeError, "is a str, not 1"),
    (lambda: kept().inject_atom_args("pya", {}), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: kept().inject_atom_args("pay", 3), TypeError, "must be a dict or pairs, not 3"),
    (lambda: kept().get_retry_history("pay"), TypeError, "'pay' is a task, not a retry"),
    (lambda: kept().get_retry_history("agin"), exceptions.NotFound, "'agin' .*'again'"),
    (lambda: kept().save_retry_failure("again", "pay", "x"), TypeError, "a Failure, not 'x'"),
    (lambda: kept().cleanup_retry_history("again", "X"), ValueError, "'X' is no state"),
    (lambda: kept().set_task_progress("pay", None), TypeError, "'pay' must be a number, not None"),
    (lambda: kept().set_task_progress("again", 1), TypeError, "'again' is a retry, not a task"),
    (lambda: kept().set_task_progress("pay", 1, 3), TypeError, "details must be .* not 3"),
    (lambda: kept().update_atom_metadata("pay", 3), TypeError, "metadata must be .* not 3"),
    (lambda: kept().update_flow_metadata(3), TypeError, "metadata must be .* not 3"),
    (lambda: kept().ensure_atom(3), TypeError, "Only atoms have records, not 3"),
    (lambda: kept().ensure_atom(retry.Times(1)), ValueError, "needs a name"),
    (lambda: kept().ensure_atom(retry.Times(1, "pay")), exceptions.Duplicate, "'pay' is stored"),
    (lambda: kept().fetch_mapped_args({"x": "q"}), exceptions.NotFound, "'q'"),
    (lambda: kept().fetch_mapped_args({"x": "q"}, "pay"), exceptions.NotFound, "'q', .* 'x' asks"),
    (lambda: kept().fetch_mapped_args({"x": "q"}, "pya"), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: kept().fetch_mapped_args(3, "pay"), TypeError, "a dict of argument to name, not 3"),
    (lambda: kept().fetch_unsatisfied_args("pya", {}), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: kept().get_atoms_states(["pay", "pya"]), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: backends.fetch(3), TypeError, "a dict or a URI, not 3"),
    (lambda: models.ItemDetail.from_dict({"index": 1}), exceptions.InvalidFormat, "'index' and an"),
    (lambda: models.TaskDetail.from_dict({}), exceptions.InvalidFormat, "'name' and 'uuid'"),
    (lambda: models.FlowDetail.from_dict(3), exceptions.InvalidFormat, "'name' and 'uuid', not 3"),
    (lambda: states.check_flow_transition("PENDING", "SUCESS"), exceptions.InvalidState,
     "'SUCCESS'"),
]  # fmt: skip

NOTIFIER, RESTRICTED = notifier.Notifier, notifier.RestrictedNotifier


def doubled() -> None:
    made = NOTIFIER()
    made.register("x", nothing)
    made.register("x", nothing)


def listening(kind: Any, **options: Any) -> None:
    with kind(loaded(), **options):
        pass


LISTENING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: NOTIFIER().register("x", 3), ValueError, "callback must be callable, not 3"),
    (lambda: NOTIFIER().register("x", nothing, kwargs={"details": 1}), KeyError, "'details'"),
    (lambda: NOTIFIER().register("x", nothing, kwargs=3), TypeError, "must be a dict, not 3"),
    (lambda: NOTIFIER().register("x", nothing, args=3), TypeError, "a list or tuple, not 3"),
    (lambda: NOTIFIER().register("x", nothing, details_filter=3), ValueError, "callable, not 3"),
    (doubled, ValueError, "nothing is already registered for 'x'"),
    (lambda: RESTRICTED(["sent"]).register("snet", nothing), ValueError, "'snet' .*'sent'"),
    (lambda: RESTRICTED(["x"], False).register("*", nothing), ValueError, "known events: x"),
    (lambda: RESTRICTED(3), TypeError, "a str or several, not 3"),
    (lambda: loaded().notifier.register("SUCESS", nothing), ValueError, "'SUCESS' .*'SUCCESS'"),
    (lambda: loaded().atom_notifier.register("DONE", nothing), ValueError, "known events: FAIL"),
    (lambda: base.Listener(3), TypeError, "needs an engine to listen to, not 3"),
    (lambda: listening(capturing.CaptureListener, task_listen_for=["SUCESS"]), ValueError,
     "'SUCESS' .*'SUCCESS'"),
    (lambda: listening(capturing.CaptureListener, flow_listen_for=3), TypeError,
     "flow_listen_for takes a str or several, not 3"),
    (lambda: listening(logs.LoggingListener, level="INFO"), TypeError, "level .* not 'INFO'"),
    (lambda: listening(logs.LoggingListener, log=3), TypeError, "log must be a logger.* not 3"),
    (lambda: listening(logs.DynamicLoggingListener, failure_level="x"), TypeError, "failure_level"),
    (lambda: listening(logs.DynamicLoggingListener, mask_inputs_keys=3), TypeError,
     "mask_inputs_keys takes a str or several, not 3"),
    (lambda: listening(timing.PrintingDurationListener, printer=3), TypeError, "printer .* not 3"),
    (lambda: claims.CheckingClaimListener(loaded(), 1, 2, "me", on_job_loss=3), ValueError,
     "callable, not 3"),
    (lambda: progress.ProgressListener(3), TypeError, "needs an engine to listen to, not 3"),
    (lambda: formatters.FailureFormatter(3), TypeError, "needs an engine to read from, not 3"),
]  # fmt: skip

FAILURES: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: ft.Failure(), TypeError, "needs one to capture"),
    (lambda: ft.Failure(3), ValueError, "must hold three items"),
    (lambda: ft.Failure.from_exception(ValueError), TypeError, "Not an exception: <class"),
    (lambda: ft.Failure.from_dict(3), exceptions.InvalidFormat, "is a dict, not 3"),
    (lambda: ft.Failure.from_dict({"version": 1}), exceptions.InvalidFormat, "'exception_str'"),
    (lambda: ft.Failure.from_dict({}), ValueError, "version None"),
    (lambda: CAUGHT.check(3), TypeError, "classes and full names, not 3"),
    (lambda: ft.Failure.reraise_if_any([3]), TypeError, "holds failures, not 3"),
    (lambda: exceptions.WrappedFailure(3), TypeError, "a list of failures, not 3"),
    (lambda: ft.allow(3), TypeError, "exception classes and modules .* not 3"),
    (lambda: codec.allow(int), TypeError, "Enum classes and dataclasses .* not <class 'int'>"),
    (lambda: codec.dumps([object()]), exceptions.NotEncodable, r"result\[0\]: object"),
    (lambda: codec.dumps({"a": ValueError()}), exceptions.NotEncodable, "Failure.from_exception"),
    (lambda: codec.loads("{"), exceptions.InvalidFormat, "not acceptable JSON"),
]  # fmt: skip

WRONG = {
    "atoms": ATOMS, "retries": RETRIES, "flows": FLOWS, "loading": LOADING, "running": RUNNING,
    "storage": STORAGE, "listening": LISTENING, "failures": FAILURES,
}  # fmt: skip


@pytest.mark.parametrize(
    ("do", "kind", "text"),
    [
        pytest.param(*row, id=f"{subject}-{number}")
        for subject, rows in WRONG.items()
        for number, row in enumerate(rows)
    ],
)
def test_wrong_program_is_one_error_that_names_the_mistake(
    do: Any, kind: type[BaseException], text: str
) -> None:
    """One error, of the documented type, whose text names what, where and what was meant."""
    with pytest.raises(BaseException, match=text) as caught:
        do()
    assert type(caught.value) is kind


def test_a_string_is_one_name_and_not_its_letters() -> None:
    """Else nothing would be masked, or heard of."""
    engine = loaded()
    with capturing.CaptureListener(engine, task_listen_for="SUCCESS") as heard:
        engine.run()
    assert [state for kind, state, _ in heard.values if kind == "task"] == ["SUCCESS"]
    formatter = formatters.FailureFormatter(engine, mask_inputs_keys="password")
    assert formatter._mask_inputs_keys == ("password",)


# Large, deep and empty ones are not wrong. --------------------------------------------------------


def test_flow_of_ten_thousand_levels_runs() -> None:
    flow: Any = LINE("inmost").add(sample_tasks.Nothing("p"))
    for depth in range(10_000):
        pattern = (linear_flow, unordered_flow, graph_flow)[depth % 3]
        flow = pattern.Flow(f"f{depth}").add(flow)
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.get_atom_state("p") == states.SUCCESS


def test_flow_of_twenty_thousand_tasks_side_by_side_runs() -> None:
    flow = unordered_flow.Flow("wide").add(*(Plain(f"p{n}") for n in range(20_000)))
    engine = engines.load(flow)
    engine.run()
    assert engine.statistics["completed"] == 20_000
