"""Sign-in with OpenID Connect: the authorization code flow with PKCE."""

from __future__ import annotations

from typing import NamedTuple

from starlette.datastructures import QueryParams

from wbengine._concurrency import clocks
from wbengine.dashboard import _oidc_claims
from wbengine.dashboard._oidc_attempts import Attempts
from wbengine.dashboard._oidc_failure import NotStarted, SignInFailed
from wbengine.dashboard._oidc_provider import Provider
from wbengine.dashboard._oidc_settings import OidcSettings
from wbengine.dashboard._visitors import Visitor

__all__ = ["OidcSignIn", "SignedIn"]


class SignedIn(NamedTuple):
    """A completed sign-in.

    :ivar subject: the identifier of the user at the provider, which never changes.
    :ivar path: the page to show.
    """

    visitor: Visitor
    subject: str
    path: str


class OidcSignIn:
    """Sign-ins of people at one provider. For the event loop only.

    Nothing is requested before the first sign-in: the dashboard starts without the provider.
    """

    def __init__(self, settings: OidcSettings, clock: clocks.Clock = clocks.SYSTEM) -> None:
        self.settings = settings
        self.provider = Provider(settings, clock)
        self._attempts = Attempts(settings.session_key, clock)

    async def start(self, cookie: str | None, path: str) -> tuple[str, str]:
        """Return the URL at which a person signs in, and the cookie of the browser.

        :param cookie: the cookie of an earlier sign-in.
        :param path: the page to show afterwards.
        :raises SignInFailed: if the provider cannot be used.
        """
        browser = self._attempts.browser(cookie)
        attempt = self._attempts.new(browser, path)
        return await self.provider.authorization_url(attempt), browser

    async def finish(self, cookie: str | None, parameters: QueryParams) -> SignedIn:
        """Return the visitor whom the provider sent back with these parameters.

        :raises SignInFailed: if the sign-in is invalid, or the visitor has no role.
        """
        attempt = self._attempts.resume(cookie, _single(parameters, "state"))
        issuer = parameters.get("iss", self.settings.issuer)  # RFC 9207
        if issuer != self.settings.issuer:
            raise SignInFailed(
                "The response must be from the provider of the settings, got", issuer
            )
        if "error" in parameters:
            raise SignInFailed("The provider did not sign you in", _single(parameters, "error"))
        claims, access_token = await self.provider.redeem(_single(parameters, "code"), attempt)
        if access_token is not None and not _oidc_claims.is_complete(claims, self.settings):
            more = await self.provider.user_claims(access_token)
            if more and more.get("sub") != claims["sub"]:
                raise SignInFailed(
                    "The provider sent claims of another user", repr(more.get("sub"))
                )
            claims = {**more, **claims}
        visitor = _oidc_claims.visitor_of(claims, self.settings)
        return SignedIn(visitor, claims["sub"], attempt.path)


def _single(parameters: QueryParams, name: str) -> str:
    values = parameters.getlist(name)
    if len(values) != 1 or not values[0]:
        raise NotStarted(f"The response of the provider must contain {name} once. Sign in again.")
    return values[0]
