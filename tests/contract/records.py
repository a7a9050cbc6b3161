"""Random records, and representations to compare them."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from wbengine import states
from wbengine.persistence import base, models
from wbengine.types import codec
from wbengine.types import failure as ft

Picture = dict[str, Any]


def failure(text: str = "no", *more: Any) -> ft.Failure:
    return ft.Failure.from_exception(ValueError(text, *more))


# Values: all types that the codec supports.

_zones = st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-30))])
_leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text()
    | st.text(st.characters(codec=None), max_size=3)  # includes lone surrogates
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.datetimes(timezones=_zones)
    | st.times()
    | st.timedeltas()
    | st.builds(failure, st.text())
)
_keys = st.text(max_size=5) | st.integers() | st.tuples(st.booleans(), st.text(max_size=2))
values = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_keys, inner, max_size=3)
        | st.sets(st.integers() | st.text(max_size=3), max_size=3)
        | st.frozensets(st.uuids(), max_size=2)
    ),
    max_leaves=8,
)
_meta = st.none() | st.dictionaries(st.text(max_size=5), values, max_size=2)
_moments = st.none() | st.floats(0, 2e9)
_failures = st.none() | st.builds(failure, st.text())
_errors = st.none() | st.text(max_size=20)
_attempts = st.builds(
    models.Attempt, st.integers(1, 2**40), st.sampled_from(["execute", "revert"]),
    st.none() | st.text(min_size=1, max_size=8), _moments, _moments, _moments,
    st.sampled_from([None, states.SUCCESS, states.REVERT_FAILURE]), _errors,
)  # fmt: skip
_incidents = st.builds(
    models.Incident, st.sampled_from(states.INCIDENTS), st.floats(0, 2e9), st.integers(1, 2**40),
    st.none() | st.text(max_size=8), st.none() | st.text(max_size=8), st.integers(-1, 2**40),
)  # fmt: skip
_histories = st.lists(
    st.builds(models.Change, st.sampled_from(states.FLOW_STATES), st.floats(0, 2e9), _errors),
    max_size=3,
).map(tuple)
_names = st.text(min_size=1, max_size=20)
_workers = st.none() | st.text(min_size=1, max_size=8)

#: Values that encoders often lose.
EXAMPLES: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 0.1, -0.0, float("inf"), float("nan"), 1e300, "", "a\0b", "\ud800",
    "Füße 漢字 🦊 \u202e", "'; DROP TABLE wbe_logbooks; --", "%s %(x)s :a ? \\ \" ` {}", b"",
    b"\0\xff", 1j, decimal.Decimal("1.10"), uuid.UUID(int=7), dt.date(1, 1, 1),
    dt.time(23, 59, 59, 999_999), dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    dt.timedelta(microseconds=1), [], (), {}, set(), frozenset({1}), [[1], (2, [3])],
    {"a": {"b": None}}, {1: "a"}, {(2, "b"): 3}, {"$wbe": "tuple", "v": [1]},
    "line\r\nline\u2028\x85", "x" * 70_000,
)  # fmt: skip


@st.composite
def atoms(draw: Any) -> models.AtomDetail:
    kind = draw(st.sampled_from([models.TaskDetail, models.RetryDetail]))
    atom: models.AtomDetail = kind(draw(_names))
    fill(draw, atom)
    if kind is models.TaskDetail and draw(st.booleans()):
        atom.items = models.Items(atom.attempt, draw(st.lists(values, max_size=3)), draw(_counts))
        for item in atom.items:
            _fill_item(draw, item)
    return atom


_counts = st.integers(0, 2**40)


def fill(draw: Any, atom: models.AtomDetail) -> None:
    """Set every field of an atom's own row."""
    atom.state = draw(st.none() | st.sampled_from(states.ATOM_STATES))
    atom.intention = draw(st.sampled_from(states.INTENTIONS))
    atom.version = draw(st.none() | st.just("1.2"))
    if isinstance(atom, models.RetryDetail):
        entries = st.tuples(values, st.dictionaries(_names, st.builds(failure), max_size=2))
        atom.results = draw(st.lists(entries, max_size=2))
    else:
        atom.results = draw(values)
    atom.revert_results = draw(values)
    atom.failure, atom.revert_failure = draw(_failures), draw(_failures)
    atom.attempt, atom.epoch = draw(_counts), draw(_counts)
    atom.action = draw(st.sampled_from(["execute", "revert"]))
    atom.worker = draw(_workers)
    atom.submitted = draw(_moments)
    atom.started, atom.ended = draw(_moments), draw(_moments)
    atom.progress = draw(st.none() | st.floats(0, 1))
    atom.progress_details = draw(values)
    atom.meta = draw(_meta)  # type: ignore[assignment]
    atom.past = draw(st.lists(_attempts, max_size=3).map(tuple))
    atom.attempts_dropped = draw(_counts)
    atom.reversions = draw(_counts)
    atom.incidents = draw(st.lists(_incidents, max_size=3).map(tuple))
    if draw(st.booleans()):
        atom.reset(atom.state or states.PENDING)


