"""Redaction of secrets in texts, values, and all texts of views."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any, NamedTuple
from urllib import parse

import attrs
import msgspec
import pydantic
import pytest

from wbengine._security import masking as secrets
from wbengine.fleet._ledgers import RowView
from wbengine.fleet.client import WorkerView, WorkView
from wbengine.types import codec
from wbengine.types.failure import Failure
from wbengine.views.redaction import MASK, Redactor, redacted

CANARY = "c4n4ry-of-the-mine"


@pytest.mark.parametrize(
    "key",
    [
        "password", "db_password", "DB_PASSWORD", "dbPassword", "passwd", "PWD", "passphrase",
        "secret", "client-secret", "token", "authToken", "access_token", "api_key", "apikey",
        "API-Key", "x-api-key", "Authorization", "credentials", "private_key", "dsn", "SENTRY_DSN",
        "cookie", "aws_secret_access_key", "jwt", b"password", "refresh_tokens", "tokens",
        "basic_auth", "password_hash", "auth_header", "secret_id", "token1",
    ],
)  # fmt: skip
def test_secret_keys_are_recognized(key):
    assert secrets.is_secret_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "name",
        "author",
        "tokenizer",
        "monkey",
        "keyboard",
        "host",
        "passenger",
        "compass",
        "",
        7,
        "max_tokens",
        "maxTokens",
        "total_tokens",
        "prompt_tokens",
        "token_count",
        "auth_method",
        "auth-type",
        "token_url",
        "token_expires_at",
        "password_length",
        "passwordPolicy",
    ],
)
def test_harmless_keys_are_not_secret(key):
    assert not secrets.is_secret_key(key)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("amqp://me:{}@host:5672/v", "amqp://me:***@host:5672/v"),
        ("redis://:{}@host/0", "redis://:***@host/0"),
        ("amqp://u:p@a{}b@h1;amqp://u:{}@h2", "amqp://u:***@h1;amqp://u:***@h2"),
        ("https://{}@host/x", "https://***@host/x"),
        ("host=x password={} port=1", "host=x password=*** port=1"),
        ("login(password={})", "login(password=***)"),
        ("login(password={}).", "login(password=***)."),
        ("(it was token={})!", "(it was token=***)!"),
        ("(token={}): refused", "(token=***): refused"),
        ("login(password='it\\'s {}', host='x')", "login(password='***', host='x')"),
        ('{{"token": "{}", "n": 1}}', '{{"token": "***", "n": 1}}'),
        ('"{{\\"token\\": \\"{}\\"}}"', '"{{\\"token\\": \\"***\\"}}"'),
        ("{{'pwd': b'{}'}}", "{{'pwd': b'***'}}"),
        ("secrets = ['{}', ['x]', 1]] and more", "secrets = *** and more"),
        ("Authorization: Bearer {}", "Authorization: Bearer ***"),
        ("sent Bearer {} there", "sent Bearer *** there"),
        ("GET /?token={}&page=2", "GET /?token=***&page=2"),
        ("run --password {} --verbose", "run --password *** --verbose"),
        ("environ['DB_PASSWORD'] = '{}'", "environ['DB_PASSWORD'] = '***'"),
        ("api_key: {}\nnext: line", "api_key: ***\nnext: line"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
        ("token='{}", "token='***"),
    ],
)
def test_secrets_in_texts_are_masked(text, masked):
    told = Redactor().text(text.replace("{}", CANARY).replace("{{", "{").replace("}}", "}"))
    assert CANARY not in told
    assert told == masked.replace("{{", "{").replace("}}", "}")


@pytest.mark.parametrize(
    "text",
    [
        "nothing to see", "KeyError: 'name'", "Unexpected token }", "author: me", "password: None",
        "token=***", "http://host:80/path", "see https://host/a@b", "the key is under the mat",
    ],
)  # fmt: skip
def test_texts_without_secrets_stay_unchanged(text):
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "written",
    [
        CANARY,
        f"in the midst{CANARY}of it",
        parse.quote(f"{CANARY}/ä b", safe=""),
        json.dumps(f'{CANARY}"\n'),
        repr(f"{CANARY}'\"\n"),
        base64.b64encode(CANARY.encode()).decode(),
        f"it was cut off: {CANARY[:9]}...",
        f"it was cut off: {CANARY[:4]}…",
        f"ValueError: {CANARY[:9]}... and 3 more",
        f"({CANARY[:5]}…{CANARY[-6:]}) in the midst",
        f"read ...{CANARY[9:]} of it",
    ],
)
def test_known_secret_is_masked_in_every_encoding(written):
    values = {"x": [{"deep": ({"api_token": CANARY},)}], "y": {"pwd": f"{CANARY}/ä b"}}
    more = {"secrets": [f'{CANARY}"\n', f"{CANARY}'\"\n".encode()]}
    masked = Redactor().with_secrets_from(values, more).text(written)
    assert CANARY[:4] not in masked
    assert CANARY[-4:] not in masked
    assert base64.b64encode(CANARY.encode()).decode() not in masked
    assert MASK in masked


@pytest.mark.parametrize("written", [repr, str, base64.b64encode, bytes.hex, parse.quote])
def test_binary_secret_is_masked_in_every_encoding(written):
    secret = b"\xffsecretbytes\x80\x01"
    shown = written(secret)
    shown = shown if isinstance(shown, str) else shown.decode()
    masked = Redactor().with_secrets_from({"encryption_key": secret}).text(f"it is ({shown}) here")
    assert masked.startswith("it is (") and MASK in masked and masked.endswith(") here")
    assert shown.strip("b'") not in masked and "secretbytes" not in masked


def test_passwords_in_url_values_become_known_secrets():
    redactor = Redactor().with_secrets_from(["x", f"postgresql://me:{CANARY}@host/db"])
    assert redactor.text(f"cannot log in with {CANARY}") == "cannot log in with ***"


def test_secrets_in_exception_arguments_become_known():
    failure = Failure.from_exception(ValueError({"password": CANARY}))
    assert CANARY not in Redactor().with_secrets_from(failure).text(f"it was {CANARY}")


def test_self_referencing_value_is_scanned_once():
    values: list = [{"token": CANARY}]
    values.append(values)
    assert Redactor().with_secrets_from(values).text(CANARY) == MASK
    assert Redactor(show_values=True).value(values) == [{"token": MASK}, "…"]


def test_short_or_common_values_are_not_masked_in_texts():
    redactor = Redactor().with_secrets_from(
        {"password": "abcde", "token": "None", "secret": 12, "dsn": True}
    )
    for text in ("abcde", "None", "12", "True", "an abcdeister", "the abcd... is cut off"):
        assert redactor.text(text) == text
    assert redactor.text("password=abcde") == "password=***"
    assert Redactor(show_values=True).value({"password": "abc"}) == {"password": MASK}


def test_numeric_secret_is_masked():
    redactor = Redactor().with_secrets_from({"pin": 83719264})
    assert redactor.text("its PIN is 83719264!") == "its PIN is ***!"


def test_secrets_of_one_redactor_do_not_affect_another():
    plain = Redactor()
    knowing = plain.with_secrets_from({"token": CANARY})
    assert plain.text(CANARY) == CANARY
    assert plain.with_secrets_of(knowing).text(CANARY) == MASK
    assert plain.with_secrets_from({"name": CANARY}) is plain


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (CANARY, "str, 18 characters"), (b"abc", "bytes, 3 bytes"), ([1, 2], "list, 2 items"),
        ({"a": 1}, "dict, 1 key"), (None, "None"), (7, "int"), (1.5, "float"), (True, "bool"),
        (object(), "object"),
    ],
)  # fmt: skip
def test_values_are_shown_as_type_and_size_by_default(value, told):
    assert Redactor().value(value) == told


def test_show_values_shows_all_values_except_secrets():
    redactor = Redactor(show_values=True).with_secrets_from({"token": CANARY})
    shown = redactor.value(
        {
            "n": 1,
            "url": "redis://:hidden@h",
            "deep": [{"db_password": "x", "no_token": None}],
            "said": f"it is {CANARY}",
            b"raw": b"bytes",
            (1, 2): {3},
        }
    )
    assert shown == {
        "n": 1,
        "url": "redis://:***@h",
        "deep": [{"db_password": MASK, "no_token": None}],
        "said": "it is ***",
        "b'raw'": "b'bytes'",
        "(1, 2)": [3],
    }
    json.dumps(shown)
    assert redactor.value("x", "password") == MASK
    assert redactor.result("a 'b'") == repr("a 'b'")


def test_large_values_are_truncated():
    redactor = Redactor(show_values=True)
    shown = redactor.value(list(range(5000)))
    assert len(shown) == 1001
    assert shown[-1] == "… 4,000 more"
    assert redactor.value({n: n for n in range(1001)})["…"] == "1 more"
    assert len(redactor.value("x" * 300_000)) == 100_001


def test_value_with_failing_repr_is_shown_by_its_type():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert Redactor(show_values=True).value(Odd()) == "<Odd>"


@pytest.mark.parametrize(
    "text",
    [
        "x" * 200_000 + "token",
        "token=" * 30_000,
        "token='" * 30_000,
        'token=["' * 30_000,
        "http://a:" * 30_000,
        "bearer " * 30_000,
        "-----BEGIN PRIVATE KEY-----" * 5_000,
        "password" * 30_000,
        "{'token': {" * 20_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.timeout(60)
def test_masking_of_hostile_text_ends_in_time(text):
    Redactor().with_secrets_from({"token": CANARY}).text(text)


def test_secrets_of_access_keys_are_masked():
    key = f"wbe_{'a1' * 6}_{'Xy3z' * 10}"
    text = f"sent {key} to https://host/?key={key}, wbe_flowdetails"
    assert Redactor().text(text) == (
        "sent wbe_a1a1a1a1a1a1_*** to https://host/?key=wbe_a1a1a1a1a1a1_***, wbe_flowdetails"
    )
    assert Redactor(show_values=True).value([key]) == ["wbe_a1a1a1a1a1a1_***"]


SECRET = "canary-4711"


@codec.allow
class Tuple(NamedTuple):
    password: str


@codec.allow
@dataclasses.dataclass(slots=True)
class Data:
    password: str


@codec.allow
@attrs.define
class Attrs:
    password: str


@codec.allow
class Struct(msgspec.Struct):
    password: str


@codec.allow
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    password: str


@codec.allow
class Hidden(pydantic.BaseModel):
    _password: str = pydantic.PrivateAttr(default=SECRET)


@pytest.mark.parametrize(
    "value",
    [
        Tuple(SECRET),
        Data(SECRET),
        Attrs(SECRET),
        Struct(SECRET),
        Model(password=SECRET),
        Model.model_validate({"password": "", "token": {"inner": [SECRET]}}),
        Hidden(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_secret_in_a_field_is_masked_there_and_in_other_texts(value: Any) -> None:
    redactor = Redactor(show_values=True)
    assert SECRET not in str(redactor.value([value]))
    assert redactor.with_secrets_from({"a": [value]}).text(f"connect with {SECRET}") == (
        "connect with ***"
    )


def test_named_tuple_is_shown_with_the_names_of_its_fields() -> None:
    assert Redactor(show_values=True).value([Tuple("x")]) == [{"password": "***"}]


def test_redacted_worker_and_row_views_contain_no_secret():
    bad = f"x token={CANARY}"
    worker = WorkerView(
        bad, bad, 4711, "idle", (bad,), (bad, "q"), (bad,), 2, 1, 5.0, 4.0, bad, bad,
        current=(WorkView(bad, bad, 3.0),),
    )  # fmt: skip
    row = RowView(bad, 1, "open", None, 2.5)
    told = redacted([worker, row], Redactor())
    assert CANARY not in repr(told)
    assert told[0].current[0].task == "x token=***"
    assert (told[0].pid, told[0].heard, told[1].holder, told[1].age) == (4711, 5.0, None, 2.5)


def test_view_without_secrets_is_returned_unchanged():
    row = RowView("r", 1, "open", "h:1", 2.5)
    assert redacted([row], Redactor())[0] is row
