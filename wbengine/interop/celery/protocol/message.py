"""One task message of Celery's, whatever version of the protocol it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from wbengine import exceptions, limits
from wbengine.interop.celery.protocol import linked, serializers

__all__ = ["Malformed", "TaskMessage"]


class Malformed(exceptions.InvalidFormat):
    """A task message has a field that is missing, or not what it must be; `field` names it."""

    field: str = ""

    def __init__(
        self, message: str = "", cause: BaseException | None = None, *, field: str = ""
    ) -> None:
        super().__init__(message, cause)
        self.field = field


@dataclass(slots=True)
class TaskMessage:
    """A call of a task, as Celery's protocol tells it.

    Every field is described, with its place on the wire, in `fields.FIELDS`.
    """

    #: The name of the task, and the id of this call.
    task: str
    id: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: The language of the worker that it is for.
    lang: str = "py"
    #: A method of the task; nobody uses it yet.
    meth: str | None = None
    #: Another name for logs and monitors.
    shadow: str | None = None
    #: The first task of the work-flow, the one that sent this, and the group that this is part of.
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    #: Not before, and not after, these times; they have a zone, UTC.
    eta: datetime | None = None
    expires: datetime | None = None
    #: How often it was sent again.
    retries: int = 0
    #: (soft, hard), in seconds; on the wire the hard one is first.
    timelimit: limits.TimeLimit = limits.UNLIMITED
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    #: The node that sent it.
    origin: str | None = None
    replaced_task_nesting: int = 0
    ignore_result: bool = False
    #: Names of the stamps, and their values.
    stamped_headers: tuple[str, ...] | None = None
    stamps: Mapping[str, Any] = field(default_factory=dict)
    #: Signatures called after success, and after failure; the rest of a chain, its next one last;
    #: and what a chord's last part calls.
    callbacks: Sequence[Mapping[str, Any]] = ()
    errbacks: Sequence[Mapping[str, Any]] = ()
    chain: Sequence[Mapping[str, Any]] = ()
    chord: Mapping[str, Any] | None = None
    reply_to: str | None = None
    #: None: the same as `id`.
    correlation_id: str | None = None
    priority: int | None = None
    #: The body was raw data, which is the single argument.
    raw: bool = False
    protocol: Literal[1, 2] = 2
    #: Headers that are none of the protocol's; they travel on.
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: What it came in; what follows from it is sent in the same, as far as that is accepted.
    content_type: str = serializers.JSON

    def __reduce__(self) -> tuple[Any, ...]:
        """Flat: a pickle cannot hold what stands some hundred levels deep in each other."""
        told = {name: getattr(self, name) for name in self.__slots__}
        links = [
            (name, len(told[name]), linked.flat(told.pop(name)))
            for name in ("callbacks", "errbacks")
        ]
        if self.chord is not None:
            links.append(("chord", 1, linked.flat([told.pop("chord")])))
        return _unpickled, (told, links)


def _unpickled(told: dict[str, Any], links: list[tuple[str, int, linked.Flat]]) -> TaskMessage:
    for name, count, found in links:
        value: Any = tuple(linked.nested(found, count))
        told[name] = value[0] if name == "chord" else value
    return TaskMessage(**told)
