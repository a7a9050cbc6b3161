"""Commands to suspend or cancel a flow.

A command is part of the flow's record until an engine has carried it out or refused it. It does not
belong to a lease: if an engine ends before that, the next engine of the flow reads the command.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import exceptions, states

__all__ = ["CANCEL", "COMMANDS", "SUSPEND", "FlowCommand", "check_accepted"]

SUSPEND: Final = "suspend"
CANCEL: Final = "cancel"
COMMANDS: Final = (SUSPEND, CANCEL)


class FlowCommand(NamedTuple):
    """A request to suspend or cancel a flow, with a `reason` and a sender (`by`).

    `at` is the time of sending in Unix seconds.
    """

    what: str
    reason: str | None = None
    by: str | None = None
    at: float = 0.0

    @property
    def explanation(self) -> str | None:
        """The reason and the sender of the command, in one line, or None."""
        sender = f"by {self.by}" if self.by else ""
        return (
            f"{self.reason} ({sender})" if self.reason and sender else self.reason or sender or None
        )

    def describe(self) -> str:
        result = "suspended" if self.what == SUSPEND else "cancelled"
        sender = f" by {self.by}" if self.by else ""
        return f"{result}{sender}{f': {self.reason}' if self.reason else ''}"

    def check(self) -> None:
        """Validate the command.

        :raises ValueError: if the command is unknown.
        :raises TypeError: if the reason or the sender is not a str.
        """
        if self.what not in COMMANDS:
            raise ValueError(f"A command must be one of {', '.join(COMMANDS)}, got {self.what!r}")
        for field, value in (("reason", self.reason), ("by", self.by)):
            if not isinstance(value, str | None):
                raise TypeError(
                    f"The {field} of a command must be a str or None, got {value!r:.80}"
                )

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, data: Any) -> FlowCommand:
        """Create the command from a dict.

        :raises InvalidFormat: if the data is not a valid command.
        """
        try:
            command = cls(**{key: data[key] for key in cls._fields})
            command.check()
        except (LookupError, TypeError, ValueError) as error:
            raise exceptions.InvalidFormat(f"invalid command: {error}") from error
        return command


def check_accepted(
    command: FlowCommand,
    flow_uuid: str,
    state: str | None,
    *,
    is_cancelled: bool,
    stored: FlowCommand | None,
) -> None:
    """Check that a store may replace the command `stored` of a flow by `command`.

    :param state: the stored state of the flow.
    :param is_cancelled: whether the stored record of the flow contains a cancellation.
    :raises InvalidState: with the reason for which the flow cannot be suspended or cancelled.
    """
    if state in states.FLOW_ENDED:
        raise exceptions.InvalidState(
            f"Flow {flow_uuid} has ended in {state}: there is nothing to {command.what}"
        )
    is_cancelling = stored is not None and stored.what == CANCEL
    if command.what == SUSPEND and is_cancelling and not is_cancelled:
        raise exceptions.InvalidState(
            f"Flow {flow_uuid} is about to be cancelled: it cannot be suspended before that"
        )