def _fill_item(draw: Any, item: models.ItemDetail) -> None:
    item.order = draw(st.integers(0, 9))
    item.state = draw(st.sampled_from([states.PENDING, states.SUCCESS, states.FAILURE]))
    item.results, item.revert_results = draw(values), draw(values)
    item.failure, item.revert_failure = draw(_failures), draw(_failures)
    item.worker = draw(_workers)
    item.submitted = draw(_moments)
    item.started, item.ended = draw(_moments), draw(_moments)


@st.composite
def books(draw: Any) -> models.LogBook:
    """Generate a logbook with all kinds of records."""
    book = models.LogBook(draw(_names))
    book.meta.update(draw(_meta) or {})
    for _ in range(draw(st.integers(0, 2))):
        flow = models.FlowDetail(draw(_names))
        flow.state = draw(st.none() | st.just(states.RUNNING))
        flow.meta.update(draw(_meta) or {})
        flow.history = draw(_histories)
        flow.add_all(draw(st.lists(atoms(), max_size=3)))
        book.add(flow)
    return book


# Representations of all fields, including types. They read the records themselves, because
# `to_dict` might omit fields.


def _value(value: Any) -> Any:
    return codec.pack(value, "picture")


def _fields(record: Any, names: Iterable[str]) -> Picture:
    return {name: _value(getattr(record, name)) for name in names}


def of_item(item: models.ItemDetail) -> Picture:
    return _fields(item, models.ItemDetail.__slots__)


def of_atom(atom: models.AtomDetail) -> Picture:
    other = ("items", "past", "incidents")
    slots = [slot for slot in models.AtomDetail.__slots__ if slot not in other]
    record = {**_fields(atom, slots), "meta": _value(dict(atom.meta)), "kind": type(atom).__name__}
    record["attempts"] = [list(attempt) for attempt in atom.all_attempts]
    record["incidents"] = [list(incident) for incident in atom.incidents]
    items = atom.items
    record["items"] = (
        None if items is None else [items.attempt, items.resumed, *map(of_item, items)]
    )
    return record


def of_flow(flow: models.FlowDetail) -> Picture:
    own = _fields(flow, ("name", "uuid", "state", "meta", "created"))
    return {**own, "history": [list(change) for change in flow.history], "atoms": of_atoms(flow)}


def of_atoms(found: Iterable[models.AtomDetail]) -> Picture:
    return {atom.uuid: of_atom(atom) for atom in found}


def of_book(book: models.LogBook) -> Picture:
    own = _fields(book, ("name", "uuid", "meta", "created_at", "updated_at"))
    return {**own, "flows": {flow.uuid: of_flow(flow) for flow in book}}


def of_store(connection: base.Connection) -> Picture:
    """Return all records, and the epoch and lease of each flow."""
    return {
        book.uuid: {
            **of_book(book),
            "epochs": {flow.uuid: flow.epoch for flow in book},
            "leases": {flow.uuid: connection.get_lease(flow.uuid) for flow in book},
        }
        for book in connection.get_logbooks()
    }


def differences(actual: Any, expected: Any, path: str = "") -> list[str]:
    """Return the first differences between two representations."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        lines = [
            f"{path}: only in one: {key!r:.60}" for key in sorted(actual.keys() ^ expected.keys())
        ]
        for key in actual.keys() & expected.keys():
            lines += differences(actual[key], expected[key], f"{path}/{key}")
        return lines[:5]
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        lines = []
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            lines += differences(*pair, f"{path}/{index}")
        return lines[:5]
    return [] if actual == expected else [f"{path}: {actual!r:.200} and not {expected!r:.200}"]
