"""Errors of incorrect programs."""

from __future__ import annotations

import functools
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
def test_stop_iteration_in_task_is_raised_unchanged(kind: str) -> None:
    """The run loop is a generator, which must not swallow it."""
    engine = engines.load(Stops("s"), engine=kind)
    with pytest.raises(StopIteration):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED


def test_values_of_one_name_are_ordered_from_innermost_flow() -> None:
    """Values inside a flow precede those of its retry, and `fetch` returns the first."""
    inner = linear_flow.Flow("inner", retry.ForEach(["inner"], "r2", provides="x"))
    inner.add(task.FunctorTask(lambda: "task", name="t", provides="x"))
    flow = linear_flow.Flow("f", retry.ForEach(["outer"], "r1", provides="x")).add(inner)
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.fetch("x") == "task"
    assert engine.storage.fetch_all()["x"] == ["task", "inner", "outer"]
    assert [record.name for record in engine.storage.flow_detail] == ["t", "r2", "r1"]


def test_retry_with_failed_reversion_provides_nothing() -> None:
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


def test_deciders_of_empty_flow_are_not_called() -> None:
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


def test_completed_flow_detail_can_be_loaded_and_run_again() -> None:
    detail = models.FlowDetail("f")
    engines.load(Plain("p"), flow_detail=detail).run()
    engine = engines.load(Plain("p"), flow_detail=detail)
    engine.run()
    assert engine.storage.get_attempt("p").attempt == 1  # type: ignore[union-attr]


# One row per incorrect call: the call, the exception and a part of its message.


class Takes(task.Task):
    def execute(self, x: int, y: int = 0) -> None: ...


class Unmade(task.Task):
    """Task that does not call `super().__init__()`."""

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


def changed(**attributes: Any) -> Any:
    """Load a flow with a task that has these attributes."""
    only = Plain("p")
    for name, value in attributes.items():
        setattr(only, name, value)
    return engines.load(LINE("f").add(only))


def itself() -> Any:
    flow = LINE("f")
    return flow.add(flow)


def both(x: str, y: str, name: str) -> Any:
    return FUNCTOR(eval(f"lambda {x}: 1"), name, provides=y)


