"""What is believed of messages that are signed: what their signer said, and nothing else."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile import forging
from tests.support import signed
from tests.support.signed import KINDS, Party
from wbengine import _clock, _json_text, keys
from wbengine import exceptions as exc
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import signing
from wbengine.transports import _envelope

NOW = 1_000_000.0
#: Mutations; `tools/fuzz --signed` makes more.
EXAMPLES = 2_000


@pytest.fixture
def clock() -> _clock.ManualClock:
    return _clock.ManualClock(NOW)


@pytest.fixture(params=["shared", "per-role"])
def parties(request: pytest.FixtureRequest, clock: _clock.ManualClock) -> dict[str, Party]:
    files = keys.new(per_role=request.param == "per-role")
    return {
        role: Party(files.get(role) or files[keys.ANY], clock)
        for role in (keys.ENGINE, keys.WORKER, keys.OPERATOR)
    }


@pytest.fixture
def apart(clock: _clock.ManualClock) -> dict[str, Party]:
    """Each role has a key of its own."""
    return {role: Party(made, clock) for role, made in keys.new(per_role=True).items()}


@pytest.mark.parametrize("layout", ["json", "amqp"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_signed_is_believed_by_all(
    parties: dict[str, Party], kind: str, layout: str
) -> None:
    for hearer in parties.values():
        hearer.hear(signed.came(parties[KINDS[kind][0]].say(kind), layout))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_signed_is_not_believed(parties: dict[str, Party], kind: str) -> None:
    message = signed.came(signed.envelope(kind))
    with pytest.raises(exc.NotTrusted, match="it is not signed"):
        parties[keys.ENGINE].hear(message)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_says_what_is_not_of_his_role(apart: dict[str, Party], kind: str) -> None:
    may = {
        "request": {"engine", "operator"}, "question": {"engine", "operator"}, "ask": {"engine"},
        "cancel": {"engine"}, "control": {"engine", "operator"}, "response": {"engine", "worker"},
        "beat": {"worker"},
    }[kind]  # fmt: skip
    for role, speaker in apart.items():
        message = signed.came(speaker.say(kind))
        if role in may:
            apart[keys.ENGINE].hear(message)
        else:
            with pytest.raises(exc.NotTrusted, match=f"role '{role}' must not say this"):
                apart[keys.ENGINE].hear(message)


def test_who_names_a_worker_asks_no_question(apart: dict[str, Party]) -> None:
    """However its body is written: an engine says no goodbye of a worker, a worker asks nobody."""
    goodbye, question = signed.envelope("beat"), signed.envelope("question")
    goodbye.body = {}
    goodbye.signer = apart[keys.OPERATOR].signer
    question._encoded = b"{ }"
    question.signer = apart[keys.WORKER].signer
    for said in (goodbye, question):
        with pytest.raises(exc.NotTrusted, match="must not say this"):
            apart[keys.ENGINE].hear(signed.came(said))


def test_the_key_of_another_fleet_is_not_believed(clock: _clock.ManualClock) -> None:
    stranger, hearer = (Party(keys.new()[keys.ANY], clock) for _ in range(2))
    with pytest.raises(exc.NotTrusted, match="no key of that id"):
        hearer.hear(signed.came(stranger.say("request")))


def test_a_key_whose_time_is_over_is_not_believed(clock: _clock.ManualClock) -> None:
    content = keys.new()
    old = Party(content[keys.ANY], clock)
    message = signed.came(old.say("request"))
    new = Party(keys.rotated(content, NOW, NOW + 100, NOW)[keys.ANY], clock)
    clock.advance(100)
    new.hear(message)
    clock.advance(1)
    with pytest.raises(exc.NotTrusted, match="not valid any more"):
        new.hear(message)


def test_whoever_signs_with_a_key_that_is_over_says_so(
    clock: _clock.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    content = keys.new()[keys.ANY]
    content["keys"][0]["until"] = NOW
    party = Party(content, clock)
    signed.came(party.say("beat"))
    assert not caplog.messages
    clock.advance(1)
    for _ in range(3):
        signed.came(party.say("beat"))
    (told,) = caplog.messages
    assert content["keys"][0]["id"] in told and "is over" in told


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
    "epoch": _header(env.WBE_EPOCH, 2),
    "epoch as text": _header(env.WBE_EPOCH, "1"),
    "epoch as true": _header(env.WBE_EPOCH, True),
    "ledger": lambda m: m.headers.pop(env.WBE_LEDGER),
    "another header": _header(env.WBE_LOGS, 1),
    "expiry": _header(env.EXPIRES, 2e9),
    "limit that is no number": _header("timelimit", [1.5, math.nan]),
    "limit that is infinite": _header("timelimit", [1.5, math.inf]),
    "signature": lambda m: m.headers.__setitem__(
        env.WBE_SIGNATURE, m.headers[env.WBE_SIGNATURE][:-1] + "x"
    ),
    "no signature": lambda m: m.headers.pop(env.WBE_SIGNATURE),
    "signature that is no text": _header(env.WBE_SIGNATURE, 5),
    "empty signature": _header(env.WBE_SIGNATURE, ""),
    "addressee": lambda m: m.headers.__setitem__(
        env.WBE_SIGNATURE, m.headers[env.WBE_SIGNATURE].replace("t.queue", signed.TOPIC)
    ),
    "time": lambda m: m.headers.__setitem__(
        env.WBE_SIGNATURE, m.headers[env.WBE_SIGNATURE].replace("1000000", "1000001")
    ),
    "compression": lambda m: setattr(m, "compressed", True),
}  # fmt: skip


class _Loose(_envelope.Message):
    """It has room for what messages of other brokers have."""


@pytest.mark.parametrize("how", TAMPERED)
def test_what_was_changed_is_not_believed(parties: dict[str, Party], how: str) -> None:
    data = _envelope.seal(parties[keys.ENGINE].say("request"), "x")
    message = _Loose(data, None, 1, False)
    parties[keys.WORKER].hear(message)
    TAMPERED[how](message)
    with pytest.raises(exc.NotTrusted):
        parties[keys.WORKER].hear(message)


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"-Infinity"])
def test_what_is_no_number_is_not_read(parties: dict[str, Party], number: bytes) -> None:
    data = signed.sealed(parties[keys.ENGINE].say("request"))
    signed.read(data)
    with pytest.raises(signed.BadMessage):
        signed.read(data.replace(b"[1.5,null]", b"[1.5,%b]" % number))


@pytest.mark.parametrize("number", [1e-05, 1e16, 0.1, 1e-300, 5e-324, 0.0, 1.5e300])
def test_whoever_has_no_orjson_signs_the_same(
    parties: dict[str, Party], number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = signed.envelope("request")
    said.headers["timelimit"] = [number, None]
    said.signer = parties[keys.ENGINE].signer
    message = signed.came(said)
    parties[keys.WORKER].hear(message)
    monkeypatch.setattr(_json_text, "orjson", None)
    parties[keys.WORKER].hear(message)


def test_headers_that_brokers_add_change_nothing(parties: dict[str, Party]) -> None:
    message = signed.came(parties[keys.ENGINE].say("request"))
    message.headers["x-death"] = [{"count": 1}]
    parties[keys.WORKER].hear(message)


def test_what_was_said_to_others_is_not_believed(parties: dict[str, Party]) -> None:
    for kind in KINDS:
        message = signed.came(parties[KINDS[kind][0]].say(kind))
        if kind == "response":  # who inherits a flow reads them
            parties[keys.ENGINE].hear(message, ("another",))
        else:
            with pytest.raises(exc.NotTrusted, match="said to others"):
                parties[keys.ENGINE].hear(message, ("another",))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_said_in_another_exchange_is_not_believed(
    clock: _clock.ManualClock, kind: str
) -> None:
    """All workers of any exchange are called by one name.  Answers are kept by their ledger."""
    content = keys.new()[keys.ANY]
    message = signed.came(Party(content, clock, "other").say(kind))
    Party(content, clock, "other").hear(message)
    hearer = Party(content, clock)
    if kind == "response":
        hearer.hear(message)
    else:
        with pytest.raises(exc.NotTrusted, match="signature"):
            hearer.hear(message)


def test_an_order_is_for_those_who_had_begun(clock: _clock.ManualClock) -> None:
    """Who keeps it cannot stop those that begin later; a beat of before tells them what is so."""
    content = keys.new()[keys.ANY]
    early = Party(content, clock)
    order, beat = (signed.came(early.say(kind)) for kind in ("control", "beat"))
    early.hear(order)
    clock.advance(1)
    late = Party(content, clock)
    late.hear(beat)
    with pytest.raises(exc.NotTrusted, match="before this process began"):
        late.hear(order)
    late.hear(signed.came(early.say("control")))


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_about_now_must_be_new(
    parties: dict[str, Party], clock: _clock.ManualClock, kind: str
) -> None:
    """A backlog may be old, and is delivered again."""
    message = signed.came(parties[KINDS[kind][0]].say(kind))
    hearer = parties[keys.ENGINE]
    is_now = kind in ("question", "beat", "control")
    hearer.hear(message)
    if is_now:
        with pytest.raises(exc.NotTrusted, match="said before"):
            hearer.hear(message)
    else:
        hearer.hear(message)
    clock.advance(signing.WINDOW + 1)
    if is_now:
        with pytest.raises(exc.NotTrusted, match="too old"):
            parties[keys.WORKER].hear(message)
    else:
        parties[keys.WORKER].hear(message)


def test_what_comes_from_a_clock_that_is_ahead_is_not_believed() -> None:
    content = keys.new()[keys.ANY]
    ahead = Party(content, _clock.ManualClock(NOW + signing.WINDOW + 1))
    with pytest.raises(exc.NotTrusted, match="clocks differ"):
        Party(content, _clock.ManualClock(NOW)).hear(signed.came(ahead.say("control")))


def test_so_many_nonces_are_remembered_as_long_as_they_matter() -> None:
    nonces = signing.Nonces(most=2)
    assert nonces.is_new("a", NOW) and not nonces.is_new("a", NOW + 2 * signing.WINDOW)
    assert nonces.is_new("a", NOW + 2 * signing.WINDOW + 1)
    assert nonces.is_new("b", NOW + 200) and nonces.is_new("c", NOW + 200)
    assert len(nonces._seen) == 2


def test_what_is_not_signed_is_believed_as_long_as_the_file_says_so(
    clock: _clock.ManualClock,
) -> None:
    """But not what is signed wrongly."""
    content = {**keys.new()[keys.ANY], "accept_unsigned_until": NOW + 10}
    hearer = Party(content, clock)
    plain = signed.came(signed.envelope("request"))
    hearer.hear(plain)
    with pytest.raises(exc.NotTrusted):
        hearer.hear(signed.came(Party(keys.new()[keys.ANY], clock).say("request")))
    clock.advance(10)
    with pytest.raises(exc.NotTrusted, match="not signed"):
        hearer.hear(plain)


# Outcomes in a ledger.


def test_an_outcome_is_believed_for_its_request_only(parties: dict[str, Party]) -> None:
    frozen = env.freeze(parties[keys.WORKER].say("response"))
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


def test_an_outcome_is_passed_on_as_it_was_signed(parties: dict[str, Party]) -> None:
    """By a worker that gave it no signature."""
    frozen = env.freeze(parties[keys.WORKER].say("response"))
    known = env.thaw(frozen, "r1", "heir")
    known.signer = parties[keys.WORKER].signer
    parties[keys.ENGINE].hear(signed.came(known), ("heir",))
    again = env.thaw(env.freeze(known), "r1")
    assert (again.headers, again.encoded) == (known.headers, known.encoded)


def test_a_message_is_signed_once_as_it_is_encoded(apart: dict[str, Party]) -> None:
    made = apart[keys.ENGINE].say("request")
    assert env.WBE_SIGNATURE not in made.headers
    first = made.encoded_headers
    assert made.encoded_headers == first and made.signed_headers is made.headers
    assert json.loads(first)[env.WBE_SIGNATURE] == made.headers[env.WBE_SIGNATURE]


# Encrypted bodies.


@pytest.fixture
def hidden(clock: _clock.ManualClock) -> Party:
    return Party(keys.new(encrypt=True)[keys.ANY], clock)


@pytest.mark.parametrize("layout", ["json", "amqp"])
@pytest.mark.parametrize("kind", ["request", "response"])
def test_values_are_hidden_from_who_has_no_key(hidden: Party, kind: str, layout: str) -> None:
    plain = signed.envelope(kind).encoded
    made = hidden.say(kind)
    assert made.encoded == plain  # as its size is checked
    message = signed.came(made, layout)
    assert b"SUCCESS" not in message.body and b"sample_tasks" not in message.body
    assert json.loads(message.body)  # as ledgers keep it
    assert hidden.signer.verify(message, signed.AUDIENCE) == plain
    # What is given back, or put aside, is sent as it came.
    assert hidden.signer.verify(signed.came(env.copy_of(message)), signed.AUDIENCE) == plain


def test_hidden_values_are_those_of_their_request(hidden: Party, clock: _clock.ManualClock) -> None:
    message = signed.came(hidden.say("request"))
    other = Party({**keys.new(encrypt=True)[keys.ANY]}, clock)
    other.ring.keys = hidden.ring.keys
    with pytest.raises(exc.NotTrusted, match="no key of that id opens"):
        other.hear(message)
    moved = env.copy_of(message)
    moved.headers = {k: v for k, v in moved.headers.items() if k != env.WBE_SIGNATURE}
    moved.correlation_id, moved.signer = "r2", hidden.signer
    with pytest.raises(exc.NotTrusted, match="cannot be decrypted"):
        hidden.hear(signed.came(moved))


def test_an_outcome_in_a_ledger_is_hidden(hidden: Party) -> None:
    frozen = env.freeze(hidden.say("response"))
    assert b"SUCCESS" not in frozen
    thawed = env.thaw(frozen, "r1", signer=hidden.signer)
    assert thawed.body["data"] == {"result": "böse"}
    again = env.thaw(env.freeze(thawed), "r1", signer=hidden.signer)
    assert again.encoded == thawed.encoded


# Mutations.


def test_no_mutated_message_is_believed() -> None:
    told = forging.try_mutations(EXAMPLES, seed=1)
    assert (told.believed, told.deaths) == (0, 0)
    assert told.refused > EXAMPLES / 3  # else nothing was tried


def test_a_verifier_that_believes_all_is_found_by_mutations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys.Key, "verifies", lambda *told: True)
    assert forging.try_mutations(200, seed=1).believed > 0


def test_envelopes_that_are_copied_keep_their_signature(apart: dict[str, Party]) -> None:
    """What a worker gives back is as its engine sent it."""
    message = signed.came(apart[keys.ENGINE].say("request"))
    message.delivery_info["redelivered"] = True
    made = env.copy_of(copy.copy(message))
    made.signer = apart[keys.WORKER].signer
    apart[keys.WORKER].hear(signed.came(made))
