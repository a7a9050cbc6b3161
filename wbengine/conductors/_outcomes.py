"""What happens to a job after its conductor tried to run its flow: a pure table."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Action", "Error", "Outcome", "Stage", "decide"]


class Action(enum.Enum):
    """What a conductor does with the job."""

    #: Delete it: no conductor runs the flow again without a request.
    CONSUME = "consumed"
    #: Release the claim: any conductor claims it again.
    ABANDON = "abandoned"
    #: Release the claim, and do not claim it here for a while.
    POSTPONE = "postponed"
    TRASH = "trashed"
    #: Release the claim until the wait of the flow ends.
    PARK = "parked"
    #: Release the claim until a conductor with other code claims it.
    BLOCK = "blocked"


class Stage(enum.IntEnum):
    """How far the conductor came."""

    CLAIMED = 0
    #: The flow has an engine.
    LOADED = 1
    #: The record of the flow is that of this run.
    PREPARED = 2
    RUNNING = 3


class Error(enum.Enum):
    """Why the flow was not run to its end."""

    #: The conductor stops, lost the claim, or tries other jobs first.
    SKIPPED = enum.auto()
    #: `sys.exit()` or Ctrl-C in the flow or its factory.
    INTERRUPTED = enum.auto()
    #: The flow requires other code than that of this process.
    OTHER_CODE = enum.auto()
    #: The stored state of the flow does not permit a run.
    REFUSED = enum.auto()
    #: It may not occur later, or in another process.
    TEMPORARY = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known after an attempt to run a flow.

    :ivar error: None: the run came to an end or was suspended.
    :ivar has_ended: whether the flow has ended in this run, and this is stored.
    :ivar has_command: whether it has a command that this run did not carry out.
    :ivar was_in_progress: whether an earlier run began and the flow has not ended.
    :ivar is_blocked: whether the flow, or the claimed job, is blocked by code.
    :ivar is_parked: whether it waits for a signal, a time, a pause or a permit.
    :ivar is_suspended: whether the run was suspended.
    :ivar is_handed_over: whether that is because the conductor stops or lost the claim.
    """

    stage: Stage
    error: Error | None = None
    has_ended: bool = False
    has_command: bool = False
    was_in_progress: bool = False
    is_blocked: bool = False
    is_parked: bool = False
    is_suspended: bool = False
    is_handed_over: bool = False


def decide(outcome: Outcome) -> Action:
    """Return what happens to the job."""
    match outcome.error:
        case None if outcome.is_parked:
            return Action.PARK
        case None if outcome.is_suspended:
            # A job whose flow a command or a listener suspended is consumed, so that no conductor
            # resumes it.
            stays = outcome.is_handed_over or outcome.has_command
            return Action.ABANDON if stays else Action.CONSUME
        case None:
            return Action.CONSUME if outcome.has_ended else Action.ABANDON
        case Error.SKIPPED:
            return Action.ABANDON
        case Error.INTERRUPTED:
            return Action.POSTPONE
        case Error.OTHER_CODE:
            return Action.BLOCK if outcome.is_blocked else Action.ABANDON
        case Error.REFUSED:
            return Action.ABANDON if outcome.has_command else Action.CONSUME
    if outcome.stage >= Stage.PREPARED and outcome.is_blocked:
        return Action.BLOCK
    if outcome.has_ended:
        return Action.CONSUME
    # Other code has begun the flow, so conductors with that code can run it.
    can_run_elsewhere = outcome.was_in_progress and outcome.stage < Stage.RUNNING
    if outcome.error is Error.TEMPORARY or can_run_elsewhere or outcome.has_command:
        return Action.POSTPONE
    return Action.TRASH if outcome.stage == Stage.CLAIMED else Action.CONSUME
