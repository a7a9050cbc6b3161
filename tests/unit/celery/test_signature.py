"""Signatures: read, written, merged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wbengine.interop.celery.canvas import placing, unrolling
from wbengine.interop.celery.canvas.signature import CHAIN, CHORD, GROUP, Signature, deeper, listed
from wbengine.interop.celery.protocol.message import Malformed

A, B, C = (Signature(name, (name,)) for name in "abc")


def counter() -> Any:
    ids = iter(f"new-{n}" for n in range(1000))
    return lambda: next(ids)


def test_reads_what_it_writes() -> None:
    one = Signature("a", (1,), {"k": 2}, {"queue": "q"}, None, True)
    assert Signature.read(json.loads(json.dumps(one.written()))) == one
    assert Signature.read({"task": "a"}) == Signature("a")
    bare = {"task": "a", "args": None, "kwargs": None, "options": None, "subtask_type": ""}
    assert Signature.read(bare) == Signature("a")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "signature must be"), ({}, "signature.task"), ({"task": 7}, "signature.task"),
        ({"task": "a", "args": 7}, "signature.args"), ({"task": "a", "kwargs": 7}, "kwargs"),
        ({"task": "a", "kwargs": {1: 2}}, "kwargs"), ({"task": "a", "options": "x"}, "options"),
    ],
)  # fmt: skip
def test_what_is_no_signature_is_named(data: Any, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        Signature.read(data)


def test_what_is_built_of_others() -> None:
    chain, group = Signature.chain([A, B]), Signature.group([A, B], queue="q")
    assert (chain.kind, group.kind, A.kind) == (CHAIN, GROUP, None)
    assert chain.tasks == group.tasks == [A, B]
    chord = Signature.chord([A, B], C)
    assert (chord.kind, chord.tasks, chord.body) == (CHORD, [A, B], C)
    other = Signature.chord(group, C)
    assert (other.tasks, other.header_options, chord.header_options) == ([A, B], {"queue": "q"}, {})
    assert Signature.chord(A, C).tasks == [A]
    assert Signature("a", subtask_type="of-somebody").kind is None
    for wrong in (7, None, [7], [{}]):
        with pytest.raises(Malformed):
            Signature("x", kwargs={"tasks": wrong}, subtask_type=CHAIN).tasks  # noqa: B018


def test_more_arguments_come_before_its_own() -> None:
    call = Signature("a", (3,), {"k": 1}, {"queue": "q", "priority": 2})
    found = call.merged((1, 2), {"k": 2, "l": 3}, {"queue": "r", "priority": None, "expires": 5})
    assert found.args == (1, 2, 3)
    assert found.kwargs == {"k": 2, "l": 3}
    assert found.options == {"queue": "r", "priority": 2, "expires": 5}


def test_an_immutable_one_takes_options_only() -> None:
    call = Signature("a", (3,), {"k": 1}, immutable=True)
    found = call.merged((1,), {"k": 2}, {"queue": "r"})
    assert (found.args, found.kwargs, found.options) == ((3,), {"k": 1}, {"queue": "r"})


def test_the_group_it_is_in_and_its_stamps_stay() -> None:
    own = {"group_id": "g", "stamped_headers": ["mine"], "mine": 1}
    found = Signature("a", options=own).merged((), {}, {"group_id": "h", "mine": 2, "other": 3})
    assert found.options == {**own, "other": 3}


def test_links_are_added_once() -> None:
    b, c = B.written(), C.written()
    assert A.linked("link", b).linked("link", [b, c]).options["link"] == [b, c]
    assert A.having(link=b).linked("link", c).options["link"] == [b, c]
    assert A.linked("link", None) == A
    assert (listed(None), listed({"a": 1}), listed((1, 2))) == ([], [{"a": 1}], [1, 2])


def test_depth_is_bounded() -> None:
    assert deeper(0) == 1
    with pytest.raises(Malformed, match="50 deep"):
        deeper(50)


# Where it ends. ----------------------------------------------------------------------------------


def test_a_chain_ends_with_its_last_and_a_chord_with_its_body() -> None:
    whole = Signature.chain([A, Signature.chord([B], Signature.chain([C, A]))])
    found = placing.placed(whole, counter(), "the-id", {"chord": {"task": "x"}, "group_id": "g"})
    last = found.tasks[1].body
    assert last is not None
    assert last.tasks[1].options == {"task_id": "the-id", "chord": {"task": "x"}, "group_id": "g"}
    assert [found.tasks[0], found.tasks[1].tasks[0], last.tasks[0]] == [A, B, C]
    assert placing.told(found) == (("the-id", None), None)
    assert placing.weight(found) == 1


def test_a_group_ends_with_all_of_its_members() -> None:
    named = B.having(task_id="b", group_id="kept")
    found = placing.placed(Signature.group([A, named]), counter(), None, {"group_id": "g"})
    assert [one.options for one in found.tasks] == [
        {"group_id": "g", "group_index": 0, "task_id": "new-0"},
        {"group_id": "kept", "group_index": 1, "task_id": "b"},
    ]
    assert placing.told(found) == (
        ("new-1", None),
        [(("new-0", None), None), (("b", None), None)],
    )


@pytest.mark.parametrize(
    ("signature", "parts"),
    [
        (A, 1),
        (Signature.group([A, B, Signature.group([A, B])]), 4),
        (Signature.chain([Signature.group([A, B]), C]), 1),
        (Signature.chain([A, Signature.group([A, B])]), 2),
        (Signature.chain([A, Signature.group([])]), 1),
        (Signature.chain([]), 0),
        (Signature.chord([A, B], C), 1),
        (Signature.chord([A], Signature.group([A, B])), 2),
    ],
)
def test_how_many_parts_of_a_chord_it_is(signature: Signature, parts: int) -> None:
    assert placing.weight(signature) == parts


# Put in place. -----------------------------------------------------------------------------------


def test_groups_in_groups_are_one() -> None:
    group = Signature.group([A, Signature.group([B, C]), Signature.chain([]), A])
    assert unrolling.flat(group, 0) == [A, B, C, A]
    assert unrolling.flat(Signature.chord(group, A), 0) == [A, C, B, A]  # as Celery has them


def test_chains_in_chains_are_one_and_a_group_before_something_is_a_chord() -> None:
    group = Signature.group([A, B])
    found = unrolling.unrolled(
        [Signature.chain([A, Signature.chain([B])]), group, C, Signature.group([B])], 0
    )
    assert [one.kind for one in found] == [None, None, CHORD, None]
    assert (found[2].tasks, found[2].body, found[3]) == ([A, B], C, B)
    assert unrolling.unrolled([Signature.group([]), A], 0) == [A]
    assert unrolling.unrolled([Signature.group([])], 0) == [Signature.group([])]
    assert unrolling.unrolled([Signature.chain([])], 0) == []
    last = unrolling.unrolled([A, group], 0)
    assert [one.kind for one in last] == [None, GROUP]
    two = unrolling.unrolled([group, group], 0)
    assert [one.kind for one in two] == [CHORD] and two[0].body == group


def test_a_chord_that_ends_with_a_chain_is_followed_by_its_rest() -> None:
    err = {"task": "e"}
    body = Signature.chain([A, B], link_error=err, link={"task": "l"}, queue="q")
    found = unrolling.unrolled([Signature.chord([C], body)], 0)
    assert [one.kind for one in found] == [CHORD, None]
    assert found[0].body == A.having(link_error=[err], queue="q")
    assert found[1] == B.having(link_error=[err], link=[{"task": "l"}])
    led = Signature.chord([C], Signature.chain([Signature.group([A, B]), C]))
    assert unrolling.unrolled([led], 0) == [led]


def test_ten_thousand_are_no_more_than_one_after_the_other() -> None:
    many = Signature.chain([A] * 10_000)
    assert len(unrolling.unrolled([many, many], 0)) == 20_000
    assert len(unrolling.flat(Signature.group([Signature.group([A] * 10_000)]), 0)) == 10_000
    assert placing.weight(Signature.group([A] * 10_000)) == 10_000
