"""Signatures and encryption of messages."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile import forging
from tests.support import signed
from tests.support.signed import KINDS, Party
from wbengine import exceptions as exc
from wbengine._concurrency import manual_clock
from wbengine._security import keys
from wbengine._text import json_text
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import signing
from wbengine.transports import _broker, _encoding

NOW = 1_000_000.0
#: Number of mutations; `tools/fuzz --signed` runs more.
EXAMPLES = 2_000


@pytest.fixture
def clock() -> manual_clock.ManualClock:
    return manual_clock.ManualClock(NOW)


@pytest.fixture(params=["shared", "per-role"])
def parties(request: pytest.FixtureRequest, clock: manual_clock.ManualClock) -> dict[str, Party]:
    files = keys.new(per_role=request.param == "per-role")
    return {
        role: Party(files.get(role) or files[keys.ANY], clock)
        for role in (keys.ENGINE, keys.WORKER, keys.OPERATOR)
    }


@pytest.fixture
def apart(clock: manual_clock.ManualClock) -> dict[str, Party]:
    """Return a party with a separate key for each role."""
    return {role: Party(made, clock) for role, made in keys.new(per_role=True).items()}


def check(hearer: Party, message: Any, refusal: str | None, *more: Any) -> None:
    """Check that a message is rejected with this text, or accepted if it is None."""
    with pytest.raises(exc.NotTrusted, match=refusal) if refusal else contextlib.nullcontext():
        hearer.verify(message, *more)


@pytest.mark.parametrize("layout", ["json", "amqp"])
@pytest.mark.parametrize("kind", KINDS)
def test_signed_message_is_accepted_by_all_roles(
    parties: dict[str, Party], kind: str, layout: str
) -> None:
    for hearer in parties.values():
        hearer.verify(signed.received(parties[KINDS[kind][0]].sign(kind), layout))


@pytest.mark.parametrize("kind", KINDS)
def test_unsigned_message_is_rejected(parties: dict[str, Party], kind: str) -> None:
    message = signed.received(signed.envelope(kind))
    with pytest.raises(exc.NotTrusted, match="the message is not signed"):
        parties[keys.ENGINE].verify(message)


@pytest.mark.parametrize("kind", KINDS)
def test_message_signed_by_a_role_without_permission_is_rejected(
    apart: dict[str, Party], kind: str
) -> None:
    may = {
        "request": {"engine", "operator"}, "question": {"engine", "operator"}, "ask": {"engine"},
        "cancel": {"engine"}, "control": {"engine", "operator"}, "response": {"engine", "worker"},
        "beat": {"worker"},
    }[kind]  # fmt: skip
    for role, speaker in apart.items():
        refusal = None if role in may else f"role '{role}' must not sign this message"
        check(apart[keys.ENGINE], signed.received(speaker.sign(kind)), refusal)


def test_notify_with_the_wrong_role_is_rejected_despite_its_body(apart: dict[str, Party]) -> None:
    """Only workers announce the end of a worker, and only engines and operators ask workers."""
    goodbye, question = signed.envelope("beat"), signed.envelope("question")
    goodbye.body = {}
    goodbye.signer = apart[keys.OPERATOR].signer
    question._encoded = b"{ }"
    question.signer = apart[keys.WORKER].signer
    for said in (goodbye, question):
        with pytest.raises(exc.NotTrusted, match="must not sign this message"):
            apart[keys.ENGINE].verify(signed.received(said))


def test_message_with_an_unknown_key_is_rejected(clock: manual_clock.ManualClock) -> None:
    stranger, hearer = (Party(keys.new()[keys.ANY], clock) for _ in range(2))
    with pytest.raises(exc.NotTrusted, match="unknown key id"):
        hearer.verify(signed.received(stranger.sign("request")))


def test_message_with_an_expired_key_is_rejected(clock: manual_clock.ManualClock) -> None:
    content = keys.new()
    old = Party(content[keys.ANY], clock)
    message = signed.received(old.sign("request"))
    new = Party(keys.rotated(content, NOW, NOW + 100, NOW)[keys.ANY], clock)
    clock.advance(100)
    new.verify(message)
    clock.advance(1)
    with pytest.raises(exc.NotTrusted, match="has expired"):
        new.verify(message)


def test_signing_with_an_expired_key_is_logged_once(
    clock: manual_clock.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    content = keys.new()[keys.ANY]
    content["keys"][0]["until"] = NOW
    party = Party(content, clock)
    signed.received(party.sign("beat"))
    assert not caplog.messages
    clock.advance(1)
    for _ in range(3):
        signed.received(party.sign("beat"))
    (told,) = caplog.messages
    assert content["keys"][0]["id"] in told and "has expired" in told


def _header(name: str, value: Any) -> Callable[[Any], None]:
    return lambda message: message.headers.__setitem__(name, value)


def _property(name: str, value: Any) -> Callable[[Any], None]:
    return lambda message: message.properties.__setitem__(name, value)


TAMPERED: dict[str, Callable[[Any], None]] = {
    "body": lambda m: setattr(m, "body", m.body.replace(b'"n":5', b'"n":6')),
    "longer body": lambda m: setattr(m, "body", m.body + b" "),
    "reply queue": _property("reply_to", "attacker"),
    "no reply queue": lambda m: m.properties.pop("reply_to"),
    "id": _property("correlation_id", "r2"),
    "type": _property("type", "wbe-cancel"),
    "epoch": _header(hd.WBE_EPOCH, 2),
    "epoch as text": _header(hd.WBE_EPOCH, "1"),
    "epoch as true": _header(hd.WBE_EPOCH, True),
    "ledger": lambda m: m.headers.pop(hd.WBE_LEDGER),
    "another header": _header(hd.WBE_LOGS, 1),
    "expiry": _header(hd.EXPIRES, 2e9),
    "limit that is no number": _header("timelimit", [1.5, math.nan]),
    "limit that is infinite": _header("timelimit", [1.5, math.inf]),
    "signature": lambda m: m.headers.__setitem__(
        hd.WBE_SIGNATURE, m.headers[hd.WBE_SIGNATURE][:-1] + "x"
    ),
    "no signature": lambda m: m.headers.pop(hd.WBE_SIGNATURE),
    "signature that is no text": _header(hd.WBE_SIGNATURE, 5),
    "empty signature": _header(hd.WBE_SIGNATURE, ""),
    "addressee": lambda m: m.headers.__setitem__(
        hd.WBE_SIGNATURE, m.headers[hd.WBE_SIGNATURE].replace("t.queue", signed.TOPIC)
    ),
    "time": lambda m: m.headers.__setitem__(
        hd.WBE_SIGNATURE, m.headers[hd.WBE_SIGNATURE].replace("1000000", "1000001")
    ),
    "compression": lambda m: setattr(m, "compressed", True),
}  # fmt: skip


class _Loose(_broker.Delivery):
    """Message with attributes for properties of other brokers."""


@pytest.mark.parametrize("how", TAMPERED)
def test_modified_message_is_rejected(parties: dict[str, Party], how: str) -> None:
    data = _encoding.seal(parties[keys.ENGINE].sign("request"), "x")
    message = _Loose("q", None, data, False)
    message.parse()
    parties[keys.WORKER].verify(message)
    TAMPERED[how](message)
    with pytest.raises(exc.NotTrusted):
        parties[keys.WORKER].verify(message)


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"-Infinity"])
def test_non_finite_number_in_a_header_is_rejected(
    parties: dict[str, Party], number: bytes
) -> None:
    data = signed.sealed(parties[keys.ENGINE].sign("request"))
    signed.read(data)
    with pytest.raises(signed.InvalidMessageError):
        signed.read(data.replace(b"[1.5,null]", b"[1.5,%b]" % number))


@pytest.mark.parametrize("number", [1e-05, 1e16, 0.1, 1e-300, 5e-324, 0.0, 1.5e300])
def test_signature_is_the_same_without_orjson(
    parties: dict[str, Party], number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = signed.envelope("request")
    said.headers["timelimit"] = [number, None]
    said.signer = parties[keys.ENGINE].signer
    message = signed.received(said)
    parties[keys.WORKER].verify(message)
    monkeypatch.setattr(json_text, "orjson", None)
    parties[keys.WORKER].verify(message)


def test_headers_added_by_brokers_do_not_affect_the_signature(parties: dict[str, Party]) -> None:
    message = signed.received(parties[keys.ENGINE].sign("request"))
    message.headers["x-death"] = [{"count": 1}]
    parties[keys.WORKER].verify(message)


def test_message_addressed_to_another_process_is_rejected(parties: dict[str, Party]) -> None:
    for kind in KINDS:
        message = signed.received(parties[KINDS[kind][0]].sign(kind))
        # An engine that takes over a flow reads replies to others.
        refusal = None if kind == "response" else "addressed to another process"
        check(parties[keys.ENGINE], message, refusal, ("another",))


@pytest.mark.parametrize("kind", KINDS)
def test_message_of_another_exchange_is_rejected_except_replies(
    clock: manual_clock.ManualClock, kind: str
) -> None:
    """The address of all workers is the same in every exchange. Replies are stored in ledgers."""
    content = keys.new()[keys.ANY]
    message = signed.received(Party(content, clock, "other").sign(kind))
    Party(content, clock, "other").verify(message)
    check(Party(content, clock), message, None if kind == "response" else "signature")


def test_control_command_older_than_the_process_is_rejected(
    clock: manual_clock.ManualClock,
) -> None:
    """A recorded command must not affect later processes; an old heartbeat only reports a state."""
    content = keys.new()[keys.ANY]
    early = Party(content, clock)
    order, beat = (signed.received(early.sign(kind)) for kind in ("control", "beat"))
    early.verify(order)
    clock.advance(1)
    late = Party(content, clock)
    late.verify(beat)
    with pytest.raises(exc.NotTrusted, match="before this process started"):
        late.verify(order)
    late.verify(signed.received(early.sign("control")))


@pytest.mark.parametrize("kind", KINDS)
def test_only_notify_and_control_messages_must_be_recent_and_unique(
    parties: dict[str, Party], clock: manual_clock.ManualClock, kind: str
) -> None:
    """Queued requests may be old, and are redelivered."""
    message = signed.received(parties[KINDS[kind][0]].sign(kind))
    hearer = parties[keys.ENGINE]
    is_now = kind in ("question", "beat", "control")
    hearer.verify(message)
    check(hearer, message, "received before" if is_now else None)
    clock.advance(signing.MAX_AGE_SECONDS + 1)
    check(parties[keys.WORKER], message, "too old" if is_now else None)


def test_message_from_a_clock_that_is_ahead_is_rejected() -> None:
    content = keys.new()[keys.ANY]
    ahead = Party(content, manual_clock.ManualClock(NOW + signing.MAX_AGE_SECONDS + 1))
    with pytest.raises(exc.NotTrusted, match="clocks differ"):
        Party(content, manual_clock.ManualClock(NOW)).verify(signed.received(ahead.sign("control")))


def test_nonces_are_kept_for_their_maximum_age_and_limited() -> None:
    nonces = signing.Nonces(limit=2)
    assert nonces.is_new("a", NOW) and not nonces.is_new("a", NOW + 2 * signing.MAX_AGE_SECONDS)
    assert nonces.is_new("a", NOW + 2 * signing.MAX_AGE_SECONDS + 1)
    assert nonces.is_new("b", NOW + 200) and nonces.is_new("c", NOW + 200)
    assert len(nonces._seen) == 2


def test_unsigned_message_is_accepted_until_the_configured_time(
    clock: manual_clock.ManualClock,
) -> None:
    """A message with a wrong signature is rejected in any case."""
    content = {**keys.new()[keys.ANY], "accept_unsigned_until": NOW + 10}
    hearer = Party(content, clock)
    plain = signed.received(signed.envelope("request"))
    hearer.verify(plain)
    with pytest.raises(exc.NotTrusted):
        hearer.verify(signed.received(Party(keys.new()[keys.ANY], clock).sign("request")))
    clock.advance(10)
    with pytest.raises(exc.NotTrusted, match="not signed"):
        hearer.verify(plain)


# Results in a ledger.


def test_stored_result_is_accepted_only_for_its_request(parties: dict[str, Party]) -> None:
    frozen = env.freeze(parties[keys.WORKER].sign("response"))
    hearer = parties[keys.ENGINE].signer
    thawed = env.thaw(frozen, "r1", signer=hearer)
    assert thawed.body == {"state": "SUCCESS", "data": {"result": "böse"}}
    for forged, id in [
        (frozen, "r2"),
        (frozen.replace("böse".encode(), b"goods"), "r1"),
        (env.freeze(signed.envelope("response")), "r1"),
        (frozen.replace(b'"wbe-epoch":1', b'"wbe-epoch":2'), "r1"),
    ]:
        with pytest.raises(exc.NotTrusted):
            env.thaw(forged, id, signer=hearer)


def test_stored_result_is_forwarded_with_its_signature(parties: dict[str, Party]) -> None:
    """The worker that forwards it does not sign it again."""
    frozen = env.freeze(parties[keys.WORKER].sign("response"))
    known = env.thaw(frozen, "r1", "heir")
    known.signer = parties[keys.WORKER].signer
    parties[keys.ENGINE].verify(signed.received(known), ("heir",))
    again = env.thaw(env.freeze(known), "r1")
    assert (again.headers, again.encoded) == (known.headers, known.encoded)


def test_message_is_signed_once_on_encoding(apart: dict[str, Party]) -> None:
    made = apart[keys.ENGINE].sign("request")
    assert hd.WBE_SIGNATURE not in made.headers
    first = made.encoded_headers
    assert made.encoded_headers == first and made.signed_headers is made.headers
    assert json.loads(first)[hd.WBE_SIGNATURE] == made.headers[hd.WBE_SIGNATURE]


# Encrypted bodies.


@pytest.fixture
def hidden(clock: manual_clock.ManualClock) -> Party:
    return Party(keys.new(encrypt=True)[keys.ANY], clock)


@pytest.mark.parametrize("layout", ["json", "amqp"])
@pytest.mark.parametrize("kind", ["request", "response"])
def test_encrypted_message_shows_no_values_without_the_key(
    hidden: Party, kind: str, layout: str
) -> None:
    plain = signed.envelope(kind).encoded
    made = hidden.sign(kind)
    assert made.encoded == plain  # The size check uses the plain text.
    message = signed.received(made, layout)
    assert b"SUCCESS" not in message.body and b"sample_tasks" not in message.body
    assert json.loads(message.body)  # Ledgers store JSON.
    assert hidden.signer.verify(message, signed.AUDIENCE) == plain
    # Requeued messages and dead letters are published unchanged.
    assert hidden.signer.verify(signed.received(env.copy_of(message)), signed.AUDIENCE) == plain


def test_encrypted_body_cannot_be_moved_to_another_request(
    hidden: Party, clock: manual_clock.ManualClock
) -> None:
    message = signed.received(hidden.sign("request"))
    other = Party({**keys.new(encrypt=True)[keys.ANY]}, clock)
    other.ring.keys = hidden.ring.keys
    with pytest.raises(exc.NotTrusted, match="unknown encryption key id"):
        other.verify(message)
    moved = env.copy_of(message)
    moved.headers = {k: v for k, v in moved.headers.items() if k != hd.WBE_SIGNATURE}
    moved.correlation_id, moved.signer = "r2", hidden.signer
    with pytest.raises(exc.NotTrusted, match="cannot decrypt"):
        hidden.verify(signed.received(moved))


def test_stored_result_is_encrypted(hidden: Party) -> None:
    frozen = env.freeze(hidden.sign("response"))
    assert b"SUCCESS" not in frozen
    thawed = env.thaw(frozen, "r1", signer=hidden.signer)
    assert thawed.body["data"] == {"result": "böse"}
    again = env.thaw(env.freeze(thawed), "r1", signer=hidden.signer)
    assert again.encoded == thawed.encoded


# Mutations.


def test_no_mutated_message_is_accepted() -> None:
    told = forging.try_mutations(EXAMPLES, seed=1)
    assert (told.believed, told.deaths) == (0, 0)
    assert told.refused > EXAMPLES / 3  # Otherwise the mutations test nothing.


def test_mutations_detect_a_verifier_that_accepts_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys.Key, "verifies", lambda *told: True)
    assert forging.try_mutations(200, seed=1).believed > 0


def test_copied_envelope_keeps_its_signature(apart: dict[str, Party]) -> None:
    """A worker requeues a message exactly as its engine published it."""
    message = signed.received(apart[keys.ENGINE].sign("request"))
    message.delivery_info["redelivered"] = True
    made = env.copy_of(copy.copy(message))
    made.signer = apart[keys.WORKER].signer
    apart[keys.WORKER].verify(signed.received(made))
