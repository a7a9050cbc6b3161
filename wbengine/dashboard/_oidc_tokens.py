"""Checks of ID tokens (OpenID Connect Core 1.0, section 3.1.3.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wbengine._imports import installing
from wbengine.dashboard._oidc_failure import SignInFailed
from wbengine.dashboard._signatures import are_equal

try:
    from joserfc import errors, jwk, jws, jwt
except ImportError as error:
    raise ImportError(
        installing.needs("the sign-in with OpenID Connect", "joserfc", "oidc")
    ) from error

__all__ = ["ALGORITHMS", "LEEWAY_SECONDS", "UnknownKey", "check"]

#: Accepted algorithms. All have a public key. `none` needs no key, and the key of `HS256` could be
#: the public one.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
)  # fmt: skip
_KEY_TYPES: Final = ("RSA", "EC", "OKP")
#: Accepted difference between the clocks of the provider and of this host.
LEEWAY_SECONDS: Final = 60.0
#: A time far in the future. NaN is not below it either.
_MAX_SECONDS: Final = 1e12
_INVALID: Final = "The ID token of the provider is not valid"


class _Registry(jws.JWSRegistry):
    max_header_length = 16_384  # it may contain certificates


class UnknownKey(SignInFailed):
    """The ID token has no signature of a known key; the provider may have new keys."""


def check(
    token: str,
    keys: Iterable[Any],
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    now: float,
) -> dict[str, Any]:
    """Return the claims of an ID token for this client and this sign-in.

    :param keys: the keys of the provider, as JWK. Unknown kinds of keys are ignored.
    :raises UnknownKey: if none of the keys verifies it.
    :raises SignInFailed: if the token is not valid.
    """
    claims = _verified(token, keys)
    audiences = claims.get("aud")
    audiences = audiences if isinstance(audiences, list) else [audiences]
    if claims.get("iss") != issuer:
        raise SignInFailed(f"{_INVALID}: iss must be {issuer!r}, got", repr(claims.get("iss")))
    if client_id not in audiences:
        raise SignInFailed(f"{_INVALID}: aud must contain {client_id!r}, got", repr(audiences))
    if (len(audiences) > 1 or "azp" in claims) and claims.get("azp") != client_id:
        raise SignInFailed(f"{_INVALID}: azp must be {client_id!r}, got", repr(claims.get("azp")))
    if not are_equal(_text(claims, "nonce"), nonce):
        raise SignInFailed(f"{_INVALID}: nonce must be that of this sign-in")
    if not _text(claims, "sub"):
        raise SignInFailed(f"{_INVALID}: sub must be a text, got", repr(claims.get("sub")))
    if _time(claims, "exp") <= now - LEEWAY_SECONDS:
        raise SignInFailed(f"{_INVALID}: it expired {now - _time(claims, 'exp'):.0f} seconds ago")
    for name in ("iat", "nbf"):
        ahead = _time(claims, name) - now if name in claims or name == "iat" else 0.0
        if ahead > LEEWAY_SECONDS:
            raise SignInFailed(
                f"{_INVALID}: {name} is {ahead:.0f} seconds ahead. Compare the clocks of the"
                " provider and of the dashboard."
            )
    return claims


def _verified(token: str, keys: Iterable[Any]) -> dict[str, Any]:
    # Providers may add headers of their own. Critical ones (`crit`) are refused.
    registry = _Registry(algorithms=ALGORITHMS, strict_check_header=False)
    try:
        header = jws.extract_compact(token.encode(), registry=registry).headers()
    except (errors.JoseError, ValueError, TypeError) as error:
        raise SignInFailed(f"{_INVALID}: it must be a signed JWT") from error
    if header.get("alg") not in ALGORITHMS:
        raise SignInFailed(
            f"{_INVALID}: its algorithm must be one of {', '.join(ALGORITHMS)}, got",
            repr(header.get("alg")),
        )
    for key in _usable(keys, header.get("kid")):
        try:
            return jwt.decode(token, key, registry=registry).claims
        except errors.InvalidPayloadError as error:
            raise SignInFailed(f"{_INVALID}: its claims must be a JSON object") from error
        except (errors.JoseError, ValueError, TypeError):
            continue  # another key may verify it
    raise UnknownKey(f"{_INVALID}: no key of the provider verifies its signature")


def _usable(keys: Iterable[Any], key_id: object) -> Iterator[jwk.Key]:
    """Yield the keys with this id; all of them if the token names no key.

    joserfc refuses keys for another use or algorithm.
    """
    for table in keys:
        if not isinstance(table, dict) or table.get("kty") not in _KEY_TYPES:
            continue
        if key_id is not None and table.get("kid") != key_id:
            continue
        try:
            yield jwk.import_key(table)
        except (errors.JoseError, ValueError, TypeError):
            continue  # for example, a curve that this host does not support


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    return value if isinstance(value, str) else ""


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not abs(value) < _MAX_SECONDS:
        raise SignInFailed(f"{_INVALID}: {name} must be a number of seconds, got", f"{value!r:.80}")
    return float(value)
