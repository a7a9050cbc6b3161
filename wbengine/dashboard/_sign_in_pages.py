"""Pages that sign visitors in and out."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from wbengine.dashboard import _audited_actions, _http_errors, _oidc_attempts, _roles, _urls
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._oidc_failure import NotStarted, SignInFailed

__all__ = ["SignInPages"]

#: Seconds for which a browser keeps the cookie of a sign-in at the provider.
_BROWSER_SECONDS: Final = int(_oidc_attempts.ATTEMPT_SECONDS)


class SignInPages:
    """Handlers of the sign-in with a token or at a provider of OpenID Connect, and of sign-out."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        routes = [
            Route("/login", self.login_page),
            Route("/login", self.login, methods=["POST"]),
        ]
        if self._state.sign_in is not None:
            routes += [
                Route(_urls.SIGN_IN, self.start),
                Route(_urls.SIGN_IN_CALLBACK, self.finish),
                Route("/logout", self.logout, methods=["POST"]),
            ]
        return routes

    def login_page(self, request: Request) -> Response:
        return _http_errors.login_page(request, self._state)

    async def login(self, request: Request) -> Response:
        """Exchange a token for a cookie."""
        form = await _audited_actions.read_form(request)
        token = form.get("token", "")
        visitor = self._state.credentials.sign_in(request, token)
        if visitor is None or visitor.role == _roles.PROXY:
            self._state.audit.refused(request, "login")
            return _http_errors.page(request, self._state, 401, "The token is not valid.")
        return self._state.admit(request, token, _urls.href(request, "/"))

    async def start(self, request: Request) -> Response:
        """Send the browser to the provider."""
        assert self._state.sign_in is not None
        cookie = request.cookies.get(self._state.browser_cookie)
        try:
            url, browser = await self._state.sign_in.start(
                cookie, request.query_params.get("next", "/")
            )
        except SignInFailed as error:
            return self._failed(request, error)
        response = RedirectResponse(url, 303)
        self._state.set_cookie(
            request,
            response,
            browser,
            name=self._state.browser_cookie,
            path=_urls.SIGN_IN,
            max_age=_BROWSER_SECONDS,
            samesite="lax",
        )
        return response

    async def finish(self, request: Request) -> Response:
        """Begin the session of a visitor who comes back from the provider."""
        assert self._state.sign_in is not None
        self._state.credentials.check_address(request)
        cookie = request.cookies.get(self._state.browser_cookie)
        try:
            signed_in = await self._state.sign_in.finish(cookie, request.query_params)
        except SignInFailed as error:
            # 503 is not the fault of the browser.
            if error.status != 503 and not isinstance(error, NotStarted):
                self._state.credentials.note_failure(request)
            return self._failed(request, error)
        request.state.visitor = signed_in.visitor
        self._state.audit.done(request, f"sign-in of subject {signed_in.subject!a:.300}")
        path, _, query = signed_in.path.partition("?")
        url = _urls.href(request, path)
        return self._state.admit_visitor(
            request, signed_in.visitor, f"{url}?{query}" if query else url
        )

    async def logout(self, request: Request) -> Response:
        """End the session in this browser, and the one at the provider if it offers that."""
        assert self._state.sign_in is not None
        form = await _audited_actions.read_form(request)
        cookie = request.cookies.get(self._state.sessions.cookie)
        if not self._state.sessions.is_valid_form_token(cookie, form.get("form_token")):
            raise HTTPException(403, "The form has expired. Reload the page.")
        url = await self._state.sign_in.provider.end_session_url()
        self._state.audit.done(request, "sign-out")
        request.state.visitor = None
        response = _http_errors.signed_out_page(request, self._state, url)
        self._state.delete_cookie(request, response)
        return response

    def _failed(self, request: Request, error: SignInFailed) -> Response:
        self._state.audit.rejected(request, f"sign-in failed: {error.message}", error.detail)
        return _http_errors.login_page(request, self._state, str(error), error.status)
