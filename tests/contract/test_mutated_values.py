"""Changed encodings of values are decoded to values, or raise `InvalidFormat`, and do no harm."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import ipaddress
import json
import pathlib
import random
import sys
import tracemalloc
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import value_classes as vc
from tests.support.values import Access, Color, Frozen, Point, Span
from wbengine import exceptions
from wbengine.types import codec

ORDER = vc.Order(
    id=uuid.UUID(int=7),
    total=decimal.Decimal("1.10"),
    due=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    items=[vc.Item(sku="a"), vc.Item(sku="b", count=3)],
    by_name={"c": vc.Item(sku="c")},
    tags=frozenset("xy"),
)
VALUES: tuple[Any, ...] = (
    [ORDER, {vc.Point(x=1): vc.Box[int](content=2)}],
    vc.Open.model_validate({"a": {1: (2, {3})}, "b": vc.Items([vc.Item(sku="z")])}),
    vc.Counter(start=2).count(),
    vc.Node(value=vc.Owner(pet=vc.Cat()), next=vc.Node(value=vc.Price(decimal.Decimal(3)))),
    [vc.Site(url="http://a.example"), vc.Part("p", 1.5), vc.Key("k")],  # type: ignore[arg-type]
    (vc.Frame(1, (Point(1, 2), Frozen((Span(1, Color.RED),)))), Access.READ | Access.WRITE),
    [pathlib.PurePosixPath("/a"), ipaddress.ip_address("::1"), b"ab", float("inf"), 1j],
)
#: Texts that a mutation inserts: names of classes and tags, and values that need much work.
TEXTS = (
    *(form for form in ("data", "enum", "text", "tuple", "set", "dict", "decimal", "float", "str")),
    *(f"{cls.__module__}.{cls.__qualname__}" for cls in (vc.Order, vc.Item, vc.Point, vc.Items)),
    f"{vc.__name__}.Box[int]",
    *("os.system", "antigravity.Model", "builtins.eval", "pydantic.main.BaseModel"),
    *("1E+999999999", "9" * 4000, "-1E-99999999", "::ffff:1.2.3.4", "http://[", "\u0000"),
)
DECIMAL = {"$wbe": "decimal", "v": "1E+999999999"}
LEAVES: tuple[Any, ...] = (None, True, -1, 0, 10**300, 1.5, "", [], {}, DECIMAL)
KEYS = ("v", "c", "extra", "unset", "private", "x")
HARMFUL = ("import", "exec", "compile", "os.system", "subprocess.Popen", "socket.connect")
MAX_MEMORY = 4_000_000

_events: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is not None and event in HARMFUL:
        _events.append(event)


@pytest.fixture
def harmful_events() -> Iterator[list[str]]:
    """Return the list to which events of this process are added during the test."""
    global _events
    sys.addaudithook(_audit)  # A hook cannot be removed.
    events: list[str] = []
    _events = events
    yield events
    _events = None


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of each node of a tree."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            for key in node if isinstance(node, dict) else range(len(node)):
                found.append((node, key))
                waiting.append(node[key])
    return found


def mutate(tree: Any, chance: random.Random) -> Any:
    root = [copy.deepcopy(tree)]
    for _ in range(chance.randint(1, 3)):
        everywhere = places(root)
        node, key = chance.choice(everywhere)
        match chance.randrange(7):
            case 0:
                node[key] = chance.choice(TEXTS)
            case 1:
                node[key] = copy.deepcopy(chance.choice(LEAVES))
            case 2:  # another part of the tree
                other, its_key = chance.choice(everywhere)
                node[key] = copy.deepcopy(other[its_key])
            case 3:
                if node is not root:
                    del node[key]
            case 4:
                if isinstance(node, dict):
                    node[chance.choice(["v", "c", "extra", "unset", "private", "x"])] = node.pop(
                        key
                    )
            case 5:
                if isinstance(node, list):
                    node.insert(key, copy.deepcopy(node[key]))
            case 6:
                node[key] = {
                    "$wbe": chance.choice(TEXTS),
                    "v": node[key],
                    "c": chance.choice(TEXTS),
                }
    return root[0]


def check(count: int, seed: int, events: list[str]) -> int:
    """Decode this number of mutations; return how many of them are values."""
    chance = random.Random(seed)
    trees = [json.loads(codec.dumps(value)) for value in VALUES]
    for tree in trees:  # Validators and codecs are imported and created at the first use.
        codec.loads(json.dumps(tree))
    with pytest.raises(exceptions.InvalidFormat):  # Annotations are read for the first such class.
        codec.loads('{"$wbe":"data","c":"nowhere.Unknown","v":{}}')
    modules, decoded = set(sys.modules), 0
    events.clear()
    for _ in range(count):
        text = json.dumps(mutate(chance.choice(trees), chance))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            value = codec.loads(text)
        except exceptions.InvalidFormat:
            value = None
        assert tracemalloc.get_traced_memory()[1] - before < MAX_MEMORY, text
        if value is not None:
            decoded += 1
            try:
                codec.dumps(value)
            except exceptions.NotEncodable:
                continue
    assert set(sys.modules) == modules and events == []
    return decoded


@pytest.fixture(autouse=True)
def _tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.slow
def test_mutated_values_do_no_harm(harmful_events: list[str]) -> None:
    seed = random.randrange(2**32)
    decoded = check(400, seed, harmful_events)
    assert 10 < decoded < 390, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_mutated_values_do_no_harm(harmful_events: list[str], seed: int) -> None:
    check(2_500, seed, harmful_events)


def test_harmful_events_are_noticed(harmful_events: list[str]) -> None:
    eval("1")
    assert "exec" in harmful_events