ATOMS: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: Plain(3), TypeError, "Atom name must be a str, got 3"),
    (lambda: Plain(""), ValueError, "must not be empty"),
    (lambda: Plain(provides=3), TypeError, "provides must be a str, set, list or tuple, got 3"),
    (lambda: Plain(provides=["a", 3]), TypeError, "provides must contain names .* got 3"),
    (lambda: Plain(requires=["x"]), ValueError, r"execute\(\) takes no 'x'"),
    (lambda: Takes(requires=3), TypeError, "must be a str or an iterable, got 3"),
    (lambda: Takes(requires=["yy"]), ValueError, r"takes no 'yy' \(did you mean 'y'\?\)"),
    (lambda: Takes(rebind=3), TypeError, "rebind must be a dict, list or tuple, got int: 3"),
    (lambda: Takes(rebind={"xx": "z"}), ValueError, r"takes no 'xx' \(did you mean 'x'\?\)"),
    (lambda: Takes(rebind={"x": 3}), TypeError, "Rebind must contain names .* got 3"),
    (lambda: Takes(rebind=["a", "b"]), ValueError, "takes no 'b'"),
    (lambda: Takes(inject=3), TypeError, "inject must be a dict, got 3"),
    (lambda: Takes(inject={3: 1}), TypeError, "inject must contain names .* got 3"),
    (lambda: Takes(auto_extract=False), ValueError, "Missing arguments .* needs 'x'"),
    (lambda: Takes(ignore_list=3), TypeError, "ignored names must be .* got 3"),
    (lambda: Takes(revert_requires=3), TypeError, "must be a str or an iterable, got 3"),
    (lambda: Bodiless(), TypeError, "abstract .*execute"),
    (lambda: engines.load(Unmade()), AttributeError, "Unmade .* must call super"),
    (lambda: FUNCTOR(3), ValueError, "executing must be callable, got 3"),
    (lambda: FUNCTOR(nothing, revert=3), ValueError, "reverting must be callable, got 3"),
    (lambda: FUNCTOR(by_position), ValueError, r"must accept \['x'\] by name"),
    (lambda: FUNCTOR(pages), ValueError, "asynchronous generator"),
    (lambda: task.MapFunctorTask(abs, "ab"), TypeError, "iterable of names, got 'ab'"),
    (lambda: task.MapFunctorTask(by_position, 3), TypeError, "iterable of names, got 3"),
    (lambda: task.MapFunctorTask(max, ["a"]) and task.MapFunctorTask(pow, ["a"]), ValueError,
     "exactly 1 argument"),
    (lambda: task.ReduceFunctorTask(pow, ["a"]), ValueError, "at least 2 names"),
    (lambda: task.task(3), TypeError, "must decorate a function, got 3"),
    (lambda: noted("a", retries=5), TypeError, r"noted.* 'retries': .*@task.task\(retries=...\)"),
    (lambda: noted("a", rebnd={}), TypeError, r"no option 'rebnd' \(did you mean 'rebind'"),
    (lambda: task.task(provide="x"), TypeError, r"no option 'provide' \(did you mean 'provides'"),
    (lambda: Plain("p").update_progress(None), TypeError, "progress of 'p' .* got None"),
    (lambda: Plain("p").update_progress("50%"), TypeError, "must be a number, got '50%'"),
    (lambda: Plain().notifier.register("update_progres", nothing), ValueError,
     "did you mean 'update_progress'"),
    (lambda: MAP(3), TypeError, "Map requires a task, got 3"),
    (lambda: MAP(Takes), TypeError, r"did you mean Takes\(\)"),
    (lambda: MAP(MAP(Takes("t"), item="x")), TypeError, "got another Map"),
    (lambda: MAP(retry.Times(1)), TypeError, "Map requires a task, got .*Times"),
    (lambda: MAP(Takes("t"), item="z"), ValueError, "has no argument 'z'.* its arguments: x, y"),
    (lambda: MAP(Takes("t"), item="x", over=3), TypeError, "over must be a str, got 3"),
    (lambda: MAP(Takes("t"), item="x", on_item_failure="colect"), ValueError,
     "did you mean 'collect'"),
    (lambda: MAP(Takes("t"), item="x", max_in_flight=0), ValueError, "at least 1, or None, got 0"),
    (lambda: MAP(task.WaitFor("s"), over="items", item="item"), TypeError,
     "Map cannot run 'wait-for-s' for each item"),
    (lambda: task.WaitFor(""), ValueError, "1 to 255 printable characters"),
    (lambda: task.WaitFor(3), TypeError, "must be a str, got 3"),
    (lambda: task.WaitFor("s", -1), ValueError, "must be 0 or more seconds, got -1"),
    (lambda: task.WaitFor("s", math.inf), ValueError, "must be 0 or more seconds"),
    (lambda: task.WaitFor("s", "1h"), TypeError, "seconds or None, got '1h'"),
]  # fmt: skip

RETRIES: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: retry.Retry("r"), TypeError, "abstract .*execute"),
    (lambda: retry.Times(True), TypeError, "attempts of a Times retry must be an int, got True"),
    (lambda: retry.Times(-1), ValueError, "attempts of a Times retry must be 0 or more, got -1"),
    (lambda: retry.Times(1, retry_on="Value Error"), ValueError, "retry_on must .*'Value Error'"),
    (lambda: retry.Times("3"), TypeError, "attempts of a Times retry must be an int, got '3'"),
    (lambda: retry.ForEach(3), TypeError, "values of a ForEach retry .* got 3"),
    (lambda: retry.Times(1, 3), TypeError, "Atom name must be a str, got 3"),
    (lambda: retry.Times(1, backoff="1"), TypeError, "a Backoff or a number of seconds, got '1'"),
    (lambda: retry.Times(1, backoff=-1), ValueError, "Backoff delay .* -1"),
    (lambda: retry.Times(1, retry_on=3), TypeError, "retry_on must contain .* got 3"),
    (lambda: retry.Times(1, give_up_on=[int]), TypeError, "give_up_on .* got <class 'int'>"),
    (lambda: retry.Backoff(multiplier="x"), TypeError, "Backoff multiplier .* got 'x'"),
    (lambda: retry.Backoff(jitter=-1), ValueError, "Backoff jitter .* -1"),
    (lambda: retry.History([(1, {"a": CAUGHT})]).caused_by(3), TypeError, "classes .* got 3"),
]  # fmt: skip

