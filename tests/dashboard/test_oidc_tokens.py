"""ID tokens: each claim violated once, foreign keys, and algorithms without a public key."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import pytest
from joserfc import jwk, jws

from wbengine.dashboard._oidc_failure import SignInFailed
from wbengine.dashboard._oidc_tokens import ALGORITHMS, LEEWAY_SECONDS, UnknownKey, check

ISSUER = "https://login.example.com/realms/shop"
CLIENT = "wbengine"
NONCE = "nonce-of-this-sign-in"
NOW = 1_790_000_000.0
KEY = jwk.generate_key("RSA", 2048, {"kid": "one", "use": "sig"})
OTHER_KEY = jwk.generate_key("RSA", 2048, {"kid": "two", "use": "sig"})

GOOD = {
    "iss": ISSUER, "aud": CLIENT, "sub": "248289761001", "nonce": NONCE,
    "iat": NOW, "exp": NOW + 300, "preferred_username": "ann",
}  # fmt: skip


def public(*keys: Any) -> list[Any]:
    return [key.as_dict(private=False) for key in keys]


def token(claims: Any = GOOD, key: Any = KEY, alg: str = "RS256", **header: Any) -> str:
    return signed(json.dumps(claims).encode(), key, alg, **header)


def signed(payload: bytes, key: Any = KEY, alg: str = "RS256", **header: Any) -> str:
    names = {"alg": alg, "kid": key.kid, **header}
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact(
        {name: value for name, value in names.items() if value is not None},
        payload,
        key,
        registry=registry,
    )


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")


def checked(text: str, keys: Any = None, now: float = NOW) -> dict[str, Any]:
    known = public(KEY) if keys is None else keys
    return check(text, known, issuer=ISSUER, client_id=CLIENT, nonce=NONCE, now=now)


def test_valid_token_has_its_claims() -> None:
    assert checked(token()) == GOOD


def test_token_may_contain_many_groups_and_certificates() -> None:
    groups = [f"00000000-0000-0000-0000-{number:012}" for number in range(1_000)]
    text = token({**GOOD, "groups": groups}, x5c=["x" * 4_000])
    assert checked(text)["groups"] == groups


def test_several_audiences_need_the_authorized_party() -> None:
    several = {**GOOD, "aud": [CLIENT, "account"]}
    assert checked(token({**several, "azp": CLIENT}))["sub"] == GOOD["sub"]
    with pytest.raises(SignInFailed, match="azp must be 'wbengine'"):
        checked(token(several))


@pytest.mark.parametrize(
    ("claim", "value", "reason"),
    [
        ("iss", "https://evil.example", "iss must be"),
        ("iss", f"{ISSUER}/", "iss must be"),
        ("iss", None, "iss must be"),
        ("aud", "another-client", "aud must contain 'wbengine'"),
        ("aud", ["another-client"], "aud must contain 'wbengine'"),
        ("aud", [], "aud must contain 'wbengine'"),
        ("aud", None, "aud must contain 'wbengine'"),
        ("aud", {CLIENT: 1}, "aud must contain 'wbengine'"),
        ("azp", "another-client", "azp must be 'wbengine'"),
        ("azp", None, "azp must be 'wbengine'"),
        ("nonce", "nonce-of-another-sign-in", "nonce must be that of this sign-in"),
        ("nonce", None, "nonce must be that of this sign-in"),
        ("nonce", "é", "nonce must be that of this sign-in"),
        ("nonce", [NONCE], "nonce must be that of this sign-in"),
        ("sub", "", "sub must be a text"),
        ("sub", 7, "sub must be a text"),
        ("exp", NOW - LEEWAY_SECONDS - 1, "it expired 61 seconds ago"),
        ("exp", None, "exp must be a number"),
        ("exp", str(NOW + 300), "exp must be a number"),
        ("exp", True, "exp must be a number"),
        ("iat", NOW + LEEWAY_SECONDS + 1, "iat is 61 seconds ahead"),
        ("iat", None, "iat must be a number"),
        ("nbf", NOW + LEEWAY_SECONDS + 1, "nbf is 61 seconds ahead"),
        ("nbf", "soon", "nbf must be a number"),
    ],
)
def test_token_with_wrong_claim_is_refused(claim: str, value: Any, reason: str) -> None:
    with pytest.raises(SignInFailed, match=reason):
        checked(token({**GOOD, claim: value}))


@pytest.mark.parametrize("claim", ["iss", "aud", "nonce", "sub", "exp", "iat"])
def test_token_without_required_claim_is_refused(claim: str) -> None:
    with pytest.raises(SignInFailed, match=claim):
        checked(token({name: value for name, value in GOOD.items() if name != claim}))


@pytest.mark.parametrize("text", ["Infinity", "NaN", "1e999", "1" + "0" * 400])
def test_token_that_never_expires_is_refused(text: str) -> None:
    payload = json.dumps({**GOOD, "exp": 0}).replace('"exp": 0', f'"exp": {text}').encode()
    with pytest.raises(SignInFailed, match="exp must be a number"):
        checked(signed(payload))


@pytest.mark.parametrize("seconds", [4, 11, 59])
def test_clocks_may_differ_by_less_than_a_minute(seconds: float) -> None:
    assert checked(token(), now=NOW - seconds)
    assert checked(token(), now=NOW + 300 + seconds)


@pytest.mark.parametrize(
    ("kind", "size", "alg"),
    [
        ("RSA", 2048, "RS512"),
        ("RSA", 2048, "PS256"),
        ("EC", "P-256", "ES256"),
        ("EC", "P-384", "ES384"),
        ("OKP", "Ed25519", "Ed25519"),
    ],
)
def test_algorithms_with_public_keys_are_accepted(kind: Any, size: Any, alg: str) -> None:
    key = jwk.generate_key(kind, size, {"kid": "other"})
    assert checked(token(key=key, alg=alg), public(KEY, key))["sub"] == GOOD["sub"]


def test_token_without_signature_is_refused() -> None:
    header = encoded(b'{"alg":"none","kid":"one"}')
    payload = token().split(".")[1]
    for signature in ("", token().split(".")[2]):
        with pytest.raises(SignInFailed, match=r"algorithm must be one of .*got: 'none'"):
            checked(f"{header}.{payload}.{signature}")


@pytest.mark.parametrize("alg", ["HS256", "HS512"])
def test_public_key_is_not_used_as_a_shared_secret(alg: str) -> None:
    """The key as a client would store it: as PEM or as JWK."""
    head = encoded(json.dumps({"alg": alg, "kid": "one"}).encode())
    body = f"{head}.{token().split('.')[1]}"
    for secret in (KEY.as_pem(private=False), json.dumps(public(KEY)[0]).encode()):
        proof = hmac.digest(secret, body.encode(), f"sha{alg[2:]}")
        with pytest.raises(SignInFailed, match=rf"algorithm must be one of .*got: '{alg}'"):
            checked(f"{body}.{encoded(proof)}")
    assert not any(alg.startswith(("HS", "none")) for alg in ALGORITHMS)


def test_shared_secret_among_the_keys_is_ignored() -> None:
    secret = jwk.generate_key("oct", 256, {"kid": "one"})
    with pytest.raises(SignInFailed, match="algorithm must be one of"):
        checked(token(key=secret, alg="HS256"), [secret.as_dict(private=True)])


def test_token_of_a_foreign_key_is_refused() -> None:
    forged = jwk.generate_key("RSA", 2048, {"kid": "one"})
    for text in (token(key=forged), token(key=OTHER_KEY), token(key=OTHER_KEY, kid=None)):
        with pytest.raises(UnknownKey, match="no key of the provider verifies its signature"):
            checked(text)


def test_changed_claims_are_refused() -> None:
    header, _, signature = token().split(".")
    payload = token({**GOOD, "preferred_username": "eve"}).split(".")[1]
    with pytest.raises(UnknownKey):
        checked(f"{header}.{payload}.{signature}")


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": OTHER_KEY.as_dict(private=False)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/keys"},
    ],
)
def test_key_in_the_header_is_not_used(header: dict[str, Any]) -> None:
    with pytest.raises(UnknownKey):
        checked(token(key=OTHER_KEY, kid="one", **header))


def test_token_without_key_id_is_checked_with_each_key() -> None:
    keys = public(OTHER_KEY, KEY)
    assert checked(token(kid=None), keys)["sub"] == GOOD["sub"]


def test_unusable_keys_are_ignored() -> None:
    odd: list[Any] = [
        "text", 7, None, {}, {"kty": "RSA", "kid": "one"}, {"kty": "EC", "kid": "one", "crv": "X"},
        {"kty": "AKP", "kid": "one"},
    ]  # fmt: skip
    assert checked(token(), [*odd, *public(KEY)])["sub"] == GOOD["sub"]
    with pytest.raises(UnknownKey):
        checked(token(), odd)


@pytest.mark.parametrize(
    "change", [{"use": "enc"}, {"key_ops": ["encrypt"], "use": None}, {"alg": "PS256"}]
)
def test_key_for_another_use_or_algorithm_is_not_used(change: dict[str, Any]) -> None:
    table = {**public(KEY)[0], **change}
    with pytest.raises(UnknownKey):
        checked(token(), [{name: value for name, value in table.items() if value is not None}])


def test_unknown_header_is_accepted_unless_it_is_critical() -> None:
    assert checked(token(**{"pi.atm": "x"}))["sub"] == GOOD["sub"]
    segments = token().split(".")
    header = {"alg": "RS256", "kid": "one", "crit": ["exp"], "exp": 1}
    segments[0] = encoded(json.dumps(header).encode())
    with pytest.raises(UnknownKey):
        checked(".".join(segments))


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.b.c", "é.é.é", "x" * 200_000, token() + ".", token()[:-8]]
)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(SignInFailed):
        checked(text)


@pytest.mark.parametrize("payload", [b"[]", b"null", b'"text"', b"{", b"\xff"])
def test_token_without_an_object_is_refused(payload: bytes) -> None:
    with pytest.raises(SignInFailed, match="claims must be a JSON object"):
        checked(signed(payload))
