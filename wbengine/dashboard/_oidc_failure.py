"""The failure of a sign-in with OpenID Connect."""

from __future__ import annotations

__all__ = ["NotStarted", "SignInFailed"]


class SignInFailed(Exception):
    """A sign-in that did not succeed.

    :ivar message: the reason, for the page and the audit log.
    :ivar detail: text of the provider or the browser that caused it, or None.
    :ivar status: the HTTP status: 401 for an invalid sign-in, 403 for a user without a role, 503 if
        the provider does not work.
    """

    def __init__(self, message: str, detail: object = None, *, status: int = 401) -> None:
        super().__init__(message if detail is None else f"{message}: {detail!s:.300}")
        self.message = message
        self.detail = None if detail is None else str(detail)
        self.status = status


class NotStarted(SignInFailed):
    """The response of a provider belongs to no sign-in of this browser.

    It guesses no secret, and a page of another site can cause it, so it does not count as a guess.
    """
