"""Commands to the engine of a flow: suspend or cancel it, or run it again.

A command is part of the flow's record until an engine has carried it out or refused it. It does not
belong to a lease: if an engine ends before that, the next engine of the flow reads the command.

Commands that run a flow again (`RERUN_COMMANDS`) are for submitted flows. The engine that prepares
the flow next carries them out: one write changes the records, puts the flow into PENDING and
deletes the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine.persistence._history import Change

__all__ = [
    "CANCEL", "COMMANDS", "RESUME", "RETRY", "REVERT", "RERUN_COMMANDS", "SUSPEND", "FlowCommand",
    "accepted", "by_parent", "describes", "parent_in", "refusal",
]  # fmt: skip

_PARENT: Final = "parent flow "

SUSPEND: Final = "suspend"
CANCEL: Final = "cancel"
RESUME: Final = "resume"
RETRY: Final = "retry"
REVERT: Final = "revert"
#: Commands that run a flow again.
RERUN_COMMANDS: Final = (RESUME, RETRY, REVERT)
COMMANDS: Final = (SUSPEND, CANCEL, *RERUN_COMMANDS)

_PARTICIPLES: Final = {
    SUSPEND: "suspended", CANCEL: "cancelled", RESUME: "resumed", RETRY: "retried",
    REVERT: "reverted",
}  # fmt: skip


class FlowCommand(NamedTuple):
    """A request about a flow (`what`: one of `COMMANDS`), with a `reason` and a sender (`by`).

    `at` is the time of sending in Unix seconds. `edits` changes records before the flow runs again;
    only RETRY has them. `partial`, of REVERT: effects of irreversible tasks may remain.
    """

    what: str
    reason: str | None = None
    by: str | None = None
    at: float = 0.0
    edits: Mapping[str, Any] | None = None
    partial: bool = False

    @property
    def reruns_flow(self) -> bool:
        """Whether the command runs the flow again."""
        return self.what in RERUN_COMMANDS

    def applies_to(self, state: str | None) -> bool:
        """Return whether an engine can carry the command out in this state of its flow.

        An engine that died at the end of its run leaves a command that it has not read.
        """
        return self.reruns_flow or state not in states.FLOW_ENDED

    @property
    def explanation(self) -> str | None:
        """The reason and the sender of the command, in one line, or None."""
        sender = f"by {self.by}" if self.by else ""
        return (
            f"{self.reason} ({sender})" if self.reason and sender else self.reason or sender or None
        )

    def describe(self) -> str:
        sender = f" by {self.by}" if self.by else ""
        return f"{_PARTICIPLES[self.what]}{sender}{f': {self.reason}' if self.reason else ''}"

    def refused_text(self, reason: str) -> str:
        """Return the text for the history of a flow for which this command was refused."""
        return f"not {self._replace(reason=None).describe()}: {reason}"

    def refusal_in(self, changes: Iterable[Change], since: float = 0.0) -> str | None:
        """Return why this command was refused, according to a history, or None.

        :param since: Unix seconds; earlier changes do not count.
        """
        start = self.refused_text("")
        texts = (change.why or "" for change in changes if change.at >= since)
        return next((text.removeprefix(start) for text in texts if text.startswith(start)), None)

    def pending_error(self, flow_uuid: str) -> exceptions.InvalidState:
        """Return the error for a flow that waits for a conductor which carries this request out."""
        since = datetime.fromtimestamp(self.at, UTC).isoformat(" ", "seconds")
        edits = ", with edits" if self.edits is not None else ""
        return exceptions.InvalidState(
            f"Flow {flow_uuid} has a pending request since {since}{edits}: it is about to be"
            f" {self.describe()}. To withdraw this request, suspend or cancel the flow"
        )

    def withdrawn_error(self, flow_uuid: str) -> exceptions.InvalidState:
        return exceptions.InvalidState(
            f"Flow {flow_uuid} is not {self.describe()}: the command was withdrawn or replaced"
        )

    def check(self) -> None:
        """Validate the command.

        :raises ValueError: if the command is unknown.
        :raises TypeError: if the reason or the sender is not a str, or the edits are not a dict.
        """
        if self.what not in COMMANDS:
            raise ValueError(f"A command must be one of {', '.join(COMMANDS)}, got {self.what!r}")
        for field, value in (("reason", self.reason), ("by", self.by)):
            if not isinstance(value, str | None):
                raise TypeError(
                    f"The {field} of a command must be a str or None, got {value!r:.80}"
                )
        if not isinstance(self.edits, Mapping | None):
            raise TypeError(f"Edits of a command must be a dict or None, got {self.edits!r:.80}")

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Any) -> FlowCommand:
        """Create the command from a dict.

        :raises InvalidFormat: if the data is not a valid command.
        """
        try:
            # Release 0.1 stores neither `edits` nor `partial`.
            command = cls(**{name: data[name] for name in cls._fields if name in data})
            command.check()
        except (LookupError, TypeError, ValueError) as error:
            raise exceptions.InvalidFormat(f"invalid command: {error}") from error
        return command


def by_parent(flow_uuid: str) -> str:
    """Return the sender of the commands of a flow to its children."""
    return f"{_PARENT}{flow_uuid}"


def parent_in(sender: str | None) -> str | None:
    """Return the flow that sent a command to one of its children, or None."""
    if sender is None or not sender.startswith(_PARENT):
        return None
    return sender.removeprefix(_PARENT).partition(",")[0]


def describes(text: str | None, *commands: str) -> bool:
    """Return whether a text of the history is the description of one of these commands."""
    participles = [_PARTICIPLES[command] for command in commands]
    return text in participles or any(
        text is not None and text.startswith((f"{each}: ", f"{each} by ")) for each in participles
    )


def refusal(what: str, flow_uuid: str, state: str | None) -> str | None:
    """Return why a flow in this state cannot be resumed, retried or reverted, or None."""
    state = state or states.PENDING
    if what == RESUME and state in (states.SUCCESS, states.REVERTED):
        hint = "; to run it again, use retry" if state == states.REVERTED else ""
        return f"Flow {flow_uuid} has already ended in {state}{hint}"
    reason = None
    if what == RETRY and state not in (states.FAILURE, states.SUSPENDED, states.REVERTED):
        reason = "no task can be retried"
    elif what == REVERT and state in (states.REVERTED, states.PENDING):
        reason = "no task can be reverted"
    return None if reason is None else f"Flow {flow_uuid} is in {state}: {reason}"


def accepted(
    command: FlowCommand,
    flow_uuid: str,
    state: str | None,
    *,
    is_cancelled: bool,
    stored: FlowCommand | None,
    used_by_fork: str | None = None,
) -> FlowCommand | None:
    """Return the command of a flow after it received `command`; None: no command.

    - A pending request to run the flow stays: the same request is accepted again, another one is
      refused.
    - A request to revert a flow that has not ended is a command to cancel it.
    - A command to suspend or cancel withdraws a request to run a flow that has ended.

    :param state: the stored state of the flow.
    :param is_cancelled: whether the stored record of the flow contains a cancellation.
    :param stored: the present command of the flow.
    :param used_by_fork: why the flow must not run because of its forks (`_living_forks`), or None.
    :raises InvalidState: with the reason for which the flow cannot be changed in this way.
    """
    has_ended = state in states.FLOW_ENDED
    if used_by_fork is not None:
        raise exceptions.InvalidState(used_by_fork)
    if command.reruns_flow:
        reason = refusal(command.what, flow_uuid, state)
        if reason is not None:
            raise exceptions.InvalidState(reason)
        if command.what == REVERT and not has_ended:
            if stored is not None and stored.reruns_flow:
                raise stored.pending_error(flow_uuid)
            return command._replace(what=CANCEL)
        if stored is not None and stored.what == CANCEL and not has_ended:
            raise exceptions.InvalidState(f"Flow {flow_uuid} is about to be cancelled")
        if stored is None or not stored.reruns_flow:
            return command
        if stored.what != command.what or command.edits not in (None, stored.edits):
            raise stored.pending_error(flow_uuid)
        return stored
    if has_ended:
        if stored is not None and stored.reruns_flow:
            return None
        raise exceptions.InvalidState(
            f"Flow {flow_uuid} has ended in {state}: there is nothing to {command.what}"
        )
    is_cancelling = stored is not None and stored.what == CANCEL
    if command.what == SUSPEND and is_cancelling and not is_cancelled:
        raise exceptions.InvalidState(
            f"Flow {flow_uuid} is about to be cancelled: it cannot be suspended before that"
        )
    return command
