"""Options of requests, and arguments in their headers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.trackers import Bench
from wbengine import engines, time_limits
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based._messages import argument_display
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._requests.options import RequestOptions
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
def test_invalid_option_value_is_rejected_by_name(
    name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        executors.WorkerTaskExecutor("e", "x", url="memory://terms", **{name: value})
    with pytest.raises(error, match=name):
        engines.load(
            linear_flow.Flow("f"), engine="worker-based", url="memory://t", **{name: value}
        )


def test_unknown_option_is_rejected_with_similar_name() -> None:
    with pytest.raises(TypeError, match=r"max_resend'.*max_resends"):
        executors.WorkerTaskExecutor("e", "x", url="memory://terms", max_resend=1)


def test_options_in_engine_uri_reach_the_executor() -> None:
    uri = (
        "worker-based://?on_worker_lost=resend&max_resends=5&timelimit=none,30"
        "&max_message_size=1000&broker_persistent=true&result_ttl=none&trace_arguments=true"
        "&url=memory://uri"
    )
    options = engines.load(linear_flow.Flow("f"), engine=uri).executor._options
    assert options == RequestOptions("resend", 5, (None, 30), 1000, True, None, True)
    assert options.timelimit == time_limits.TimeLimit(None, 30.0)


# Headers -----------------------------------------------------------------------------------------


def headers(*, limit: Any = None, call: Any = None, **terms: Any) -> dict[str, Any]:
    bench = Bench(**terms)
    call_with_options = bench.call(**(call or {}))
    call_with_options.task.timelimit = limit
    (dispatch,) = bench.tracker.submit(call_with_options, lambda *_: None, 0.0)
    found: dict[str, Any] = dispatch.envelope.headers  # type: ignore[union-attr]
    return found


def test_timelimit_header_has_hard_limit_first_as_in_celery() -> None:
    assert hd.TIMELIMIT not in headers()
    assert headers(timelimit=(3, 5))[hd.TIMELIMIT] == [5.0, 3.0]
    assert headers(timelimit=(3, 5), limit=(None, 9))[hd.TIMELIMIT] == [9.0, None]


def test_retries_header_is_number_of_previous_attempts() -> None:
    assert headers(call={"attempt": 1})[hd.RETRIES] == 0
    assert headers(call={"attempt": 4})[hd.RETRIES] == 3


@pytest.mark.parametrize(
    ("ledger", "option", "persistent"),
    [("l", None, False), (None, None, True), ("l", True, True), (None, False, False)],
    ids=["ledger", "no-ledger", "ledger-persistent", "no-ledger-transient"],
)
def test_request_is_persistent_without_ledger_or_on_request(
    ledger: Any, option: Any, persistent: bool
) -> None:
    bench = Bench(ledger=ledger, broker_persistent=option)
    (dispatch,) = bench.tracker.submit(bench.call(), lambda *_: None, 0.0)
    assert dispatch.envelope.persistent is persistent  # type: ignore[union-attr]


def test_arguments_are_shown_in_headers_only_on_request() -> None:
    call = {"arguments": {"x": 1, "password": "hunter2"}}
    assert hd.KWARGSREPR not in headers(call=call)
    shown = headers(call=call, trace_arguments=True)
    assert shown[hd.KWARGSREPR] == "{'x': 1, 'password': ***}"
    assert shown[hd.ARGSREPR] == "()"


class Teller:
    def __repr__(self) -> str:
        return "hunter2"


SECRETS: dict[str, Any] = {
    "password": {"Password": "hunter2"},
    "api-key": {"api_key": "hunter2"},
    "nested-token": {"x": {"deep": {"auth-token": "hunter2"}}},
    "nested-secret": {"x": [{"client_secret": ["hunter2"]}]},
    "repr": {"x": Teller()},
    "bytes": {"x": b"hunter2"},
    "dict-in-secret": {"x": {"secret": {"y": "hunter2"}}},
}


@pytest.mark.parametrize("arguments", SECRETS.values(), ids=SECRETS)
def test_secret_arguments_are_masked_in_headers(arguments: Any) -> None:
    assert "hunter2" not in argument_display.headers(arguments)[hd.KWARGSREPR]


def test_shown_arguments_have_limited_length() -> None:
    looped: list[Any] = []
    looped.append(looped)
    for value in ("x" * 10**6, list(range(10**6)), looped, {n: n for n in range(10**5)}, 10**5000):
        shown = argument_display.headers({"x": value})[hd.KWARGSREPR]
        assert len(shown) <= argument_display.MAX_LENGTH


def test_options_ignored_by_given_executor_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    desk = executors.WorkerTaskExecutor("desk", "default", url="memory://terms")
    flow = linear_flow.Flow("f")

    def load(**options: Any) -> None:
        engines.load(flow, engine="worker-based", executor=desk, **options).compile()

    load(strict_results=True, never_resolve=False)
    assert not caplog.text
    load(transition_timeout=2, max_resends=1, url="memory://terms")
    (record,) = caplog.records
    assert record.getMessage().endswith(": max_resends, transition_timeout, url")


INVALID_WAITS: dict[str, tuple[Any, Any, str]] = {
    "workers-str": (("x",), TypeError, "workers must be a whole number, got 'x'"),
    "workers-bool": ((True, 0.1), TypeError, "workers must be"),
    "workers-float": ((1.5, 0.1), TypeError, "workers must be"),
    "timeout-str": ((1, "soon"), TypeError, "timeout must be seconds or None, got 'soon'"),
    "workers-zero": ((0,), ValueError, "workers must be at least 1"),
}


@pytest.mark.parametrize(("wait", "kind", "words"), INVALID_WAITS.values(), ids=INVALID_WAITS)
def test_invalid_wait_for_workers_arguments_are_rejected(
    wait: tuple[Any, ...], kind: Any, words: str
) -> None:
    desk = executors.WorkerTaskExecutor("desk", "default", url="memory://terms")
    with pytest.raises(kind, match=words):
        desk.wait_for_workers(*wait)
    assert not desk._is_kept, "it was not started for that"
