"""The options of requests, and how their arguments are shown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.requesting import Bench, Job
from wbengine import engines, limits
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import traces
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.patterns import linear_flow

WRONG: list[tuple[str, Any, type[Exception]]] = [
    ("on_worker_lost", "retry", ValueError),
    ("on_worker_lost", None, ValueError),
    ("max_resends", -1, ValueError),
    ("max_resends", 1.5, ValueError),
    ("max_resends", True, ValueError),
    ("max_resends", 100_000, ValueError),
    ("timelimit", (5, 1), ValueError),
    ("timelimit", "soon", TypeError),
    ("max_message_size", 0, ValueError),
    ("max_message_size", "big", ValueError),
    ("broker_persistent", "yes", TypeError),
    ("broker_persistent", 1, TypeError),
    ("result_ttl", -1, ValueError),
    ("result_ttl", float("inf"), ValueError),
    ("result_ttl", "week", ValueError),
    ("trace_arguments", "yes", TypeError),
]


@pytest.mark.parametrize(("name", "value", "error"), WRONG)
def test_what_makes_no_sense_is_refused_by_name(
    name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        executors.WorkerTaskExecutor("e", "x", url="memory://terms", **{name: value})
    with pytest.raises(error, match=name):
        engines.load(
            linear_flow.Flow("f"), engine="worker-based", url="memory://t", **{name: value}
        )


def test_what_is_no_option_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"max_resend'.*max_resends"):
        executors.WorkerTaskExecutor("e", "x", url="memory://terms", max_resend=1)


def test_options_reach_the_executor_also_by_uri() -> None:
    uri = (
        "worker-based://?on_worker_lost=resend&max_resends=5&timelimit=none,30"
        "&max_message_size=1000&broker_persistent=true&result_ttl=none&trace_arguments=true"
        "&url=memory://uri"
    )
    made = engines.load(linear_flow.Flow("f"), engine=uri).executor._options
    assert made == RequestOptions("resend", 5, (None, 30), 1000, True, None, True)
    assert made.timelimit == limits.TimeLimit(None, 30.0)


def test_whether_a_task_may_run_twice() -> None:
    job = Job("j")
    assert not RequestOptions().repeats(job) and RequestOptions("resend").repeats(job)
    job.idempotent = True
    assert RequestOptions().repeats(job)
    job.idempotent = False
    assert not RequestOptions("resend").repeats(job)


# Headers -----------------------------------------------------------------------------------------


def headers(*, limit: Any = None, call: Any = None, **terms: Any) -> dict[str, Any]:
    bench = Bench(**terms)
    made = bench.call(**(call or {}))
    made.task.timelimit = limit
    (dispatch,) = bench.tracker.submit(made, lambda *_: None, 0.0)
    found: dict[str, Any] = dispatch.envelope.headers  # type: ignore[union-attr]
    return found


def test_limits_travel_as_others_write_them() -> None:
    assert env.TIMELIMIT not in headers()
    assert headers(timelimit=(3, 5))[env.TIMELIMIT] == [5.0, 3.0]
    assert headers(timelimit=(3, 5), limit=(None, 9))[env.TIMELIMIT] == [9.0, None]


def test_how_often_it_was_tried_before() -> None:
    assert headers(call={"attempt": 1})[env.RETRIES] == 0
    assert headers(call={"attempt": 4})[env.RETRIES] == 3


@pytest.mark.parametrize(
    ("ledger", "option", "persistent"),
    [("l", None, False), (None, None, True), ("l", True, True), (None, False, False)],
)
def test_what_survives_the_broker(ledger: Any, option: Any, persistent: bool) -> None:
    bench = Bench(ledger=ledger, broker_persistent=option)
    (dispatch,) = bench.tracker.submit(bench.call(), lambda *_: None, 0.0)
    assert dispatch.envelope.persistent is persistent  # type: ignore[union-attr]


def test_arguments_are_shown_only_when_asked_for() -> None:
    call = {"arguments": {"x": 1, "password": "hunter2"}}
    assert env.KWARGSREPR not in headers(call=call)
    shown = headers(call=call, trace_arguments=True)
    assert shown[env.KWARGSREPR] == "{'x': 1, 'password': ***}"
    assert shown[env.ARGSREPR] == "()"


class Teller:
    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize(
    "arguments",
    [
        {"Password": "hunter2"},
        {"api_key": "hunter2"},
        {"x": {"deep": {"auth-token": "hunter2"}}},
        {"x": [{"client_secret": ["hunter2"]}]},
        {"x": Teller()},
        {"x": b"hunter2"},
        {"x": {"secret": {"y": "hunter2"}}},
    ],
)
def test_what_is_called_a_secret_is_not_shown(arguments: Any) -> None:
    assert "hunter2" not in traces.headers(arguments)[env.KWARGSREPR]


def test_what_is_shown_is_short_whatever_it_is() -> None:
    looped: list[Any] = []
    looped.append(looped)
    for value in ("x" * 10**6, list(range(10**6)), looped, {n: n for n in range(10**5)}, 10**5000):
        assert len(traces.headers({"x": value})[env.KWARGSREPR]) <= traces.LONGEST


def test_options_that_are_the_executors_own_are_named(caplog: pytest.LogCaptureFixture) -> None:
    desk = executors.WorkerTaskExecutor("desk", "default", url="memory://terms")
    flow = linear_flow.Flow("f")

    def load(**options: Any) -> None:
        engines.load(flow, engine="worker-based", executor=desk, **options).compile()

    load(strict_results=True, never_resolve=False)
    assert not caplog.text
    load(transition_timeout=2, max_resends=1, url="memory://terms")
    (record,) = caplog.records
    assert record.getMessage().endswith(": max_resends, transition_timeout, url")


@pytest.mark.parametrize(
    ("wait", "kind", "words"),
    [
        (("x",), TypeError, "workers must be a whole number, not 'x'"),
        ((True, 0.1), TypeError, "workers must be"),
        ((1.5, 0.1), TypeError, "workers must be"),
        ((1, "soon"), TypeError, "timeout must be seconds or None, not 'soon'"),
        ((0,), ValueError, "can only wait for one worker or more"),
    ],
)
def test_nobody_waits_for_nonsense(wait: tuple[Any, ...], kind: Any, words: str) -> None:
    desk = executors.WorkerTaskExecutor("desk", "default", url="memory://terms")
    with pytest.raises(kind, match=words):
        desk.wait_for_workers(*wait)
    assert not desk._kept, "it was not started for that"