FLOWS: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: LINE("f", 3), TypeError, "Retry of flow 'f' must be a Retry, got 3"),
    (lambda: LINE("f", retry.Times), TypeError, "must be a Retry, got <class"),
    (lambda: LINE("f").add(3), TypeError, "Members of flow 'f' must be tasks or flows, got 3"),
    (lambda: LINE("f").add(Plain), TypeError, r"add an instance: Plain\(\.\.\.\)"),
    (lambda: LINE("f").add([A]), TypeError, "one by one"),
    (lambda: GRAPH("f").add(nothing), TypeError, "wrap it: task.FunctorTask"),
    (lambda: LINE("f").add(retry.Times(1)), TypeError, r"a retry to its flow: Flow\(name, retry="),
    (lambda: engines.load(LINE("f").add(Plain("a"), Plain("a"))), exceptions.Duplicate, "'a'"),
    (lambda: engines.load(twice()), ValueError, "'one' occurs twice"),
    (lambda: engines.load(itself()), ValueError, "Flow 'f' occurs twice"),
    (lambda: GRAPH("f").add(A).link(A, B), ValueError,
     "The target of a link must be a member: flow 'f' does not contain .*ship"),
    (lambda: GRAPH("f").add(A).link(Plain("chrage"), A), ValueError,
     r"The source of a link must be a member: .*\(did you mean 'charge'\?\)"),
    (lambda: GRAPH("f").add(A).link(Plain("charge"), A), ValueError,
     "another object with the name of"),
    (lambda: GRAPH("f").add(A).link(A, A), exceptions.DependencyFailure, "charge -> charge"),
    (lambda: GRAPH("f").add(A, B).link(A, B).link(B, A), exceptions.DependencyFailure,
     "in a circle: ship -> charge -> ship"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=3), ValueError, "must be callable, got 3"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=pages), ValueError, "without await"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider_depth="all"), ValueError,
     "requires a decider"),
    (lambda: GRAPH("f").add(A, B).link(A, B, decider=nothing, decider_depth="neighbour"),
     ValueError, r"depth 'neighbour' \(did you mean 'NEIGHBORS'"),
    (lambda: GRAPH("f").add(A).join(B, "any"), ValueError, "flow 'f' does not contain"),
    (lambda: GRAPH("f").add(A).join(A, "anny"), ValueError, r"'anny' \(did you mean 'ANY'"),
    (lambda: GRAPH("f").add(A).join(A, 3), TypeError, "a Join or a str, got 3"),
    (lambda: GRAPH("f").add(both("**k", "x", "a"), both("**k", "x", "b"), Takes("c")),
     exceptions.AmbiguousDependency, "'c' requires 'x'.* provide it: 'a', 'b'"),
    (lambda: GRAPH("f").add(A, resolve_require=False), TypeError,
     r"'resolve_require' \(did you mean 'resolve_requires'"),
    (lambda: GRAPH("f").add(both("y", "x", "a"), both("x", "y", "b")),
     exceptions.DependencyFailure, "b -> a -> b"),
    (lambda: graph_flow.TargetedFlow("f").set_target(A), ValueError, "flow 'f' does not contain"),
    (lambda: deciders.Depth.translate("x"), ValueError, "values: ALL, FLOW, NEIGHBORS, ATOM"),
    (lambda: engines.run(Takes("t")), exceptions.MissingDependencies, "requires 'x'.* of 't'"),
    (lambda: engines.run(Takes("t", rebind=["sise"]), store={"size": 1}),
     exceptions.MissingDependencies, r"'sise' \(did you mean 'size'\?\).*as 'x'.* of 't'"),
    (lambda: engines.run(LINE("f").add(Takes("t"), both("**k", "x", "late"))),
     exceptions.MissingDependencies, "nothing before it provides it"),
    (lambda: changed(priority="high"), exceptions.CompilationFailure,
     "priority of atom 'p' .* got 'high'"),
    (lambda: changed(rate_limit="often"), exceptions.CompilationFailure,
     "rate_limit of task 'p'.*'often'"),
]  # fmt: skip


