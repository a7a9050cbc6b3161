"""What follows from the end of a task: links, the rest of its chain, the chord it is a part of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wbengine.interop.celery.canvas.placing import ends
from wbengine.interop.celery.canvas.sending import Parent, Sending
from wbengine.interop.celery.canvas.signature import CHAIN, CHORD, GROUP, Signature, deeper, listed
from wbengine.interop.celery.protocol import reading
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import (
    CountChord,
    Following,
    Missed,
    SaveGroup,
    Send,
    Step,
)

__all__ = [
    "CountChord", "Following", "Missed", "SaveGroup", "Send", "Step", "body_of", "chord_broken",
    "errbacks_of", "never_run", "next_of",
]  # fmt: skip


def next_of(
    message: TaskMessage,
    result: Any,
    *,
    new_id: Callable[[], str],
    now: float,
    origin: str | None = None,
    inherit_priority: bool = False,
) -> Following:
    """What is sent after `message` succeeded with `result`.

    Its callbacks are called with the result, and so is the next of its chain, which is the last of
    the list and gets those before it.  `new_id` makes ids for what has none; `now` is in seconds
    since 1970; `origin` is the name of the node that sends.  Unless `inherit_priority`, which is
    how Celery's `task_inherit_parent_priority` is by default, priorities are not handed on.

    :raises Malformed: a signature cannot be called; then nothing is to be sent.
    """
    sending = Sending(_parent(message, origin, inherit_priority), new_id, now)
    found = Following(sending.steps)
    callbacks = _once(message.callbacks)
    several = len(callbacks) > 1
    single: list[Signature] = []
    for one in callbacks:
        if several and one.kind != GROUP:
            single.append(one)
        else:
            _call(found, sending, one, (result,))
    if single:
        _call(found, sending, Signature.group(single), (result,))
    if message.chain:
        *before, last = message.chain
        _call(found, sending, Signature.read(last, "chain"), (result,), {"chain": before})
    return found


def errbacks_of(
    message: TaskMessage,
    *,
    new_id: Callable[[], str],
    now: float,
    origin: str | None = None,
) -> Following:
    """What is sent after `message` failed: its errbacks, each called with its id.

    :raises Malformed: a signature cannot be called; then nothing is to be sent.
    """
    return _errbacks(message.errbacks, message.id, _parent(message, origin), new_id, now)


def body_of(
    chord: Mapping[str, Any],
    results: Sequence[Any],
    message: TaskMessage,
    *,
    new_id: Callable[[], str],
    now: float,
    origin: str | None = None,
) -> Following:
    """What is sent once all parts of a chord have ended, `message` as the last: its body.

    `chord` is the `chord` of the message, and `results` are those of the parts in their order.

    :raises Malformed: the body cannot be called; then nothing is to be sent.
    """
    sending = Sending(_parent(message, origin), new_id, now)
    found = Following(sending.steps)
    _call(found, sending, Signature.read(chord, "chord"), (list(results),))
    return found


def chord_broken(
    chord: Mapping[str, Any],
    message: TaskMessage,
    *,
    new_id: Callable[[], str],
    now: float,
    origin: str | None = None,
) -> tuple[Following, list[Missed]]:
    """What becomes of a chord's body if a part has failed: it is never called.

    Its errbacks are, each with the body's id; and whoever waits for it, or for what comes after
    it, is told of the failure by what is in the list.

    :raises Malformed: the body is no signature, or an errback cannot be called.
    """
    body = Signature.read(chord, "chord")
    missed = _missed([body], message.protocol == 1)
    parent = _parent(message, origin)
    found = Following()
    for id, errbacks in _errbacks_in(body):
        own = _errbacks(errbacks, id or message.id, parent, new_id, now)
        found.steps += own.steps
        found.children += own.children
    return found, missed


def never_run(message: TaskMessage) -> list[Missed]:
    """The calls that come no more since `message` failed: those of the rest of its chain.

    The next one is the first.  Those without an id, which nobody can wait for, are left out.  In
    version 1 the rest of a chain is among the callbacks.

    :raises Malformed: the chain holds what is no signature.
    """
    rest = [Signature.read(one, "chain") for one in reversed(message.chain)]
    linked = message.protocol == 1
    return _missed(rest + _once(message.callbacks) if linked else rest, linked)


def _once(callbacks: Sequence[Mapping[str, Any]]) -> list[Signature]:
    """The callbacks, each result once: Celery's client of version 1 links some twice, and the
    second time says more."""
    found: dict[Any, Signature] = {}
    for at, callback in enumerate(callbacks):
        one = Signature.read(callback, "callbacks")
        found[ends(one) or at] = one
    return list(found.values())


def _parent(message: TaskMessage, origin: str | None, inherit_priority: bool = False) -> Parent:
    return Parent(
        id=message.id,
        root_id=message.root_id or message.id,
        reply_to=message.reply_to,
        priority=message.priority if inherit_priority else None,
        content_type=message.content_type,
        protocol=message.protocol,
        origin=origin,
    )


def _call(
    found: Following,
    sending: Sending,
    signature: Signature,
    args: Sequence[Any],
    options: Mapping[str, Any] | None = None,
) -> None:
    applied = sending.apply(signature, args, {}, options)
    if applied is not None:
        found.children.append(applied.child)


def _errbacks(
    errbacks: Sequence[Mapping[str, Any]],
    id: str,
    parent: Parent,
    new_id: Callable[[], str],
    now: float,
) -> Following:
    sending = Sending(parent, new_id, now)
    found = Following(sending.steps)
    if errbacks:
        group = Signature.group([Signature.read(one, "errbacks") for one in errbacks])
        _call(found, sending, group, (id,))
    return found


def _missed(waiting: Sequence[Signature], linked: bool = False) -> list[Missed]:
    """What calls end them, and what comes after those, also as callbacks if they are `linked`."""
    left = deque((one, 0) for one in waiting)
    found: dict[str, Missed] = {}
    while left:
        one, depth = left.popleft()
        inside = []
        if one.kind in (CHAIN, GROUP):
            inside = one.tasks
        elif one.kind == CHORD and (body := one.body) is not None:
            inside = [body]
        elif (missed := _one_missed(one)) is not None:
            found.setdefault(missed.id, missed)
        # What comes after it in the chain that it is in.
        after = [Signature.read(each, "chain") for each in listed(one.options.get("chain"))]
        if linked:
            after += reversed(_once(listed(one.options.get("link"))))
        if inside or after:
            depth = deeper(depth) if inside else depth
            left.extendleft((each, depth) for each in after)
            left.extendleft((each, depth) for each in reversed(inside))
    return list(found.values())


def _one_missed(call: Signature) -> Missed | None:
    options = call.options
    id = options.get("task_id")
    if id is None:
        return None
    chord = options.get("chord")
    group = options.get("group_id")
    index = options.get("group_index")
    return Missed(
        reading.ID.read(id, "task_id"),
        None if group is None else reading.ID.read(group, "group_id"),
        None if index is None else reading.COUNT.read(index, "group_index"),
        None if chord is None else reading.SIGNATURE.read(chord, "chord"),
    )


def _errbacks_in(body: Signature) -> list[tuple[str | None, list[Mapping[str, Any]]]]:
    """The errbacks of what a chord ends with, and the id each are called with.

    A group has those of its members, each called with the member's id, and with it its own.
    """
    found: list[tuple[str | None, list[Mapping[str, Any]]]] = []
    waiting: deque[tuple[Signature, list[Any], int]] = deque([(body, [], 0)])
    while waiting:
        one, more, depth = waiting.popleft()
        own = listed(one.options.get("link_error"))
        own += [each for each in more if each not in own]
        if one.kind == GROUP:
            depth = deeper(depth)
            waiting.extendleft((each, own, depth) for each in reversed(one.tasks))
        elif one.kind == CHORD and (inner := one.body) is not None:
            waiting.appendleft((inner, own, deeper(depth)))
        elif own:
            found.append((_ending_id(one), reading.SIGNATURES.read(own, "link_error")))
    return found


def _ending_id(signature: Signature) -> str | None:
    """The id of the result of a signature, if it has one."""
    depth = 0
    while signature.kind == CHAIN and (tasks := signature.tasks):
        depth = deeper(depth)
        signature = tasks[-1]
    id = signature.options.get("task_id")
    return None if id is None else reading.ID.read(id, "task_id")
