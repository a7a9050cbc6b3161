"""What a task may say of its message; how a pool carries that is in `test_calls`."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import Any

import pytest

from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.types.failure import Failure

MESSAGE = TaskMessage("proj.add", "id-1")


def told(error: BaseException, task: Any = None, message: TaskMessage = MESSAGE) -> Any:
    return retrying.verdict(Failure.from_exception(error), message, task, 1000.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"countdown": 1, "eta": 1}, "not both"),
        ({"countdown": -1}, "countdown must be a number of at least 0"),
        ({"countdown": "1"}, "countdown must be"),
        ({"countdown": math.inf}, "for ever"),
        ({"countdown": math.nan}, "countdown must be"),
        ({"eta": dt.datetime(2030, 1, 1)}, "time zone"),
        ({"max_retries": True}, "max_retries must be"),
    ],
)
def test_it_must_make_sense(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        retrying.Retry(**options)


def test_a_time_with_a_zone_is_taken() -> None:
    when = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    assert told(retrying.Retry(eta=when)).eta == when.timestamp()
    assert told(retrying.Retry(countdown=0)).eta == 1000.0


def test_the_task_says_what_the_exception_does_not() -> None:
    class Mine:
        default_retry_delay = 5
        max_retries = 1

    assert told(retrying.Retry(), Mine).eta == 1005.0
    again = TaskMessage("proj.add", "id-1", retries=1)
    assert told(retrying.Retry(), Mine, again).check(retrying.MaxRetriesExceeded)
    assert isinstance(told(retrying.Retry(max_retries=2), Mine, again), retrying.Again)
    assert told(retrying.Retry(max_retries=0)).check(retrying.MaxRetriesExceeded)


def test_all_else_is_left_alone() -> None:
    failure = Failure.from_exception(ValueError("x"))
    assert retrying.verdict(failure, MESSAGE, None, 0.0) is failure


def test_celerys_own_exceptions_mean_the_same() -> None:
    class Ignore(Exception):
        pass

    class Reject(Exception):
        requeue = True

    Ignore.__module__ = Reject.__module__ = "celery.exceptions"
    Ignore.__qualname__, Reject.__qualname__ = "Ignore", "Reject"
    assert told(Ignore()).ignored
    assert told(Reject()).requeue


def test_verdicts_pickle_whatever_they_hold() -> None:
    class Local(Exception):
        pass

    again = told(retrying.Retry(exc=Local("text")))
    found = pickle.loads(pickle.dumps(again))
    assert found.eta == again.eta
    assert found.why.exception is None
    assert found.why.exception_str == "text"


def test_nothing_runs_here() -> None:
    assert retrying.current() is None
