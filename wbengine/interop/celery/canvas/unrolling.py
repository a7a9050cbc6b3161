"""What chains, groups and chords come to once what they are built of is put in its place."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wbengine.interop.celery.canvas.placing import ends
from wbengine.interop.celery.canvas.signature import CHAIN, CHORD, GROUP, Signature, deeper, listed

__all__ = ["OF_CHAINS", "fails_to", "flat", "linked", "unrolled"]

#: Options of a chain that are for its last task, or for the chain itself; others its first has.
OF_CHAINS: Final = (
    "chord", "group_id", "group_index", "link", "link_error", "parent_id", "root_id", "task_id",
)  # fmt: skip


def flat(signature: Signature, depth: int) -> list[Signature]:
    """The members of a group, or of a chord's header, and those of the groups among them.

    In a header those of a group come in reverse, as Celery has them: other parts of the same chord
    may be sent by its workers, and results have places.
    """
    waiting = deque((one, depth) for one in signature.tasks)
    found = []
    while waiting:
        one, level = waiting.popleft()
        if one.kind == GROUP:
            level = deeper(level)
            inside = one.tasks if signature.kind == CHORD else reversed(one.tasks)
            waiting.extendleft((each, level) for each in inside)
        elif not (one.kind == CHAIN and not one.tasks):
            found.append(one)
    return found


def unrolled(tasks: Sequence[Signature], depth: int) -> list[Signature]:
    """The tasks of a chain, those of chains among them in their place.

    A group of one is that one, an empty one nothing, unless there is nothing else; a group with
    something after it is a chord with that as its body.
    """
    waiting = deque((one, depth) for one in tasks)
    found: list[Signature] = []
    empty: Signature | None = None
    while waiting:
        one, level = waiting.popleft()
        inside: list[Signature] | None = None
        if one.kind == CHAIN or (one.kind == GROUP and len(one.tasks) == 1):
            inside = one.tasks
        elif one.kind == CHORD:
            inside = _unrolled_chord(one)
        if inside is not None:
            level = deeper(level)
            waiting.extendleft((each, level) for each in reversed(inside))
        elif one.kind == GROUP and not one.tasks:
            empty = one
        else:
            found.append(one)
    if not found:
        return [] if empty is None else [empty]
    return _unlinked(_upgraded(found))


def _unlinked(tasks: list[Signature]) -> list[Signature]:
    """The tasks of a chain without links to the one that follows anyway.

    A sender of version 1 has given them ids, and linked each to the next, as well.
    """
    pairs = itertools.pairwise(tasks)
    return [*(_not_to(one, ends(after)) for one, after in pairs), *tasks[-1:]]


def _not_to(signature: Signature, ids: tuple[str, ...], depth: int = 0) -> Signature:
    """`signature` without links to what ends with `ids`; a chord has them in its body."""
    if not ids:
        return signature
    if signature.kind == CHORD and (body := signature.body) is not None:
        signature = signature.ending_with(_not_to(body, ids, deeper(depth)))
    elif signature.kind == GROUP and (tasks := signature.tasks):
        first = _not_to(tasks[0], ids, deeper(depth))
        signature = signature.built_of([first, *tasks[1:]])
    links = listed(signature.options.get("link"))
    others = [link for link in links if ends(Signature.read(link, "link")) != ids]
    return signature.having(link=others) if len(others) < len(links) else signature


def _unrolled_chord(chord: Signature) -> list[Signature] | None:
    """A chord whose body is a chain: one that ends with the chain's first, and then the others.

    Every part of a chord carries its body, and so would carry the whole chain.
    """
    body = chord.body
    tasks = body.tasks if body is not None and body.kind == CHAIN else []
    if body is None or not tasks or tasks[0].kind == GROUP:
        return None
    tasks = [fails_to(one, body.options.get("link_error")) for one in tasks]
    tasks[-1] = tasks[-1].linked("link", body.options.get("link"))
    first = tasks[0].having(
        **{key: value for key, value in body.options.items() if key not in OF_CHAINS}
    )
    return [chord.ending_with(first), *tasks[1:]]


def _upgraded(tasks: list[Signature]) -> list[Signature]:
    found: list[Signature] = []
    for one in reversed(tasks):
        if one.kind == GROUP and found:
            one = Signature.chord(one, found.pop())
        found.append(one)
    found.reverse()
    return found


def fails_to(signature: Signature, errbacks: Any) -> Signature:
    """`signature` with more errbacks, which a chord's body has too: its parts may fail."""
    if not errbacks:
        return signature
    if signature.kind == CHORD and (body := signature.body) is not None:
        signature = signature.ending_with(body.linked("link_error", errbacks))
    return signature.linked("link_error", errbacks)


def linked(body: Signature, options: Mapping[str, Any]) -> Signature:
    """A chord's body with the callbacks and errbacks of the chord."""
    for name in ("link", "link_error"):
        more = options.get(name)
        if more and body.kind == GROUP:
            body = body.built_of([one.linked(name, more) for one in body.tasks])
        elif more:
            body = body.linked(name, more)
    return body