def load(engine: str = "serial", **options: Any) -> Any:
    return engines.load(Plain("p"), engine=engine, **options)


def remote(**options: Any) -> Any:
    return load("worker-based", **{"url": "memory://wrong", **options})


LOADING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: load("seral"), exceptions.NotFound, "'seral' .*'serial'.*known kinds: default"),
    (lambda: load("://x"), ValueError, "must be KIND or KIND://.*got '://x'"),
    (lambda: load("parallel:max_workers=4"), ValueError, "must be KIND or KIND://"),
    (lambda: load("parallel?max_workers=4"), ValueError, "must be KIND or KIND://"),
    (lambda: load("workers://me:s3cret@host"), ValueError, r"got 'workers://me:\*+@host'"),
    (lambda: load(enginee="parallel"), ValueError, r"'enginee' \(did you mean 'engine'\?\)"),
    (lambda: load(bakend="memory"), ValueError, r"'bakend' \(did you mean 'backend'\?\)"),
    (lambda: engines.load_from_factory(make_flow, uuuid="x"), ValueError, "did you mean 'uuid'"),
    (lambda: engines.load_from_factory(make_flow, uuid=""), ValueError, "uuid must be .* got ''"),
    (lambda: engines.load_from_factory(make_flow, uuid=" "), ValueError, "uuid must be .* got ' '"),
    (lambda: engines.load_from_factory(make_flow, uuid="7"), ValueError, "uuid must be .* got '7'"),
    (lambda: engines.load_from_factory(make_flow, uuid=7), ValueError, "uuid must be .* got 7"),
    (lambda: load(uuid="x"), ValueError, "'uuid' is an argument of engines.load_from_factory"),
    (lambda: load(deadline=5), ValueError, "'deadline' is an argument of engines.run,"),
    (lambda: load("serial://?flows=a"), ValueError, "is an argument of engines.load_from_detail"),
    (lambda: load(namespace="nowhere"), exceptions.NotFound, "known kinds: none"),
    (lambda: load("serial://?never_resolv=1"), ValueError, "did you mean 'never_resolve'"),
    (lambda: load(never_resolve="maybe"), ValueError, "never_resolve must .* got 'maybe'"),
    (lambda: load(strict_results="maybe"), ValueError, "strict_results must .* got 'maybe'"),
    (lambda: load(topics=2), ValueError, "SerialActionEngine: unknown option 'topics'"),
    (lambda: load("parallel", max_worker=2), ValueError, "did you mean 'max_workers'"),
    # The serial engine refuses the same values, because the kind may be configured.
    *((functools.partial(load, kind, max_workers=count), ValueError,
       "max_workers must be a whole number of 1 or more, got")
      for kind in ("serial", "parallel") for count in (0, -1, "x", [], 1.5, True)),
    *((functools.partial(engines.load, flow), exceptions.NotAFlow, "Only a flow or a task can be")
      for flow in (None, 3, "flow", Plain, retry.Times(1, name="r"))),
    (lambda: load("parallel", executor="treads"), ValueError, "'treads' .*'threads'"),
    (lambda: load("parallel", executor=3), TypeError, "executor must be a str or a .* got 3"),
    (lambda: load(backend="memry"), exceptions.NotFound, "'memry' .*'memory'"),
    (lambda: load(backend={}), ValueError, "must contain 'connection'"),
    (lambda: load(store={1: 2}), TypeError, "Injected value names must be str, got int: 1"),
    (lambda: load(store=3), TypeError, "store must be a dict or pairs, got 3"),
    (lambda: load(store=["a"]), TypeError, r"values must be a dict or pairs, got \['a'\]"),
    (lambda: load(flow_detail=3), TypeError, "flow_detail must be a FlowDetail, got 3"),
    (lambda: load(book=3), TypeError, "book must be a LogBook, got 3"),
    (lambda: load(backend=3), TypeError, "backend must be a Backend, a dict .* or a URI, got 3"),
    (lambda: load(3), TypeError, "engine must be the name of a kind or a URI, got 3"),
    (lambda: load(on_busy="wiat"), ValueError, "on_busy must be one of fail, wait, .*'wait'"),
    (lambda: load(on_busy=None), ValueError, "Option on_busy must be one of"),
    (lambda: load(durability="eech"), ValueError, "one of each, batch, end.*'each'"),
    (lambda: load(lease=-1), ValueError, "lease"),
    (lambda: load(lease="soon"), ValueError, "lease"),
    (lambda: remote(url=3), TypeError, "url of a broker must be a str, got 3"),
    (lambda: remote(url="amq://x"), ValueError, r"'amq' .*'amqp'"),
    (lambda: remote(transport="memry"), ValueError, "'memry' .*'memory'"),
    (lambda: remote(url="filesystem:///tmp/x?inotfy=0"), ValueError, "must be filesystem:///PATH"),
    (lambda: remote(url="amqp://h;amqp://g?hartbeat=1"), ValueError, "did you mean 'heartbeat'"),
    (lambda: remote(ledger="redsi://h"), ValueError, r"got redsi://... \(did you mean 'redis'"),
    (lambda: remote(ledger="dir:///tmp/x?y=1"), ValueError, "must be one of .* got dir://...$"),
    (lambda: remote(ledger="non"), ValueError, "did you mean 'none'"),
    (lambda: remote(interop="taskflw"), ValueError, "did you mean 'taskflow'"),
    (lambda: remote(transport_options=3), TypeError, "transport_options must be a dict, got 3"),
    (lambda: remote(transport_options={"polling_interval": 0}), ValueError,
     "interval must be a number above 0"),
    (lambda: remote(transport_options={"poling_interval": 1}), ValueError,
     r"memory transport: unknown option 'poling_interval' \(did you mean 'polling_interval'"),
    (lambda: remote(url="filesystem:///tmp", transport_options={"data_folder": "/x"}), ValueError,
     r"filesystem transport: unknown option 'data_folder' \(did you mean 'data_folder_in'"),
    (lambda: remote(url="redis://h", transport_options={"socket_timout": 1}), ValueError,
     r"redis transport: unknown option 'socket_timout' \(did you mean 'socket_timeout'"),
    (lambda: remote(url="amqp://h", transport_options={"hartbeat": 1}), ValueError,
     r"RabbitMQ: unknown option 'hartbeat' \(did you mean 'heartbeat'"),
    (lambda: remote(url="amqps://h", transport_options={"ssl_cert_reqs": "no"}), ValueError,
     "ssl_cert_reqs must be one of none, optional, required, got 'no'"),
    (lambda: remote(url="rediss://h", transport_options={"ssl_cert_reqs": "no"}), ValueError,
     "ssl_cert_reqs must be one of none, optional, required, got 'no'"),
    (lambda: remote(transition_timout=3), ValueError, "did you mean 'transition_timeout'"),
    (lambda: remote(transition_timeout="soon"), ValueError, "transition_timeout .* got 'soon'"),
    (lambda: remote(transition_timeout=-1), ValueError, "transition_timeout .* got -1"),
    (lambda: remote(worker_expiry="x"), ValueError, "worker_expiry .* got 'x'"),
    (lambda: remote(topics=3), TypeError, "topics must be a str or several, got 3"),
    (lambda: remote(topics=["a/b"]), ValueError, "topic must be .* got 'a/b'"),
    (lambda: remote(exchange="a b"), ValueError, "exchange must be .* got 'a b'"),
    (lambda: remote(retry_options=3), TypeError, "retry_options must be a dict, got 3"),
    (lambda: remote(retry_options={"max_retry": 3}), ValueError,
     r"unknown option 'max_retry' \(did you mean 'max_retries'"),
    (lambda: remote(retry_options={"max_retries": -1}), ValueError, "max_retries must .* got -1"),
    (lambda: remote(retry_options={"interval_max": "long"}), ValueError, "max .* got 'long'"),
    (lambda: remote(retry_options={"interval_start": -1}), ValueError, "interval_start .* got -1"),
    (lambda: remote(retry_options={"interval_step": math.inf}), ValueError, "step .* got inf"),
    (lambda: remote(executor="threads"), TypeError, "must be a WorkerTaskExecutor, got 'threads'"),
    (lambda: remote(interop="celery"), ValueError, "'taskflow' or None, got 'celery'"),
    (lambda: remote(max_workers=1), ValueError, "unknown option 'max_workers'"),
    (lambda: engines.load_from_factory(3), TypeError, "function or its dotted name, got 3"),
    (lambda: engines.load_from_factory(lambda: A), ValueError, "cannot be imported by name"),
    (lambda: engines.load_from_factory("nowhere.at.all"), ValueError, "'nowhere.at.all'"),
    (lambda: engines.load_from_factory(f"{__name__}.make_flo"), ValueError, "'make_flow'"),
    (lambda: engines.load_from_factory(make_nothing), exceptions.NotAFlow, "got 7"),
    (lambda: engines.load_from_factory(make_flow, 3), TypeError, "factory_args .* got 3"),
    (lambda: engines.load_from_factory(make_flow, None, 3), TypeError, "factory_kwargs .* got 3"),
    (lambda: engines.load_from_factory(make_flow, ["x"]), TypeError, "takes 0 positional"),
    (lambda: engines.flow_from_detail(3), TypeError, "must be a FlowDetail, got 3"),
    (lambda: engines.load_from_detail(models.FlowDetail("f")), ValueError,
     "the factory of its flow"),
    (lambda: engines.save_factory_details(3, make_flow, None, None), TypeError, "FlowDetail"),
]  # fmt: skip


