"""Settings of the sign-in with OpenID Connect, and the rights that they give to claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wbengine.dashboard._oidc_claims import is_complete, visitor_of
from wbengine.dashboard._oidc_failure import SignInFailed
from wbengine.dashboard._oidc_settings import NAME_CLAIMS, OidcSettings, parse_settings
from wbengine.dashboard._visitors import Visitor

SECRET = "nightingale-nightingale"
KEYS = "abcdefgh"
TABLE: dict[str, Any] = {
    "issuer": "https://login.example.com/realms/shop",
    "client_id": "wbengine",
    "client_secret_variable": "OIDC_SECRET",
    "dashboard_url": "https://flows.example.com/wbe/",
    "roles": [
        {"value": "admins", "role": "admin"},
        {"value": "billing", "role": "operator", "tags": {"team": "billing"}},
        {"value": "staff", "role": "viewer"},
    ],
}


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OIDC_SECRET", SECRET)


def parsed(**changes: Any) -> OidcSettings:
    table = {**TABLE, **changes}
    return parse_settings({name: value for name, value in table.items() if value is not None})


def test_defaults() -> None:
    settings = parsed()
    assert settings.redirect_uri == "https://flows.example.com/wbe/login/oidc/callback"
    assert settings.label == "login.example.com" and settings.is_secure
    assert settings.scopes == ("openid", "profile", "email")
    assert (settings.roles_claim, settings.name_claims) == ("groups", NAME_CLAIMS)
    assert (settings.default_role, settings.session_seconds) == (None, 12 * 3600.0)
    assert SECRET not in repr(settings)


def test_secret_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    settings = parsed(client_secret_variable=None, client_secret_file=str(path))
    assert settings.client_secret == SECRET


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issuer": None}, "issuer must be a non-empty string"),
        ({"issuer": "login.example.com"}, "issuer must be a URL such as"),
        ({"issuer": "http://login.example.com"}, "issuer must be a URL of https"),
        ({"issuer": "https://ann:secret@login.example.com"}, "issuer must be a URL such as"),
        ({"issuer": "https://login.example.com/?x=1"}, "issuer must be a URL such as"),
        ({"issuer": "https://[::1"}, "issuer must be a URL such as"),
        ({"client_id": None}, "client_id must be a non-empty string"),
        ({"client_secret_variable": None}, "client_secret_file or client_secret_variable is"),
        ({"client_secret_variable": "NOT_SET"}, "NOT_SET is empty or missing"),
        ({"client_secret_file": "x"}, "exclude each other"),
        ({"client_secret": SECRET}, "unknown option 'client_secret'"),
        ({"dashboard_url": None}, "dashboard_url must be a non-empty string"),
        ({"dashboard_url": "http://flows.example.com"}, "dashboard_url must be a URL of https"),
        ({"scopes": ["profile"]}, "scopes must contain 'openid'"),
        ({"scopes": "openid profile"}, "scopes must be a list of words"),
        ({"scopes": ["openid profile"]}, "scopes must be a list of words"),
        ({"session": "31d"}, "session must be a duration from '1m' to '30d'"),
        ({"session": "soon"}, "session must be a duration"),
        ({"default_role": "root"}, "role must be one of viewer, operator, editor, admin"),
        ({"default_role": "proxy"}, "role must be one of"),
        ({"roles": None}, "roles or default_role is required"),
        ({"roles": {"admins": "admin"}}, "roles must be a list of tables"),
        ({"roles": ["admins"]}, "roles.1 must be a table"),
        ({"roles": [{"value": "a"}]}, "roles.1: .*role must be a non-empty string"),
        ({"roles": [{"value": "a", "role": "proxy"}]}, "roles.1: role must be one of"),
        ({"roles": [{"role": "admin"}]}, "roles.1: .*value must be a non-empty string"),
        ({"roles": [{"value": 7, "role": "admin"}]}, "roles.1: .*value must be a non-empty"),
        ({"roles": [{"value": "a", "role": "admin", "tag": {}}]}, "did you mean 'tags'"),
        ({"roles": [{"value": "a", "role": "admin", "tags": {"x": 1}}]}, "roles.1: tags must be"),
        ({"roles": [{"value": "a", "role": "admin", "queues": []}]}, "roles.1: queues must be a"),
        ({"roles": [{"value": "a", "role": "admin", "queues": ["*"]}]}, "roles.1: queue must be"),
        (
            {
                "roles": [
                    {"value": "a", "role": "admin", "tags": dict.fromkeys("abcdefgh", "x" * 256)}
                ]
            },
            "roles.1: tags and queues must have at most 2000 characters",
        ),
        ({"roels": []}, "unknown option 'roels' .did you mean 'roles'"),
        ({"ca_file": "/none"}, "ca_file '/none' cannot be used: No such file"),
    ],
)
def test_invalid_setting_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parsed(**changes)
    assert SECRET not in str(refused.value)


def test_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor could find it from a cookie, and sign other cookies."""
    monkeypatch.setenv("OIDC_SECRET", "nightingale")
    with pytest.raises(ValueError, match="must have at least 16 characters, got 11") as refused:
        parsed()
    assert "nightingale" not in str(refused.value)


@pytest.mark.parametrize("name", ["issuer", "dashboard_url"])
@pytest.mark.parametrize("host", ["127.0.0.1:8585", "localhost", "[::1]:1"])
def test_plain_http_is_allowed_on_this_host(name: str, host: str) -> None:
    assert getattr(parsed(**{name: f"http://{host}"}), name) == f"http://{host}"


