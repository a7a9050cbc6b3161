"""Names, roles and tags of users, from the claims of a provider of OpenID Connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.dashboard import _visitors
from wbengine.dashboard._oidc_failure import SignInFailed
from wbengine.dashboard._oidc_settings import OidcSettings
from wbengine.dashboard._visitors import Visitor

__all__ = ["is_complete", "visitor_of"]

#: A claim that is not there. None is a value in JSON.
_MISSING: Final = object()


def visitor_of(claims: Mapping[str, Any], settings: OidcSettings) -> Visitor:
    """Return the visitor with these claims.

    :raises SignInFailed: if the claims contain no name, no usable roles, or no role of the
        dashboard.
    """
    name = _name(claims, settings)
    if name is None:
        raise SignInFailed(f"The provider sent no name in {' or '.join(settings.name_claims)}.")
    try:
        name = _visitors.name_at_provider(name)
    except ValueError as error:
        raise SignInFailed("The provider sent a name that cannot be used", error) from error
    values = _values(claims, settings) if settings.rules else frozenset()
    for rule in settings.rules:
        if rule.value in values:
            return Visitor(name, rule.role, rule.tags, rule.queues)
    if settings.default_role is not None:
        return Visitor(name, settings.default_role)
    raise SignInFailed(
        f"You have no access: no value in the claim {settings.roles_claim!r} has a role of the"
        " dashboard",
        ", ".join(sorted(values)) or "the claim is empty",
        status=403,
    )


def is_complete(claims: Mapping[str, Any], settings: OidcSettings) -> bool:
    """Return whether the claims contain what `visitor_of` needs, without other requests."""
    names = [claim for claim in settings.name_claims if claim != "sub"] or ["sub"]
    return any(_text(claims, claim) for claim in names) and (
        not settings.rules or _claim(claims, settings.roles_claim) is not _MISSING
    )


def _name(claims: Mapping[str, Any], settings: OidcSettings) -> str | None:
    for claim in settings.name_claims:
        # Some providers let users enter any address, and say that it was not verified.
        if claim != "email" or claims.get("email_verified") not in (False, "false"):
            text = _text(claims, claim)
            if text:
                return text
    return None


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = _claim(claims, name)
    return value if isinstance(value, str) else None


def _values(claims: Mapping[str, Any], settings: OidcSettings) -> frozenset[str]:
    """Return the values of the claim with the roles."""
    name = settings.roles_claim
    value = _claim(claims, name)
    if value is _MISSING:
        elsewhere = claims.get("_claim_names")
        if claims.get("hasgroups") or (isinstance(elsewhere, Mapping) and name in elsewhere):
            raise SignInFailed(
                f"The provider left out the claim {name!r}, because you are in too many groups. Let"
                " it send only the groups or roles of this application.",
                status=403,
            )
        if settings.default_role is not None:
            return frozenset()
        raise SignInFailed(
            f"The provider sent no claim {name!r}. Let it add the claim to the ID token, or change"
            " roles_claim or scopes of the dashboard; it sent",
            ", ".join(sorted(claims)),
            status=403,
        )
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise SignInFailed(
            f"The claim {name!r} must be a text or a list of texts, got", repr(value), status=403
        )
    return frozenset(values)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim. In a name such as ``realm_access.roles``, a dot leads into an object.

    Names can contain dots themselves, as in ``https://example.com/roles``.
    """
    if name in claims:
        return claims[name]
    value: Any = claims
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return _MISSING
        value = value[key]
    return value