def loaded() -> Any:
    return engines.load(LINE("f", retry.Times(1, "again")).add(Plain("pay")))


def ready() -> Any:
    engine = loaded()
    engine.prepare()
    return engine.storage


RUNNING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: engines.run(A, deadline="x"), TypeError, "deadline must be .* got 'x'"),
    (lambda: engines.run(A, deadlin=1), ValueError, "did you mean 'deadline'"),
    (lambda: loaded().validate(), exceptions.InvalidState, "prepared before it is validated"),
    (lambda: loaded().reset(), exceptions.InvalidState, "prepared before it is reset"),
]  # fmt: skip

STORAGE: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: storage.Storage(3), TypeError, "flow_detail must be a FlowDetail, got 3"),
    (lambda: ready().fetch("x"), exceptions.NotFound, "No atom provides 'x' in flow 'f'"),
    (lambda: ready().fetch(3), TypeError, "a str, got 3"),
    (lambda: ready().fetch(None), TypeError, "Stored name must be a str, got None"),
    (lambda: ready().get_atom_state(None), exceptions.NotFound, "Unknown atom name None"),
    (lambda: ready().get("pya"), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: ready().get("pay"), exceptions.NotFound, "'pay' has no result .*PENDING"),
    (lambda: ready().get_atom_state(["pay"]), exceptions.NotFound, r"\['pay'\]"),
    (lambda: loaded().storage.get("pay"), exceptions.NotFound, "no atom is prepared yet"),
    (lambda: ready().get_revert_result("pay"), exceptions.NotFound, "'pay' has no revert result"),
    (lambda: ready().save("pya", 1), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: ready().save("pay", 1, "SUCESS"), ValueError, "'SUCESS' .*'SUCCESS'"),
    (lambda: ready().save("pay", "x", "FAILURE"), TypeError, "FAILURE must be a Failure, got 'x'"),
    (lambda: ready().set_atom_state("pay", "RUNING"), ValueError, "'RUNING' .*'RUNNING'"),
    (lambda: ready().set_atom_state("pay", None), ValueError, "Unknown state of an atom None"),
    (lambda: ready().set_atom_intention("pay", "EXEC"), ValueError, "'EXEC' .*'EXECUTE'"),
    (lambda: ready().reset("pay", "PENDNG"), ValueError, "'PENDNG' .*'PENDING'"),
    (lambda: ready().set_flow_state("PAUSED"), ValueError, "Unknown state of a flow 'PAUSED'"),
    (lambda: ready().change_flow_state("SUCESS"), exceptions.InvalidState, "'SUCCESS'"),
    (lambda: ready().change_flow_state("SUCCESS"), exceptions.InvalidState, "PENDING: RUNNING"),
    (lambda: ready().inject(3), TypeError, "must be a dict or pairs, got 3"),
    (lambda: ready().inject({1: 2}), TypeError, "must be str, got int: 1"),
    (lambda: ready().inject_atom_args("pya", {}), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: ready().inject_atom_args("pay", 3), TypeError, "must be a dict or pairs, got 3"),
    (lambda: ready().get_retry_history("pay"), TypeError, "'pay' must be a retry, got a task"),
    (lambda: ready().get_retry_history("agin"), exceptions.NotFound, "'agin' .*'again'"),
    (lambda: ready().save_retry_failure("again", "pay", "x"), TypeError, "a Failure, got 'x'"),
    (lambda: ready().cleanup_retry_history("again", "X"), ValueError, "state of an atom 'X'"),
    (lambda: ready().set_task_progress("pay", None), TypeError, "'pay' must be a number, got None"),
    (lambda: ready().set_task_progress("again", 1), TypeError, "must be a task, got a retry"),
    (lambda: ready().set_task_progress("pay", 1, 3), TypeError, "details must be .* got 3"),
    (lambda: ready().update_atom_metadata("pay", 3), TypeError, "metadata must be .* got 3"),
    (lambda: ready().update_flow_metadata(3), TypeError, "metadata must be .* got 3"),
    (lambda: ready().ensure_atom(3), TypeError, "atom must be an Atom, got 3"),
    (lambda: ready().ensure_atom(retry.Times(1)), ValueError, "Atom must have a name"),
    (lambda: ready().ensure_atom(retry.Times(1, "pay")), exceptions.Duplicate, "'pay' is stored"),
    (lambda: ready().fetch_mapped_args({"x": "q"}), exceptions.NotFound, "'q'"),
    (lambda: ready().fetch_mapped_args({"x": "q"}, "pay"), exceptions.NotFound, "'q', .* 'x' asks"),
    (lambda: ready().fetch_mapped_args({"x": "q"}, "pya"), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: ready().fetch_mapped_args(3, "pay"), TypeError, "a dict of argument to name, got 3"),
    (lambda: ready().fetch_unsatisfied_args("pya", {}), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: ready().get_atoms_states(["pay", "pya"]), exceptions.NotFound, "'pya' .*'pay'"),
    (lambda: backends.fetch(3), TypeError, "a dict or a URI, got 3"),
    (lambda: models.ItemDetail.from_dict({"index": 1}), exceptions.InvalidFormat,
     "'index' and 'attempt'"),
    (lambda: models.TaskDetail.from_dict({}), exceptions.InvalidFormat, "'name' and 'uuid'"),
    (lambda: models.FlowDetail.from_dict(3), exceptions.InvalidFormat, "'name' and 'uuid', got 3"),
    (lambda: states.check_flow_transition("PENDING", "SUCESS"), exceptions.InvalidState,
     "'SUCCESS'"),
]  # fmt: skip

