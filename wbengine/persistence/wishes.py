"""What somebody wants of whoever runs a flow."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wbengine import exceptions

__all__ = ["CANCEL", "SUSPEND", "WISHES", "Wish"]

SUSPEND: Final = "suspend"
CANCEL: Final = "cancel"
WISHES: Final = (SUSPEND, CANCEL)


class Wish(NamedTuple):
    """That the run of a flow be suspended, or cancelled: for a `reason`, by somebody (`by`).

    `at` is when it was uttered (unix seconds).  It is about one run, that of the lease of `epoch`,
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
        """Who wanted what, and why."""
        done = "suspended" if self.what == SUSPEND else "cancelled"
        who = f" by {self.by}" if self.by else ""
        return f"{done}{who}{f': {self.reason}' if self.reason else ''}"

    def check(self) -> None:
        """:raises ValueError: nobody can do that."""
        if self.what not in WISHES:
            raise ValueError(f"A wish is one of {', '.join(WISHES)}, not {self.what!r}")
        for what, told in (("reason", self.reason), ("by", self.by)):
            if not isinstance(told, str | None):
                raise TypeError(f"The {what} of a wish is a text or None, not {told!r:.80}")

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_dict(cls, told: Any) -> Wish:
        """:raises InvalidFormat: this is no wish."""
        try:
            made = cls(**{key: told[key] for key in cls._fields})
            made.check()
        except (LookupError, TypeError, ValueError) as error:
            raise exceptions.InvalidFormat(f"This is no wish: {error}") from error
        return made
