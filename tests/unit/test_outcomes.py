"""What happens to a job after its conductor tried to run its flow."""

from __future__ import annotations

import itertools

import pytest

from wbengine.conductors._outcomes import Action, Error, Outcome, Stage, decide

CLAIMED, LOADED, PREPARED, RUNNING = Stage


@pytest.mark.parametrize(
    ("outcome", "action"),
    [
        (Outcome(CLAIMED, Error.SKIPPED), Action.ABANDON),
        (Outcome(LOADED, Error.SKIPPED, is_blocked=True), Action.ABANDON),
        (Outcome(CLAIMED, Error.INTERRUPTED), Action.POSTPONE),
        (Outcome(CLAIMED, Error.OTHER_CODE), Action.ABANDON),
        (Outcome(CLAIMED, Error.OTHER_CODE, is_blocked=True), Action.BLOCK),
        (Outcome(CLAIMED, Error.OTHER), Action.TRASH),
        (Outcome(CLAIMED, Error.OTHER, was_in_progress=True), Action.POSTPONE),
        (Outcome(CLAIMED, Error.TEMPORARY), Action.POSTPONE),
        (Outcome(LOADED, Error.REFUSED), Action.CONSUME),
        (Outcome(LOADED, Error.REFUSED, has_command=True), Action.ABANDON),
        (Outcome(LOADED, Error.OTHER), Action.CONSUME),
        (Outcome(LOADED, Error.OTHER, was_in_progress=True), Action.POSTPONE),
        (Outcome(LOADED, Error.OTHER, is_blocked=True), Action.CONSUME),
        (Outcome(PREPARED, Error.OTHER, is_blocked=True), Action.BLOCK),
        (Outcome(RUNNING, Error.TEMPORARY, is_blocked=True), Action.BLOCK),
        (Outcome(RUNNING, Error.OTHER), Action.CONSUME),
        (Outcome(RUNNING, Error.OTHER, has_ended=True), Action.CONSUME),
        (Outcome(RUNNING, Error.TEMPORARY), Action.POSTPONE),
        (Outcome(RUNNING, Error.TEMPORARY, has_ended=True), Action.CONSUME),
        (Outcome(RUNNING, Error.OTHER, has_command=True), Action.POSTPONE),
        (Outcome(RUNNING, has_ended=True), Action.CONSUME),
        (Outcome(RUNNING), Action.ABANDON),
        (Outcome(RUNNING, is_parked=True, is_suspended=True), Action.PARK),
        (Outcome(RUNNING, is_suspended=True), Action.CONSUME),
        (Outcome(RUNNING, is_suspended=True, has_command=True), Action.ABANDON),
        (Outcome(RUNNING, is_suspended=True, is_handed_over=True), Action.ABANDON),
    ],
)
def test_outcome_decides_about_the_job(outcome: Outcome, action: Action) -> None:
    assert decide(outcome) is action


def test_job_of_a_flow_that_may_still_run_is_never_deleted() -> None:
    """A flow with an unfinished run of other code, or with a command, keeps its job."""
    flags = [False, True]
    for stage, error, ended, command, progress in itertools.product(
        Stage, [Error.TEMPORARY, Error.OTHER], flags, flags, flags
    ):
        outcome = Outcome(
            stage, error, has_ended=ended, has_command=command, was_in_progress=progress
        )
        is_open = command or (progress and stage < RUNNING) or error is Error.TEMPORARY
        if is_open and not ended:
            assert decide(outcome) in (Action.POSTPONE, Action.ABANDON), outcome