NOTIFIER, RESTRICTED = notifier.Notifier, notifier.RestrictedNotifier


def doubled() -> None:
    events = NOTIFIER()
    events.register("x", nothing)
    events.register("x", nothing)


def listening(kind: Any, **options: Any) -> None:
    with kind(loaded(), **options):
        pass


LISTENING: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: NOTIFIER().register("x", 3), ValueError, "callback must be callable, got 3"),
    (lambda: NOTIFIER().register("x", nothing, kwargs={"details": 1}), KeyError, "'details'"),
    (lambda: NOTIFIER().register("x", nothing, kwargs=3), TypeError, "must be a dict, got 3"),
    (lambda: NOTIFIER().register("x", nothing, args=3), TypeError, "a list or tuple, got 3"),
    (lambda: NOTIFIER().register("x", nothing, details_filter=3), ValueError, "callable, got 3"),
    (doubled, ValueError, "nothing is already registered for 'x'"),
    (lambda: RESTRICTED(["sent"]).register("snet", nothing), ValueError, "'snet' .*'sent'"),
    (lambda: RESTRICTED(["x"], False).register("*", nothing), ValueError, "known events: x"),
    (lambda: RESTRICTED(3), TypeError, "a str or several, got 3"),
    (lambda: loaded().notifier.register("SUCESS", nothing), ValueError, "'SUCESS' .*'SUCCESS'"),
    (lambda: loaded().atom_notifier.register("DONE", nothing), ValueError, "known events: FAIL"),
    (lambda: base.Listener(3), TypeError, "engine must be an engine, got 3"),
    (lambda: listening(capturing.CaptureListener, task_listen_for=["SUCESS"]), ValueError,
     "'SUCESS' .*'SUCCESS'"),
    (lambda: listening(capturing.CaptureListener, flow_listen_for=3), TypeError,
     "flow_listen_for must be a str or several, got 3"),
    (lambda: listening(logs.LoggingListener, level="INFO"), TypeError, "level .* got 'INFO'"),
    (lambda: listening(logs.LoggingListener, log=3), TypeError, "log must be a logger.* got 3"),
    (lambda: listening(logs.DynamicLoggingListener, failure_level="x"), TypeError, "failure_level"),
    (lambda: listening(logs.DynamicLoggingListener, mask_inputs_keys=3), TypeError,
     "mask_inputs_keys must be a str or several, got 3"),
    (lambda: listening(timing.PrintingDurationListener, printer=3), TypeError, "printer .* got 3"),
    (lambda: claims.CheckingClaimListener(loaded(), 1, 2, "me", on_job_loss=3), ValueError,
     "callable, got 3"),
    (lambda: progress.ProgressListener(3), TypeError, "engine must be an engine, got 3"),
    (lambda: formatters.FailureFormatter(3), TypeError, "engine must be an engine, got 3"),
]  # fmt: skip

