"""JSON text: encoding and decoding agree with the standard library."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from tests.support.values import same
from wbengine import exceptions as exc
from wbengine._text import json_text
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.types import codec

fast = pytest.mark.skipif(json_text.orjson is None, reason="orjson is not there")


class Text(str):
    __slots__ = ()


class Number(int):
    __slots__ = ()


class Names(dict):  # type: ignore[type-arg]
    """A dict subclass with its own `items`, which the standard encoder calls."""

    def items(self) -> Any:
        return [("own", 1)]


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Data:
    x: int = 0


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
NUMBERS = (
    st.integers()
    | st.sampled_from([2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**64), 10**40, Number(3)])
    | st.floats()
    | st.sampled_from([1e16, 1e-7, 5e-324, 1.7976931348623157e308, -0.0, 2.0**70])
)
ODD = st.sampled_from(
    [
        *(b"x", {1}, 1j, object, dt.date(2020, 1, 1), dt.datetime(2020, 1, 1), dt.time(1)),
        *(decimal.Decimal(1), Data(), Text("text"), Text("\ud800"), Names(a=1), Level.LOW),
    ]
)
LEAVES = st.none() | st.booleans() | NUMBERS | ANY_TEXT | st.sampled_from(["null", "\x7f\u2028"])


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> Any:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=12,
    )


def outcome(do: Callable[[], Any]) -> tuple[str, Any]:
    """Return the result of a call, or the family of its exception."""
    try:
        return "done", do()
    except (exc.InvalidFormat, ValueError, TypeError, RecursionError) as error:
        families = (exc.InvalidFormat, ValueError, TypeError, RecursionError)
        return "failed", next(family for family in families if isinstance(error, family))


def alone(do: Callable[[], Any]) -> tuple[str, Any]:
    """Return the outcome of a call without orjson."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "orjson", None)
        return outcome(do)


# Encoding -----------------------------------------------------------------------------------------


@given(nested(LEAVES | ODD, ANY_TEXT | NUMBERS | st.none() | st.booleans() | st.just(b"x")))
@example([math.nan, None])
@example({"a": None, "b": [math.inf]})
@example({"a": (1, 2), "b": None})
@example({1: 1, "1": 2})
@example([Names(a=1)])
@example([Data()])
@example([dt.date(2020, 1, 1)])
def test_encoded_text_equals_that_of_standard_json(tree: Any) -> None:
    """Values that the standard encoder rejects are rejected."""
    plainly = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    how, text = outcome(lambda: plainly(tree).encode("utf-8"))
    for done, data in (
        outcome(lambda: json_text.encode(tree)),
        alone(lambda: json_text.encode(tree)),
    ):
        assert done == how
        assert same(json.loads(data), json.loads(text)) if how == "done" else data is text


@given(nested(LEAVES, ANY_TEXT))
def test_replace_mode_encodes_lone_surrogates_as_question_marks(tree: Any) -> None:
    how, data = outcome(lambda: json_text.encode(tree, "replace"))
    assert (how, data) == alone(lambda: json_text.encode(tree, "replace")) or same(
        json.loads(data), json.loads(json_text.text_of(tree).encode("utf-8", "replace"))
    )


TRAVELLING = nested(
    st.none() | st.booleans() | NUMBERS.filter(lambda number: type(number) is not Number)
    | ANY_TEXT | st.binary(max_size=5) | st.dates() | st.datetimes() | st.times() | st.uuids()
    | st.decimals(allow_nan=False),
    st.text("ab_", max_size=3) | st.none() | st.booleans() | st.integers(0, 9),
)  # fmt: skip


@given(TRAVELLING)
def test_body_for_wbengine_unpacks_to_the_packed_value(value: Any) -> None:
    headers = {hd.WBE_VERSION: hd.VERSION}
    packed = {"result": codec.pack(value)}
    encoded = env.Envelope("RESPONSE", packed, headers=headers).encoded
    assert same(json.loads(encoded), json.loads(kombu_json.dumps(packed)))
    assert same(codec.unpack(env.parse(encoded)["result"]), value)


