"""Cases of the suite: flows and the expected results of their runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contract.flows import tasks, trace
from tests.contract.flows.kinds import Kind
from wbengine import exceptions, states
from wbengine._concurrency import clocks, manual_clock
from wbengine.engines import base
from wbengine.persistence import backends
from wbengine.persistence import base as persistence
from wbengine.persistence._pauses import TaskPause
from wbengine.types import failure as ft

#: Placeholder in a store for the path of a folder of this run.
FOLDER = "<folder>"

#: States of a flow that ran without interruption.
_STRAIGHT = {end: f"RUNNING {end}" for end in (states.SUCCESS, states.FAILURE, states.REVERTED)}

#: `(type, text)`: exception type and a part of its message.
Error = tuple[type[BaseException], str]


@dataclass(frozen=True)
class Case:
    """Flow and expected results; omitted expectations are empty, and None is not compared.

    The flow succeeds unless it `raises` something. Then it ends REVERTED, unless `ends` differs.
    """

    #: Creates the flow.
    make: Callable[[], Any]
    #: State changes of atoms, in the order of a serial engine.
    story: str
    #: Order constraints on concurrent kinds. None: the order of `story`.
    order: Sequence[str] | None = None
    store: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Runs the flow; default: one call of `run`.
    drive: Callable[[base.Engine], Any] | None = None
    ends: str = states.SUCCESS
    #: The states of the flow, if they are not RUNNING and the last one.
    flow: str | None = None
    #: All values by name, except those of the store.
    results: Mapping[str, Any] | None = field(default_factory=dict)
    #: Failure of each atom ("?": of no atom).
    raises: Mapping[str, Error] = field(default_factory=dict)
    #: Raised exception, if it is not one of these (or all of them together).
    raised: Error | None = None
    #: Results of reversions, which usually contain their arguments.
    told: Mapping[str, Sequence[Any]] | None = field(default_factory=dict)
    #: By retry: provided values and failed atoms.
    history: Mapping[str, Sequence[tuple[Any, str]]] | None = field(default_factory=dict)
    #: Events of tasks while they ran.
    heard: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: Times of changes (`">a"`) on a manual clock, in seconds from the start.
    at: Mapping[str, Sequence[float]] = field(default_factory=dict)
    #: Seconds that pass on the manual clock at changes; a mark stands for all its changes.
    takes: Mapping[str, float] = field(default_factory=dict)
    #: Names of paused task types in `tasks`, and the seconds of their pauses on the manual clock.
    pauses: Mapping[str, float] = field(default_factory=dict)
    #: Further checks.
    check: Callable[[base.Engine], None] | None = None
    kinds: Sequence[str] | None = None

    @property
    def name(self) -> str:
        return self.make.__name__

    def runs_on(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds


CASES: list[Case] = []


def flow(story: str, **expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a flow factory as a case of the suite."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        if expected.get("raises") or expected.get("raised"):
            expected.setdefault("ends", states.REVERTED)
        CASES.append(Case(make, story, **expected))
        return make

    return register


def fails(name: str, *undone: str) -> dict[str, Any]:
    """Return the expectations for a task `Boom`, and for tasks `Step` that it reverts."""
    told = {name: [f"ValueError({name} fails) | {name}"]}
    told |= {other: [f"{other} | {name}"] for other in undone}
    return {"raises": {name: (ValueError, f"{name} fails")}, "told": told}


def play(case: Case, kind: Kind, folder: Path) -> list[str]:
    """Run a case on a kind, compare the results, and return the story."""
    pattern = case.make()
    store = {k: str(folder) if v == FOLDER else v for k, v in case.store.items()}
    options = dict(case.options)
    start = 0.0
    if case.pauses:
        start = time.time()
        options["backend"] = _paused(case.pauses, start)
    clock = manual_clock.ManualClock(start) if case.at or case.takes else clocks.SYSTEM
    engine = kind.load(pattern, store=store, clock=clock, **options)
    heard = _listen(engine, case)
    recorder = trace.Recorder(engine, clock, case.takes)
    error: BaseException | None = None
    try:
        (case.drive or _run)(engine)
    except BaseException as raised:
        if not isinstance(raised, Exception) and not case.raises:
            raise
        error = raised
    words = recorder.words
    story = " ".join(words)
    if case.order is None or kind.name == "serial":
        assert story == " ".join(case.story.split()), story
    else:
        assert trace.by_atom(words) == trace.by_atom(case.story.split()), story
        for rule in case.order:
            trace.check_order(words, rule)
    assert engine.compilation is not None
    trace.check_links(words, engine.compilation.execution_graph)
    _check_error(case, engine, error)
    assert {word: recorder.times[word] for word in case.at} == {
        word: [pytest.approx(moment) for moment in times] for word, times in case.at.items()
    }
    storage = engine.storage
    assert storage.get_flow_state() == case.ends
    assert " ".join(recorder.flow) == (case.flow or _STRAIGHT[case.ends])
    if case.results is not None:
        values = storage.fetch_all()
        expected = {**store, **case.results}
        assert (values, _types(values)) == (expected, _types(expected))
    if case.told is not None:
        assert dict(recorder.told) == {name: list(results) for name, results in case.told.items()}
    if case.history is not None:
        assert {name: _short(history) for name, history in storage.get_retry_histories()} == {
            name: list(history) for name, history in case.history.items()
        }
    assert heard == {name: list(events) for name, events in case.heard.items()}
    if case.check is not None:
        case.check(engine)
    return words


def _paused(pauses: Mapping[str, float], start: float) -> persistence.Backend:
    """Return a store in which task types are paused from `start` on."""
    backend = backends.fetch("memory://")
    for name, seconds in pauses.items():
        pause = TaskPause(f"{tasks.__name__}.{name}", None, None, start, start + seconds)
        backend.get_connection().put_pause(pause)
    return backend


def _run(engine: base.Engine) -> None:
    engine.run()


def _listen(engine: base.Engine, case: Case) -> dict[str, list[Any]]:
    """Record the events of tasks that the case expects."""
    heard: dict[str, list[Any]] = {name: [] for name in case.heard}
    assert engine.compilation is not None
    for node in engine.compilation.nodes:
        if getattr(node, "name", None) in heard and hasattr(node, "notifier"):

            def on_event(event: str, details: Any, to: list[Any] = heard[node.name]) -> None:
                to.append((event, details))

            node.notifier.register("*", on_event)
    return heard


def _short(history: Any) -> list[tuple[Any, str]]:
    return [
        (
            provided,
            # Simultaneous failures have any order.
            " ".join(sorted(f"{name}:{next(iter(failed))}" for name, failed in outcomes.items())),
        )
        for provided, outcomes in history
    ]


def _types(value: Any) -> Any:
    """Return the types in a value, which `==` mostly ignores."""
    if isinstance(value, dict):
        return dict, {key: (type(key), _types(item)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_types(item) for item in value]
    return type(value)


def _check_error(case: Case, engine: base.Engine, error: BaseException | None) -> None:
    storage = engine.storage
    if not case.raises and case.raised is None:
        assert error is None
        assert not storage.has_failures() and not storage.get_revert_failures()
        return
    failures = {**storage.get_execute_failures(), **storage.get_revert_failures()}
    assert set(failures) == set(case.raises) - {"?"}
    for name, failure in failures.items():
        _check_failure(failure, *case.raises[name])
    assert error is not None, "nothing was raised"
    # The failure of the reversion is raised, with the earlier failure as its context.
    stuck = {name: case.raises[name] for name in storage.get_revert_failures()}
    ending = stuck or case.raises
    if stuck and set(failures) > set(stuck):
        assert error.__context__ is not None
    if isinstance(error, exceptions.DeadlineExceeded):
        assert (error.cause is not None) == bool(failures)
    if case.raised is not None:
        assert isinstance(error, case.raised[0]) and case.raised[1] in str(error)
    elif len(ending) > 1:
        assert isinstance(error, exceptions.WrappedFailure)
        several = list(error)
        assert len(several) == len(ending)
        for kind, text in ending.values():
            assert any(failure.check(kind) and text in str(failure) for failure in several)
    else:
        [(kind, text)] = ending.values()
        assert text in str(error)
        if isinstance(error, kind):
            return
        # An exception that ends a process on a worker must not end the engine's process.
        assert not issubclass(kind, Exception), f"{error!r} is no {kind.__name__}"
        assert isinstance(error, exceptions.WrappedFailure) and error.check(kind)


def _check_failure(failure: ft.Failure, kind: type[BaseException], text: str) -> None:
    assert failure.check(kind), f"{failure!r} is no {kind.__name__}"
    assert text in failure.exception_str
    assert "Traceback" in failure.pformat(traceback=True)