def test_session_key_depends_on_secret_and_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    key = parsed().session_key
    assert parsed(label="Example", session="1h").session_key == key
    assert parsed(default_role="viewer").session_key != key
    assert parsed(roles=TABLE["roles"][1:]).session_key != key
    assert parsed(client_id="other").session_key != key
    monkeypatch.setenv("OIDC_SECRET", f"{SECRET}2")
    assert parsed().session_key != key


CLAIMS: dict[str, Any] = {"sub": "1", "preferred_username": "ann", "groups": ["staff"]}


def visitor(settings: OidcSettings, **changes: Any) -> Visitor:
    return visitor_of({**CLAIMS, **changes}, settings)


def test_first_matching_rule_counts() -> None:
    settings = parsed()
    assert visitor(settings) == Visitor("oidc:ann", "viewer")
    assert visitor(settings, groups=["staff", "admins"]) == Visitor("oidc:ann", "admin")
    assert visitor(settings, groups=["other", "billing", "staff"]) == Visitor(
        "oidc:ann", "operator", {"team": "billing"}
    )


@pytest.mark.parametrize("groups", [[], ["other"], ["Admins"], "admin", [""], ["admins "]])
def test_user_without_matching_value_is_refused_or_has_the_default_role(groups: Any) -> None:
    with pytest.raises(SignInFailed, match="no value in the claim 'groups' has a role") as refused:
        visitor(parsed(), groups=groups)
    assert refused.value.status == 403
    assert visitor(parsed(default_role="viewer"), groups=groups).role == "viewer"


def test_roles_may_be_one_text() -> None:
    assert visitor(parsed(), groups="admins").role == "admin"


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["admins"]}}),
        ("resource_access.my-app.roles", {"resource_access": {"my-app": {"roles": ["admins"]}}}),
        ("https://example.com/roles", {"https://example.com/roles": ["admins"]}),
    ],
)
def test_claim_may_be_inside_an_object_or_have_dots(claim: str, value: dict[str, Any]) -> None:
    assert visitor(parsed(roles_claim=claim), **value).role == "admin"


@pytest.mark.parametrize(
    "value", [{"roles": ["admins"]}, [{"name": "admins"}], 7, True, None, [["admins"]]]
)
def test_claim_of_another_form_is_refused(value: Any) -> None:
    for settings in (parsed(), parsed(default_role="admin")):
        with pytest.raises(SignInFailed, match="claim 'groups' must be a text or a list of texts"):
            visitor(settings, groups=value)


def test_missing_claim_is_named_with_those_that_were_sent() -> None:
    with pytest.raises(SignInFailed, match=r"no claim 'groups'.*it sent: preferred_username, sub"):
        visitor_of({"sub": "1", "preferred_username": "ann"}, parsed())
    assert visitor_of({"sub": "ann"}, parsed(default_role="viewer")).role == "viewer"


@pytest.mark.parametrize(
    "claims",
    [{"_claim_names": {"groups": "src1"}, "_claim_sources": {"src1": {}}}, {"hasgroups": True}],
)
def test_too_many_groups_are_refused_with_the_reason(claims: dict[str, Any]) -> None:
    """A default role would hide it."""
    for settings in (parsed(), parsed(default_role="viewer")):
        with pytest.raises(SignInFailed, match="you are in too many groups"):
            visitor_of({"sub": "1", **claims}, settings)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ann", "email": "a@example.com"}, "oidc:ann"),
        ({"email": "a+b@example.com"}, "oidc:a+b@example.com"),
        ({"email": "a@example.com", "email_verified": True}, "oidc:a@example.com"),
        ({"email": "boss@example.com", "email_verified": False}, "oidc:auth0%7C7"),
        ({"preferred_username": "", "email": 7}, "oidc:auth0%7C7"),
        ({"preferred_username": "key:ci"}, "oidc:key%3Aci"),
        ({"preferred_username": "ann, admin, 192.0.2.1"}, "oidc:ann%2C%20admin%2C%20192.0.2.1"),
        ({"preferred_username": "a\nb%"}, "oidc:a%0Ab%25"),
        ({"preferred_username": "jürgen"}, "oidc:j%C3%BCrgen"),
        ({"preferred_username": "SHOP\\ann"}, "oidc:SHOP%5Cann"),
    ],
)
def test_name_is_the_first_usable_claim(claims: dict[str, Any], name: str) -> None:
    table = {"sub": "auth0|7", "groups": ["staff"], **claims}
    assert visitor_of(table, parsed()).name == name


def test_only_the_configured_name_claim_is_used() -> None:
    settings = parsed(name_claim="upn")
    assert visitor(settings, upn="ann@shop").name == "oidc:ann@shop"
    with pytest.raises(SignInFailed, match="no name in upn"):
        visitor(settings)


@pytest.mark.parametrize("name", ["x" * 201, "é" * 40])
def test_long_name_is_refused(name: str) -> None:
    with pytest.raises(SignInFailed, match="name that cannot be used"):
        visitor(parsed(), preferred_username=name)


def test_more_claims_are_needed_without_name_or_roles() -> None:
    settings = parsed()
    assert is_complete(CLAIMS, settings)
    assert not is_complete({"sub": "1", "preferred_username": "ann"}, settings)
    assert not is_complete({"sub": "1", "groups": []}, settings)
    assert is_complete({"sub": "1", "groups": []}, parsed(name_claim="sub"))
    assert is_complete({"sub": "1", "email": "a"}, parsed(roles=None, default_role="viewer"))
