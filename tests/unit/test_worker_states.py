"""States of workers in heartbeats: encoding and decoding."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine.engines.worker_based._messages import notices
from wbengine.engines.worker_based._messages.worker_life import STATES, Life
from wbengine.transports._amqp import amqp_frames

FULL = Life(
    "draining", 1.5, 20.0, 30.25, 7, 2, 12.5, (("id-1", "resize"), ("id-2", "a task \u00e9"))
)
#: All values that JSON text, or a message of a hostile peer, can contain.
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**1030, max_value=2**1040)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=8)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FIELDS = ("birth", "shutdown_requested", "death", "successes", "failures", "working", "current")


@pytest.mark.parametrize(
    "life",
    [FULL, Life(), Life("idle", 1.0), Life("dead", successes=1)],
    ids=["all-fields", "no-fields", "idle", "dead"],
)
def test_life_survives_round_trip_through_header(life: Life) -> None:
    header = life.to_header()
    assert Life.from_header(json.loads(json.dumps(header))) == life
    assert Life.from_header(header) == life


def test_header_omits_default_values() -> None:
    assert Life("idle").to_header() == {"state": "idle"}


@pytest.mark.parametrize("slots", [1000, 1500, 5000])
@pytest.mark.parametrize("name", ["", "x" * 20, "x" * 255, "\0" * 255, "\U0001f600" * 255])
def test_heartbeat_fits_into_a_frame_of_rabbitmq(name: str, slots: int) -> None:
    """Otherwise it is not published, and the engine treats the busy worker as lost."""
    ids = [str(uuid.uuid4()) for _ in range(slots)]
    current = tuple((id, name) for id in ids)
    life = Life("busy", 1.5, successes=7, current=current, since=(1234567890.5,) * slots)
    notice = notices.Heartbeat("t" * 120, (), True, "w" * 80, notices.BEAT, life=life, ids=ids)
    headers = notice.to_message("e").headers
    assert amqp_frames.Frames(1, "x", 131072).publish(
        "e", False, amqp_frames.properties("NOTIFY", headers, 1, 0, None, None, None), b"{}"
    )
    assert headers["wbe-life"]["current"] and ("wbe-ids" in headers) == (slots <= 1500)


@given(JUNK)
def test_invalid_header_is_read_as_none(junk: Any) -> None:
    assert Life.from_header(junk) is None
    assert Life.from_header({"state": junk}) is None


@given(st.sampled_from(sorted(STATES)), st.sampled_from(FIELDS), JUNK)
def test_invalid_header_field_does_not_affect_other_fields(
    state: str, field: str, junk: Any
) -> None:
    header = {**FULL.to_header(), "state": state}
    found = Life.from_header({**header, field: junk, "more": junk})
    assert found is not None and found.state == state
    for name in FIELDS:
        value = getattr(found, name)
        if name != field:
            assert value == getattr(FULL, name)
        elif name in ("successes", "failures"):
            assert type(value) is int and 0 <= value <= 2**53
        elif name == "current":
            assert all(len(pair) == 2 and all(type(p) is str for p in pair) for pair in value)
        else:
            assert value is None or (type(value) is float and 0 <= value < math.inf)
    assert found.to_header()  # it can be encoded again


def test_excess_current_tasks_in_header_are_ignored() -> None:
    pairs = [["id", "x" * 600], ["a", "b"], *[["c", "d"]] * 2000]
    found = Life.from_header({"state": "busy", "current": pairs})
    assert found is not None and len(found.current) == 999
    assert found.current[0] == ("a", "b")


def test_boolean_is_not_read_as_number() -> None:
    assert Life.from_header({"state": "idle", "birth": True, "successes": True}) == Life("idle")
