"""Checks of the tokens and access keys in requests."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wbengine.dashboard import _audit
from wbengine.dashboard._failed_attempts import FailedAttempts
from wbengine.dashboard._key_visitors import KeyVisitors
from wbengine.dashboard._sessions import Sessions
from wbengine.dashboard._visitors import Visitor
from wbengine.persistence import _access_keys

__all__ = ["Credentials"]


class Credentials:
    """Checks of credentials, with a limit of failed attempts. For the event loop only."""

    def __init__(self, sessions: Sessions, keys: KeyVisitors) -> None:
        self._sessions = sessions
        self._keys = keys
        self._attempts = FailedAttempts()

    async def visitor_of_request(
        self, request: Request, token: str | None
    ) -> tuple[Visitor | None, bool]:
        """Return the visitor of a request, and whether the token in its header identifies it.

        A browser may send a token of another service, and a cookie of this one.

        :raises Exceeded: if the address sent too many invalid tokens.
        :raises StorageFailure: if the store with the access keys cannot be read.
        """
        is_key = token is not None and _access_keys.is_key(token)
        if self._sessions.open_to_all and not is_key:
            return self._sessions.visitor_of_token(token), True
        if token is None:
            return self._visitor_of_cookie(request), False
        address = _audit.address(request)
        is_blocked = self._attempts.is_blocked(address, token)
        visitor = None if is_blocked else await self._visitor_of(token)
        if visitor is not None:
            self._attempts.accept(token)
            return visitor, True
        # A program with a revoked key must not work because of a cookie.
        visitor = None if is_key else self._visitor_of_cookie(request)
        if visitor is None:
            self._fail(address, is_blocked)
        return visitor, False

    def sign_in(self, request: Request, token: str) -> Visitor | None:
        """Return the visitor of a token that a person entered; None for access keys.

        :raises Exceeded: if the address sent too many invalid tokens.
        """
        address = _audit.address(request)
        is_blocked = self._attempts.is_blocked(address, token)
        visitor = None
        if not (is_blocked or _access_keys.is_key(token)):
            visitor = self._sessions.visitor_of_token(token)
        if visitor is None:
            self._fail(address, is_blocked)
        else:
            self._attempts.accept(token)
        return visitor

    def check_address(self, request: Request) -> None:
        """Check that the address may sign in at the provider.

        :raises Exceeded: if it failed too often.
        """
        address = _audit.address(request)
        if self._attempts.is_blocked(address, ""):
            raise self._attempts.refusal(address)

    def note_failure(self, request: Request) -> None:
        """Count a failed sign-in at the provider."""
        self._attempts.fail(_audit.address(request))

    async def _visitor_of(self, token: str) -> Visitor | None:
        if _access_keys.is_key(token):
            return await run_in_threadpool(self._keys.visitor_of, token)
        return self._sessions.visitor_of_token(token)

    def _visitor_of_cookie(self, request: Request) -> Visitor | None:
        return self._sessions.visitor_of_cookie(request.cookies.get(self._sessions.cookie))

    def _fail(self, address: str, is_blocked: bool) -> None:
        if is_blocked:
            raise self._attempts.refusal(address)
        self._attempts.fail(address)