# Decoding -----------------------------------------------------------------------------------------

SOUND = nested(LEAVES, ANY_TEXT)
PIECES = st.sampled_from(
    [
        *(
            b"\\ud800",
            b"\\uD83D\\uDE00",
            b"\\u0061",
            b'"a":1,',
            b'"a":1,"a":2',
            b"1e400",
            b"-0",
            b"1E5",
        ),
        *(b"123456789012345678901234567890", b"NaN", b"-Infinity", b" ", b"\n", b"\xff", b"\xc3"),
        *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"1.0", b"0.10", b"01", b"9" * 4301, b"null"),
        *(b"[" * 65 + b"]" * 65, b"\x00", b"\x1f", b"\x7f", b"1" * 310, b"\xed\xa0\x80"),
    ]
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Generate JSON text as various encoders write it, sometimes with errors."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
    ascii_only = draw(st.booleans())
    tree = draw(SOUND)
    try:
        text = json.dumps(tree, ensure_ascii=ascii_only, separators=separators)
    except TypeError:
        text = "[]"
    data = text.encode("utf-8", draw(st.sampled_from(["replace", "surrogatepass"])))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + draw(PIECES) + data[place + draw(st.integers(0, 2)) :]
    return data


@fast
@given(texts())
@example(b'{"a":1,"a":2}')
@example(b"[1e400]")
@example(b"[123456789012345678901234567890]")
@example(b'"\\ud800"')
@example(b"[-0]")
@example(b"[1.0,1e16,1e+16]")
def test_parsed_text_equals_that_of_standard_json(data: bytes) -> None:
    for read in (codec.parse, lambda data: codec.parse(data, 3), codec.loads):
        (how, tree), (expected, own) = outcome(lambda: read(data)), alone(lambda: read(data))  # noqa: B023
        assert how == expected
        assert same(tree, own) if how == "done" else tree is own


@given(SOUND, st.integers(0, 6))
def test_nesting_depth_is_measured_correctly(tree: Any, depth: int) -> None:
    def levels(tree: Any) -> int:
        inner = tree.values() if isinstance(tree, dict) else tree
        return 1 + max(map(levels, inner), default=0) if isinstance(tree, dict | list) else 0

    def hollow(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: hollow(value) for key, value in tree.items()}
        return [hollow(value) for value in tree] if isinstance(tree, list) else None

    tree = json.loads(json.dumps(tree))
    assert json_text.is_deeper(tree, depth) is (levels(tree) > depth)
    for more in (tree, [tree, "x" * 3000], [tree, *[[]] * 150, "x" * 3000]):
        data = json.dumps(hollow(more)).encode()  # text of the containers only
        assert not levels(more) or json_text.has_more_containers(data, levels(more) - 1)


def test_number_of_containers_in_long_text_is_not_overestimated() -> None:
    for separators in ((",", ":"), (", ", ": ")):  # the format of this encoder and of others
        data = json.dumps({"a": ["x" * 5000, {}]}, separators=separators).encode()
        assert json_text.has_more_containers(data, 2) and not json_text.has_more_containers(data, 3)


@fast
def test_decode_uses_orjson_and_rejects_noncanonical_text() -> None:
    assert same(json_text.decode(b'{"a":[1,2.5,"x"]}'), {"a": [1, 2.5, "x"]})
    for other in (b'{"a": 1}', b'{"a":1,"a":1}', b"[1.50]", b"NaN", b""):
        with pytest.raises(ValueError):
            json_text.decode(other)


def test_encoded_small_texts_use_little_memory() -> None:
    tree = {"a": "x" * 100}
    tracemalloc.start()
    try:
        kept = [json_text.encode(tree) for _ in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 100 * 400 and len({*kept}) == 1


@pytest.mark.parametrize(("data", "more"), [(b"1", False), (b"[{}]", False), (b"[{},[]]", True)])
def test_containers_are_counted_up_to_a_maximum(data: bytes, more: bool) -> None:
    assert json_text.has_more_containers(data, 2) is more
