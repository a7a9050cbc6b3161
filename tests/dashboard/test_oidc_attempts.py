"""Sign-ins of browsers: state, nonce, PKCE and the page afterwards."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tests.dashboard.conftest import Clock
from wbengine.dashboard._oidc_attempts import ATTEMPT_SECONDS, Attempts, safe_path
from wbengine.dashboard._oidc_failure import SignInFailed

SECRET = "a-secret-of-the-settings"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def attempts(clock: Clock) -> Attempts:
    return Attempts(SECRET, clock)  # type: ignore[arg-type]


def test_sign_in_is_resumed_in_another_process(attempts: Attempts, clock: Clock) -> None:
    browser = attempts.browser(None)
    attempt = attempts.new(browser, "/flows/1?tab=logs")
    other = Attempts(SECRET, clock)  # type: ignore[arg-type]
    assert other.resume(browser, attempt.state) == attempt
    assert attempt.path == "/flows/1?tab=logs"
    assert len({attempt.state, attempt.nonce, attempt.verifier}) == 3


def test_challenge_is_the_hash_of_the_verifier(attempts: Attempts) -> None:
    attempt = attempts.new(attempts.browser(None), "/")
    assert 43 <= len(attempt.verifier) <= 128
    digest = hashlib.sha256(attempt.verifier.encode()).digest()
    assert base64.urlsafe_b64decode(attempt.challenge + "=") == digest


def test_tabs_of_a_browser_sign_in_independently(attempts: Attempts) -> None:
    browser = attempts.browser(None)
    assert attempts.browser(browser) == browser
    one, two = attempts.new(browser, "/workers"), attempts.new(browser, "/queues")
    assert one.nonce != two.nonce and one.verifier != two.verifier
    assert attempts.resume(browser, one.state).path == "/workers"
    assert attempts.resume(browser, two.state).path == "/queues"


@pytest.mark.parametrize("cookie", [None, "", "short", "a" * 42 + "!", "a" * 44, "é" * 43])
def test_invalid_cookie_is_replaced(cookie: str | None) -> None:
    assert Attempts.browser(cookie) != cookie


def test_state_of_another_browser_is_refused(attempts: Attempts) -> None:
    attempt = attempts.new(attempts.browser(None), "/")
    with pytest.raises(SignInFailed, match="did not start this sign-in"):
        attempts.resume(attempts.browser(None), attempt.state)
    with pytest.raises(SignInFailed, match="started no sign-in at this address"):
        attempts.resume(None, attempt.state)


def test_changed_state_is_refused(attempts: Attempts, clock: Clock) -> None:
    browser = attempts.browser(None)
    state = attempts.new(browser, "/").state
    text, _, proof = state.partition(".")
    foreign = Attempts("another-secret-of-settings", clock)  # type: ignore[arg-type]
    other = base64.urlsafe_b64encode(b'["x", 1000000, "//evil.example"]').decode()
    for changed in ("", ".", "x", "é", text, f"{text}.", f"{text}.{proof}x", f"{other}.{proof}",
                    f"{text[:-4]}.{proof}", foreign.new(browser, "/").state):  # fmt: skip
        with pytest.raises(SignInFailed, match="did not start this sign-in"):
            attempts.resume(browser, changed)


def test_sign_in_must_be_completed_in_time(attempts: Attempts, clock: Clock) -> None:
    browser = attempts.browser(None)
    state = attempts.new(browser, "/").state
    clock.now += ATTEMPT_SECONDS - 1
    assert attempts.resume(browser, state)
    clock.now += 2
    with pytest.raises(SignInFailed, match="took too long"):
        attempts.resume(browser, state)


@pytest.mark.parametrize(
    "path", ["/", "/workers", "/flows/1?tab=logs&page=2", "/?name=a%2Fb", "/?name=é", "/a//b"]
)
def test_path_of_the_dashboard_is_kept(path: str) -> None:
    assert safe_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "", "//evil.example", "///evil.example", "////evil.example", "/\\evil.example",
        "\\\\evil", "\\evil", "https://evil.example", "javascript:alert(1)", "evil.example",
        "/\t/evil.example", "/\n/evil.example", "/\r\n/evil.example", "\t//evil.example",
        " //evil.example", "/x\\..\\evil", "/\x00", "/\u2028x", "/login", "/login/oidc", "/logout",
        "/" + "x" * 1_000,
    ],
)  # fmt: skip
def test_path_that_could_lead_elsewhere_is_replaced(attempts: Attempts, path: str) -> None:
    assert safe_path(path) == "/"
    assert attempts.new(attempts.browser(None), path).path == "/"
