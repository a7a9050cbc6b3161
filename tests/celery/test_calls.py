"""Calls of Celery clients, executed by workers of wbengine and of Celery."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from pathlib import Path

from tests.celery.conftest import REDIS, Bed, Beds
from tests.celery.journal import lines
from tests.support.brokers import Brokers
from tests.support.workers import until

NOON = dt.datetime(2026, 1, 2, 12, 30, tzinfo=dt.UTC)


def test_delayed_calls_pass_arguments_and_return_results(bed: Bed, protocol: int) -> None:
    assert bed.using(task_protocol=protocol).call("delays") == [
        5,
        "ab",
        [[1, [2, {"three": None}]], {"four": 4.5, "five": True}],
        "é\u2028\U0001f600 zażółć",
        ["str", 1_000_000],
        {
            "when": NOON,
            "id": uuid.UUID("12345678-1234-5678-1234-567812345678"),
            "price": decimal.Decimal("1.10"),
        },
        3,
    ]


def test_countdown_and_eta_delay_tasks_and_expired_tasks_are_revoked(
    bed: Bed, protocol: int
) -> None:
    """The times also include one of a client in another time zone."""
    answer = bed.using(task_protocol=protocol).call("timed")
    after = {"countdown": 0.5, "eta": 0.6, "eta there": 0.4, "eta over": 0, "expires": 0}
    for name, least in after.items():
        assert answer[name]["state"] == "SUCCESS", (name, answer)
        assert answer[name]["value"] >= least - 0.01, (name, answer)
    for name in set(answer) - set(after):
        assert answer[name]["state"] == "REVOKED", (name, answer)
        error = answer[name]["error"]
        assert (error["module"], error["type"]) == ("celery.exceptions", "TaskRevokedError")
        assert "expired" in error["text"]


def test_client_of_tests_reconnects_after_restart_of_redis(
    beds: Beds, broker_servers: Brokers
) -> None:
    """Tests of other folders kill the server between two tests of Celery."""
    for _ in range(2):
        assert beds.get(*REDIS).call("inspect", "ping")
        broker_servers["redis"].kill()


def test_get_raises_exception_of_task(bed: Bed, protocol: int) -> None:
    answer = bed.using(task_protocol=protocol).call("failures")
    assert {each["state"] for each in answer.values()} == {"FAILURE"}
    kinds = {
        name: (each["error"]["module"], each["error"]["type"]) for name, each in answer.items()
    }
    hidden = kinds.pop("hidden")
    assert hidden[1] in ("Hidden", "UnpickleableExceptionWrapper"), hidden
    assert kinds == {
        "builtin": ("builtins", "ValueError"),
        "odd": ("tests.celery.tasks", "Odd"),
        "arguments": ("builtins", "TypeError"),
        "kwargs": ("builtins", "TypeError"),
        "unknown": ("celery.exceptions", "NotRegistered"),
    }
    assert answer["builtin"]["error"]["args"] == ["no such luck", 7]
    assert answer["odd"]["error"]["args"] == ["as odd as can be", 3]
    assert "of nowhere" in answer["hidden"]["error"]["text"]
    assert "tests.celery.tasks.ad" in answer["unknown"]["error"]["text"]
    assert "'z'" in answer["kwargs"]["error"]["text"]
    traceback = answer["builtin"]["traceback"]
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert "raise ValueError(text, 7) from error" in traceback
    assert "KeyError: 'absent'" in traceback
    assert traceback.endswith("ValueError: ('no such luck', 7)\n")


def test_link_and_link_error_callbacks_run(bed: Bed, protocol: int, tmp_path: Path) -> None:
    answer = bed.using(task_protocol=protocol).call("links", str(tmp_path))
    assert answer["value"] == 3 and answer["children"] >= 1
    assert answer["error"]["error"]["type"] == "ValueError"
    until(lambda: len(lines(tmp_path / "good")) == 3 and len(lines(tmp_path / "bad")) == 2)
    assert lines(tmp_path / "good") == ["15", "3", "immutable"]
    assert lines(tmp_path / "bad") == [f"error of {answer['ids'][1]}", "immutable"]


def test_result_ignored_by_caller_is_stored_only_in_protocol_1(
    bed: Bed, protocol: int, tmp_path: Path
) -> None:
    # Version 1 has no header for ignored results: only the task of the worker can set it.
    expected = ["PENDING", "PENDING"] if protocol == 2 else ["SUCCESS", "FAILURE"]
    is_stored = protocol == 1 and bed.backend != "rpc://"
    answer = bed.using(task_protocol=protocol).call("ignored", str(tmp_path / "path"), is_stored)
    assert answer["states"] == expected or (bed.backend == "rpc://" and protocol == 1)


def test_task_request_has_ids_parents_groups_stamps_and_headers(bed: Bed) -> None:
    answer = bed.call("facts")
    task_id, plain = answer["plain"]
    assert plain == {
        "id": task_id,
        "correlation_id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "stamps": {},
        "extra": None,
    }
    assert answer["headers"][1]["extra"] == "red"
    assert answer["stamped"][1]["stamps"] == {"batch": "seven", "color": "blue"}
    first, second, third = answer["chain"]
    parents = [each[1]["parent_id"] for each in answer["chain"]]
    assert parents == [None, first[0], second[0]]
    assert {each[1]["root_id"] for each in answer["chain"]} == {first[0]}
    assert third[1]["id"] == third[0]
    group, ids, members = answer["group"]
    assert [each["id"] for each in members] == ids
    assert {each["group"] for each in members} == {group}
    assert [each["group_index"] for each in members] == [0, 1, 2]


def test_flaky_task_is_retried_until_max_retries(bed: Bed, tmp_path: Path) -> None:
    assert bed.run("flaky", str(tmp_path / "a"), 2)["value"] == 3
    answer = bed.run("flaky", str(tmp_path / "b"), 9, 1)
    assert (answer["state"], answer["error"]["type"]) == ("FAILURE", "Odd")
    assert answer["error"]["args"] == ["too often", 2]
    assert len(lines(tmp_path / "b")) == 2


def test_errback_with_three_arguments_runs_in_worker(bed: Bed, tmp_path: Path) -> None:
    path = tmp_path / "path"
    task_id = bed.call("errback", str(path))["id"]
    until(lambda: lines(path))
    assert lines(path) == [f"{task_id} tests.celery.tasks.fail ValueError ('no such luck', 7)"]
