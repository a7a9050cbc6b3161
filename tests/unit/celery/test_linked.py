"""Signatures within signatures, and how they are carried to other processes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

from wbengine.interop.celery.protocol import codec, linked, serializers
from wbengine.interop.celery.protocol.message import TaskMessage


def call(name: str, *links: Any) -> dict[str, Any]:
    return {"task": name, "args": [name], "options": {"link": list(links), "queue": "q"}}


def chain(length: int) -> dict[str, Any]:
    """The first of so many that are linked to each other."""
    found = call(f"t{length}")
    for n in reversed(range(length)):
        found = call(f"t{n}", found)
    return found


def test_flat_and_nested_again() -> None:
    """A tree comes back as it was, and what was flattened is as it was."""
    tree = [call("a", call("b", call("c"), call("d", call("e"))), call("f")), {"task": "plain"}]
    before = copy.deepcopy(tree)
    found = linked.flat(tree)
    assert [one["task"] for one, _ in found] == ["a", "plain", "b", "f", "c", "d", "e"]
    assert linked.nested(found, 2) == before and tree == before


def test_what_is_no_list_of_signatures_stays() -> None:
    """Nobody has looked at it so far."""
    odd: list[Any] = [{"task": "t", "options": {"link": [1, "x"]}}, {"task": "u", "options": 3}]
    odd.append({"task": "v", "options": {"link": call("w")}})
    assert linked.nested(linked.flat(odd), 3) == odd


def test_a_long_chain_of_version_1_is_pickled() -> None:
    """More levels than `pickle` takes."""
    message = TaskMessage("first", "i", protocol=1, callbacks=(chain(250),), chord=chain(200))
    found = pickle.loads(pickle.dumps(message))
    assert repr(found) == repr(message)
    wire = codec.encode(found, 1, "json")
    assert codec.decode(wire, serializers.Accepted()).callbacks == message.callbacks
