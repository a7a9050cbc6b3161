"""Sign-ins that browsers started, without stored state: `state`, `nonce` and PKCE."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final

from wbengine._concurrency import clocks
from wbengine.dashboard._oidc_failure import NotStarted
from wbengine.dashboard._signatures import are_equal, pack, sign, unpack

__all__ = ["ATTEMPT_SECONDS", "Attempt", "Attempts", "safe_path"]

#: Time in which a person must complete a sign-in.
ATTEMPT_SECONDS: Final = 900.0
_MAX_PATH_CHARS: Final = 1_000
_BROWSER: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in: the values of its requests, and the page to show afterwards."""

    state: str
    nonce: str
    verifier: str
    path: str

    @property
    def challenge(self) -> str:
        """The hash of the verifier (RFC 7636, S256)."""
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


class Attempts:
    """Creates and resumes sign-ins. Thread-safe, and equal in all processes with the same secret.

    `state` contains a random number, the time and the path, and a signature, which also covers the
    cookie of the browser. Nonce and verifier are signatures of the same values, so one cookie is
    enough for several tabs.
    """

    def __init__(self, secret: str, clock: clocks.Clock = clocks.SYSTEM) -> None:
        self._secret = secret
        self._clock = clock

    @staticmethod
    def browser(cookie: str | None) -> str:
        """Return the value of the cookie of a browser; a new one if it has none."""
        if cookie is not None and _BROWSER.fullmatch(cookie):
            return cookie
        return secrets.token_urlsafe(32)

    def new(self, browser: str, path: str) -> Attempt:
        """Return a new sign-in of this browser."""
        path = safe_path(path)
        text = pack(secrets.token_urlsafe(16), int(self._clock.time()), path)
        return self._attempt(browser, text, path)

    def resume(self, browser: str | None, state: str) -> Attempt:
        """Return the sign-in with this state.

        :raises NotStarted: if this browser did not start it, or not recently.
        """
        if browser is None:
            raise NotStarted(
                "This browser started no sign-in at this address, or too long ago. Sign in again."
            )
        text = state.partition(".")[0]
        if not are_equal(state, f"{text}.{self._sign('state', browser, text)}"):
            raise NotStarted("This browser did not start this sign-in. Sign in again.")
        _, started, path = unpack(text)
        if not -60.0 < self._clock.time() - started < ATTEMPT_SECONDS:
            raise NotStarted("The sign-in took too long. Sign in again.")
        return self._attempt(browser, text, path)

    def _attempt(self, browser: str, text: str, path: str) -> Attempt:
        return Attempt(
            f"{text}.{self._sign('state', browser, text)}",
            self._sign("nonce", browser, text),
            self._sign("verifier", browser, text),
            path,
        )

    def _sign(self, use: str, browser: str, text: str) -> str:
        return sign(self._secret, f"oidc {use}", browser, text)


def safe_path(text: str) -> str:
    """Return a path of the dashboard with its query; "/" for a text that could lead elsewhere.

    Browsers treat a backslash as a slash and ignore tabs and newlines, so a slash that is followed
    by one of these can begin the name of another host.
    """
    is_safe = (
        len(text) <= _MAX_PATH_CHARS
        and text.startswith("/")
        and "\\" not in text
        and text.isprintable()
        and not text.startswith(("//", "/login", "/logout"))
    )
    return text if is_safe else "/"
