"""A command to the engine that runs a flow, which is left for it in the store."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import exceptions

__all__ = ["CANCEL", "COMMANDS", "SUSPEND", "FlowCommand"]

SUSPEND: Final = "suspend"
CANCEL: Final = "cancel"
COMMANDS: Final = (SUSPEND, CANCEL)


class FlowCommand(NamedTuple):
    """That the run of a flow be suspended, or cancelled: for a `reason`, by somebody (`by`).

    `at` is when it was given (unix seconds).  It is about one run, that of the lease of `epoch`,
    which the store fills in; a later run never hears of it.
    """

    what: str
    reason: str | None = None
    by: str | None = None
    at: float = 0.0
    epoch: int = 0

    @property
    def told(self) -> str | None:
        """The reason, and whose it is."""
        who = f"by {self.by}" if self.by else ""
        return f"{self.reason} ({who})" if self.reason and who else self.reason or who or None

    def in_words(self) -> str:
        """What is to be done, by whose command, and why."""
        done = "suspended" if self.what == SUSPEND else "cancelled"
        who = f" by {self.by}" if self.by else ""
        return f"{done}{who}{f': {self.reason}' if self.reason else ''}"

    def check(self) -> None:
        """:raises ValueError: no engine can do that.
        :raises TypeError: the reason, or who gives it, is no text.
        """
        if self.what not in COMMANDS:
            raise ValueError(f"A command is one of {', '.join(COMMANDS)}, not {self.what!r}")
        for what, told in (("reason", self.reason), ("by", self.by)):
            if not isinstance(told, str | None):
                raise TypeError(f"The {what} of a command is a text or None, not {told!r:.80}")

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, told: Any) -> FlowCommand:
        """:raises InvalidFormat: this is no command."""
        try:
            made = cls(**{key: told[key] for key in cls._fields})
            made.check()
        except (LookupError, TypeError, ValueError) as error:
            raise exceptions.InvalidFormat(f"This is no command: {error}") from error
        return made