FAILURES: list[tuple[Callable[[], Any], type[BaseException], str]] = [
    (lambda: ft.Failure(), TypeError, "can only capture an exception"),
    (lambda: ft.Failure(3), ValueError, "must contain three items"),
    (lambda: ft.Failure.from_exception(ValueError), TypeError,
     "can only capture an exception, got <class"),
    (lambda: ft.Failure.from_dict(3), exceptions.InvalidFormat, "must be a dict, got 3"),
    (lambda: ft.Failure.from_dict({"version": 1}), exceptions.InvalidFormat, "'exception_str'"),
    (lambda: ft.Failure.from_dict({}), ValueError, "version .* got None"),
    (lambda: CAUGHT.check(3), TypeError, "classes and full names, got 3"),
    (lambda: ft.Failure.reraise_if_any([3]), TypeError, "causes must be failures, got 3"),
    (lambda: exceptions.WrappedFailure(3), TypeError, "a list of failures, got 3"),
    (lambda: ft.allow(3), TypeError, "exception classes and modules .* got 3"),
    (lambda: codec.allow(int), TypeError, "or a pydantic model, got <class 'int'>"),
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
def test_wrong_call_raises_one_error_that_names_the_mistake(
    do: Any, kind: type[BaseException], text: str
) -> None:
    with pytest.raises(BaseException, match=text) as caught:
        do()
    assert type(caught.value) is kind


def test_single_string_is_accepted_as_one_name() -> None:
    """Otherwise nothing would be masked or reported."""
    engine = loaded()
    with capturing.CaptureListener(engine, task_listen_for="SUCCESS") as heard:
        engine.run()
    assert [state for kind, state, _ in heard.values if kind == "task"] == ["SUCCESS"]
    formatter = formatters.FailureFormatter(engine, mask_inputs_keys="password")
    assert formatter._mask_inputs_keys == ("password",)


# Large, deep and empty flows are valid.


def test_flow_of_ten_thousand_levels_runs() -> None:
    flow: Any = LINE("inmost").add(sample_tasks.Nothing("p"))
    for depth in range(10_000):
        pattern = (linear_flow, unordered_flow, graph_flow)[depth % 3]
        flow = pattern.Flow(f"f{depth}").add(flow)
    engine = engines.load(flow)
    engine.run()
    assert engine.storage.get_atom_state("p") == states.SUCCESS


def test_flow_of_twenty_thousand_unordered_tasks_runs() -> None:
    flow = unordered_flow.Flow("wide").add(*(Plain(f"p{n}") for n in range(20_000)))
    engine = engines.load(flow)
    engine.run()
    assert engine.statistics["completed"] == 20_000
