"""Allowed state transitions of flows, jobs and atoms."""

from __future__ import annotations

import itertools

import pytest

from wbengine import states as s
from wbengine.exceptions import InvalidState

ATOM_STATES = [
    s.PENDING, s.RUNNING, s.SUCCESS, s.FAILURE, s.REVERTING, s.REVERTED, s.REVERT_FAILURE,
    s.IGNORE, s.RETRYING,
]  # fmt: skip
TASK = {
    s.PENDING: {s.RUNNING, s.IGNORE},
    s.RUNNING: {s.SUCCESS, s.FAILURE},
    s.SUCCESS: {s.REVERTING},
    s.FAILURE: {s.REVERTING},
    s.REVERTING: {s.REVERTED, s.REVERT_FAILURE},
    s.REVERT_FAILURE: {s.REVERTING},
    s.REVERTED: {s.PENDING},
    s.IGNORE: {s.PENDING},
}
RETRY = {**TASK, s.SUCCESS: {s.REVERTING, s.RETRYING}, s.RETRYING: {s.RUNNING, s.REVERTING}}
FLOW_STATES = [
    s.PENDING, s.RUNNING, s.SUCCESS, s.FAILURE, s.REVERTED, s.SUSPENDING, s.SUSPENDED, s.RESUMING,
]  # fmt: skip
FLOW = {
    s.PENDING: {s.RUNNING},
    s.RUNNING: {s.SUCCESS, s.FAILURE, s.REVERTED, s.SUSPENDING, s.RESUMING},
    s.SUCCESS: {s.RUNNING, s.PENDING},
    s.FAILURE: {s.RUNNING, s.PENDING},
    s.REVERTED: {s.PENDING},
    s.SUSPENDING: {s.SUSPENDED, s.SUCCESS, s.FAILURE, s.REVERTED, s.RESUMING},
    s.SUSPENDED: {s.RUNNING, s.PENDING},
    s.RESUMING: {s.SUSPENDED},
}
IGNORED = {
    old: {s.SUSPENDING, s.SUSPENDED, s.RESUMING}
    for old in (s.PENDING, s.FAILURE, s.SUCCESS, s.SUSPENDED, s.REVERTED)
}
JOB = {s.UNCLAIMED: {s.CLAIMED}, s.CLAIMED: {s.COMPLETE, s.UNCLAIMED}}
NONE: dict[str, set[str]] = {}

CASES = [
    (s.check_flow_transition, FLOW_STATES, FLOW, IGNORED),
    (s.check_job_transition, [s.UNCLAIMED, s.CLAIMED, s.COMPLETE], JOB, NONE),
]


def expected(old, new, allowed, ignored):
    """Return True for an allowed change, False for an ignored one, None for a rejected one."""
    if old == new or new in ignored.get(old, ()):
        return False
    return True if new in allowed.get(old, ()) else None


@pytest.mark.parametrize(("check", "known", "allowed", "ignored"), CASES, ids=["flow", "job"])
def test_flow_and_job_transitions_match_the_tables(check, known, allowed, ignored):
    for old, new in itertools.product(known, repeat=2):
        answer = expected(old, new, allowed, ignored)
        if answer is None:
            with pytest.raises(InvalidState, match=f"from {old} to {new} is not allowed"):
                check(old, new)
        else:
            assert check(old, new) is answer, (old, new)


@pytest.mark.parametrize(
    ("check", "allowed"),
    [(s.check_task_transition, TASK), (s.check_retry_transition, RETRY)],
    ids=["task", "retry"],
)
def test_atom_transitions_match_the_tables(check, allowed):
    found = {
        old: {new for new in ATOM_STATES if check(old, new)}
        for old in ATOM_STATES
        if any(check(old, new) for new in ATOM_STATES)
    }
    assert found == allowed
    assert check(s.PENDING, s.RUNNING) is True and check(s.PENDING, "SUCESS") is False


def test_intentions_are_execute_ignore_revert_and_retry():
    assert s.INTENTIONS == ("EXECUTE", "IGNORE", "REVERT", "RETRY")
