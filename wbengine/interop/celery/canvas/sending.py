"""Signatures turned into the messages that call them, as Celery's own senders do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from wbengine.interop.celery.canvas import unrolling
from wbengine.interop.celery.canvas.placing import Ids, placed, told, weight
from wbengine.interop.celery.canvas.signature import CHAIN, CHORD, GROUP, Signature, deeper, listed
from wbengine.interop.celery.protocol import fields, reading, serializers, times
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import CountChord, SaveGroup, Send, Step

__all__ = ["Parent", "Sending"]

#: A longer chain cannot be said in version 1, which has one callback inside another.
_MOST_LINKED: Final = 250
#: Options of a chord that its body does not get, and those that its header does not.
_NOT_BODY: Final = frozenset(
    (
        "chord", "countdown", "eta", "group_id", "group_index", "link", "link_error", "parent_id",
        "root_id", "task_id",
    )
)  # fmt: skip
#: Options for what ends a signature.
_OF_ENDS: Final = ("group_id", "group_index", "chord")
_NOT_HEADER: Final = frozenset(
    ("chain", "chord", "group_id", "group_index", "link", "link_error", "task_id")
)


@dataclass(frozen=True, slots=True)
class Parent:
    """What those that are sent have from the call that sends them."""

    id: str | None = None
    root_id: str | None = None
    reply_to: str | None = None
    priority: int | None = None
    content_type: str = serializers.JSON
    protocol: Literal[1, 2] = 2
    origin: str | None = None


class Applied(NamedTuple):
    """The result that ends what was called, and what its caller has as a child."""

    result: Any
    child: Any


#: Calls one kind of signature: with arguments, options, and how deep it is.
_Call = Callable[
    [Signature, Sequence[Any], Mapping[str, Any], Mapping[str, Any], int], "Applied | None"
]


class Sending:
    """Collects the steps that call signatures.

    `new_id` makes ids for those that have none; `now` is the time in seconds since 1970.
    """

    def __init__(self, parent: Parent, new_id: Ids, now: float) -> None:
        self._parent = parent
        self._new_id = new_id
        self._now = now
        self.steps: list[Step] = []

    def apply(
        self,
        signature: Signature,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        depth: int = 0,
    ) -> Applied | None:
        """Call `signature` with arguments before, and options over, its own.

        None: it is empty.

        :raises Malformed: it cannot be called.
        """
        calls = {CHAIN: self._chain, GROUP: self._group, CHORD: self._chord}
        call: _Call = calls.get(signature.kind or "", self._task)
        return call(signature, args, kwargs or {}, options or {}, deeper(depth))

    def _task(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        depth: int,
    ) -> Applied:
        call = signature.merged(args, kwargs, options)
        found = call.options
        message = self._message(call)
        self.steps.append(
            Send(message, *(_name(found.get(key)) for key in ("queue", "exchange", "routing_key")))
        )
        result = ((message.id, None), None)
        return Applied(result, result)

    def _group(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        depth: int,
    ) -> Applied:
        found = dict(signature.merged((), {}, options).options)
        group = _id(found.pop("task_id", None)) or self._new_id()
        members = unrolling.flat(signature, depth)
        at = len(self.steps)
        results = self._members(members, group, args, kwargs, found, depth)
        if any(_counts(one.options, found) for one in members):
            size = sum(weight(one, depth) for one in members)
            self.steps.insert(at, CountChord(group, size))
        result: Any = ((group, None), results)
        if len(results) == 1 and results[0][1] is not None:
            [result] = results  # the one is a group itself
        return Applied(result, result)

    def _members(
        self,
        members: list[Signature],
        group: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        depth: int,
    ) -> list[Any]:
        results = []
        for at, member in enumerate(members):
            given = {"group_id": group, "group_index": at}
            applied = self.apply(member, args, kwargs, {**options, **given}, depth)
            if applied is not None:
                results.append(applied.result)
        return results

    def _chain(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        depth: int,
    ) -> Applied | None:
        found = {**signature.options, **_said(options)}
        own = {key: found.pop(key, None) for key in unrolling.OF_CHAINS}
        before = listed(found.pop("chain", None))
        tasks = [
            unrolling.fails_to(one, own["link_error"])
            for one in unrolling.unrolled(signature.tasks, depth)
        ]
        if not tasks:
            return None
        tasks[-1] = placed(
            tasks[-1],
            self._new_id,
            _id(own["task_id"]),
            {key: own[key] for key in _OF_ENDS},
        ).linked("link", own["link"])
        first, *rest = (self._kept(one) for one in tasks)
        found |= {"parent_id": own["parent_id"], "root_id": own["root_id"]}
        found["chain"] = [*before, *(one.written() for one in reversed(rest))]
        given = () if signature.immutable else (*args, *signature.args)
        applied = self.apply(first, given, kwargs, found, depth)
        if applied is None or not rest:
            return applied
        return Applied(told(rest[-1]), applied.child)

    def _chord(
        self,
        signature: Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        depth: int,
    ) -> Applied | None:
        found = {**signature.options, **_said(options)}
        body = signature.body
        if body is None:
            raise reading.malformed("chord.body", None, "a signature")
        group = (
            _id(signature.header_options.get("task_id"))
            or _id(signature.options.get("task_id"))
            or self._new_id()
        )
        body = unrolling.linked(body, found)
        body = body.having(**{key: found[key] for key in found if key not in _NOT_BODY})
        ends = {key: found.get(key) for key in _OF_ENDS}
        body = self._kept(placed(body, self._new_id, _id(found.get("task_id")), ends))
        result = told(body)
        members = unrolling.flat(signature, depth)
        if not members:
            empty = self.apply(body, ([],), {}, {}, depth)
            return None if empty is None else Applied(result, empty.child)
        given = () if signature.immutable else (*args, *signature.args)
        kwargs = {**reading.MAPPING.read(signature.kwargs.get("kwargs") or {}, "kwargs"), **kwargs}
        for_header = {
            key: value
            for key, value in {**signature.header_options, **found}.items()
            if key not in _NOT_HEADER
        }
        at = len(self.steps)
        results = self._members(
            members, group, given, kwargs, {**for_header, "chord": body.written()}, depth
        )
        size = sum(weight(member, depth) for member in members)
        self.steps.insert(at, CountChord(group, size))
        header = ((group, None), results)
        if any(one[1] is not None for one in results):
            self.steps.insert(at, SaveGroup(group, header))
        return Applied(result, header)

    def _kept(self, signature: Signature, id: str | None = None) -> Signature:
        """What is sent later, by somebody else: with its ids, and where its result goes."""
        signature = placed(signature, self._new_id, id)
        if "reply_to" not in signature.options:
            signature = signature.having(reply_to=self._parent.reply_to)
        if "root_id" not in signature.options:
            signature = signature.having(root_id=self._parent.root_id)
        return signature

    def _message(self, call: Signature) -> TaskMessage:
        """The message of one call.

        :raises Malformed: an option is not what it must be.
        """
        options, parent = call.options, self._parent
        stamped = listed(options.get("stamped_headers"))
        source = {
            **{name: options.get(name) for name in _SAME},
            "task": call.task,
            "id": options.get("task_id") or self._new_id(),
            "root_id": options.get("root_id") or parent.root_id,
            "parent_id": options.get("parent_id") or parent.id,
            "group": options.get("group_id"),
            "eta": self._time(options, "countdown", "eta"),
            "expires": self._time(options, "expires", "expires"),
            "timelimit": [options.get("time_limit"), options.get("soft_time_limit")],
            "origin": parent.origin,
            "stamped_headers": stamped or None,
            "stamps": {
                name: options[name] for name in stamped if isinstance(name, str) and name in options
            },
            "callbacks": options.get("link"),
            "errbacks": options.get("link_error"),
            "chain": options.get("chain"),
            "chord": options.get("chord"),
            "reply_to": options.get("reply_to") or parent.reply_to,
        }
        found = fields.read((*fields.HEADERS, *fields.EMBED, *fields.PROPERTIES), source)
        for name in ("eta", "expires"):
            if name in found:
                found[name] = _utc(found[name], name)
        priority = options.get("priority")
        headers = options.get("headers")
        serializer = options.get("serializer")
        return TaskMessage(
            **found,
            args=call.args,
            kwargs=dict(call.kwargs),
            priority=priority
            if type(priority) is int and 0 <= priority <= 255
            else parent.priority,
            extra=_headers(headers),
            content_type=serializers.MIME_TYPES.get(str(serializer), parent.content_type),
            protocol=2 if len(found.get("chain", ())) > _MOST_LINKED else parent.protocol,
        )

    def _time(self, options: Mapping[str, Any], seconds: str, name: str) -> Any:
        """The time that an option tells, or that is so many seconds from now."""
        value = options.get(seconds)
        if type(value) not in (int, float) or (seconds == "countdown" and not value):
            return options.get(name)
        try:
            return times.after(self._now, value)  # type: ignore[arg-type]
        except ValueError:
            raise reading.malformed(seconds, value, "seconds") from None


#: Options that have the names of the headers that they become.
_SAME: Final = (
    "shadow", "group_index", "retries", "argsrepr", "kwargsrepr", "replaced_task_nesting",
    "ignore_result", "meth", "lang",
)  # fmt: skip


def _counts(member: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Whether a member of a group is a part of a chord of just that group."""
    chord = member.get("chord") or group.get("chord")
    return chord is not None and "group_id" not in member


def _headers(headers: Any) -> dict[str, Any]:
    """The headers of an option that are not the protocol's."""
    if not isinstance(headers, Mapping):
        return {}
    return {
        name: value
        for name, value in headers.items()
        if isinstance(name, str) and name not in fields.NAMES
    }


def _said(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _id(value: Any) -> str | None:
    return None if value is None else reading.ID.read(value, "task_id")


def _name(value: Any) -> str | None:
    """The name of a queue or an exchange, which may be kombu's own object."""
    value = getattr(value, "name", value)
    return None if not value else str(reading.WORD.read(value, "queue"))


def _utc(value: Any, name: str) -> Any:
    try:
        return times.utc(value)
    except ValueError:
        raise reading.malformed(name, str(value), "a time in UTC") from None
