"""Signatures: calls that are written down, to be sent later, and what is built of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wbengine.interop.celery.protocol import reading
from wbengine.interop.celery.protocol.message import Malformed

__all__ = ["CHAIN", "CHORD", "GROUP", "MOST_NESTED", "Signature"]

CHAIN: Final = "chain"
GROUP: Final = "group"
CHORD: Final = "chord"

#: Groups, chains and chords may stand in each other so deep.
MOST_NESTED: Final = 50

#: An option that a later caller does not change, where it is set: parts are counted by it.
_KEPT: Final = "group_id"
_STAMPS: Final = "stamped_headers"


@dataclass(frozen=True, slots=True)
class Signature:
    """A call of `task`, or of what `subtask_type` says is built of others.

    `options` are those of Celery's `apply_async`: `task_id`, `queue`, `countdown`, `link`, and so
    on.  An `immutable` one takes no further arguments.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    subtask_type: str | None = None
    immutable: bool = False

    @classmethod
    def read(cls, data: Any, where: str = "signature") -> Signature:
        """The signature in a mapping; what stands in its arguments is read when it is asked for.

        :raises Malformed: it is none; `where` says where it stands.
        """
        found = reading.SIGNATURE.read(data, where)
        kind = found.get("subtask_type")
        return cls(
            found["task"],
            reading.LIST.read(found.get("args") or (), f"{where}.args"),
            reading.MAPPING.read(found.get("kwargs") or {}, f"{where}.kwargs"),
            reading.MAPPING.read(found.get("options") or {}, f"{where}.options"),
            kind if isinstance(kind, str) and kind else None,
            bool(found.get("immutable")),
        )

    @classmethod
    def chain(cls, tasks: Sequence[Signature], **options: Any) -> Signature:
        """One after the other, each with the result of the one before it."""
        return cls._of(CHAIN, {"tasks": [one.written() for one in tasks]}, options)

    @classmethod
    def group(cls, tasks: Sequence[Signature], **options: Any) -> Signature:
        """All at once."""
        return cls._of(GROUP, {"tasks": [one.written() for one in tasks]}, options)

    @classmethod
    def chord(
        cls, header: Signature | Sequence[Signature], body: Signature, **options: Any
    ) -> Signature:
        """All of the header, a group or several, at once; then the body, with the list of their
        results."""
        parts: Any = (
            header.written() if isinstance(header, Signature) else [one.written() for one in header]
        )
        return cls._of(CHORD, {"header": parts, "body": body.written(), "kwargs": {}}, options)

    @classmethod
    def _of(cls, kind: str, kwargs: dict[str, Any], options: dict[str, Any]) -> Signature:
        return cls(f"celery.{kind}", (), kwargs, options, kind)

    def written(self) -> dict[str, Any]:
        """The mapping that travels."""
        return {
            "task": self.task,
            "args": self.args,
            "kwargs": dict(self.kwargs),
            "options": dict(self.options),
            "subtask_type": self.subtask_type,
            "immutable": self.immutable,
        }

    @property
    def kind(self) -> str | None:
        """`CHAIN`, `GROUP` or `CHORD`; None: it is one call."""
        return self.subtask_type if self.subtask_type in (CHAIN, GROUP, CHORD) else None

    @property
    def tasks(self) -> list[Signature]:
        """What a chain or a group is built of; of a chord, its header.

        :raises Malformed: one of them is no signature.
        """
        key = "header" if self.kind == CHORD else "tasks"
        found = self.kwargs.get(key)
        if isinstance(found, Mapping):
            one = Signature.read(found, f"{self.task}.{key}")
            return one.tasks if one.kind in (GROUP, CHAIN) else [one]
        if not isinstance(found, list | tuple):
            raise reading.malformed(f"{self.task}.{key}", found, "a list of signatures")
        return [Signature.read(one, f"{self.task}.{key}[{at}]") for at, one in enumerate(found)]

    @property
    def header_options(self) -> Mapping[str, Any]:
        """The options of a chord's header, where that is a group."""
        header = self.kwargs.get("header")
        return Signature.read(header, "header").options if isinstance(header, Mapping) else {}

    @property
    def body(self) -> Signature | None:
        """What a chord ends with.

        :raises Malformed: it is no signature.
        """
        found = self.kwargs.get("body")
        return None if found is None else Signature.read(found, f"{self.task}.body")

    def merged(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Signature:
        """The call with more arguments before its own, unless it is immutable, and more options.

        Those that are None say nothing; the group that it is in, and its stamps, stay.
        """
        own = self.options
        kept = {_KEPT, _STAMPS}
        if isinstance(stamps := own.get(_STAMPS), list | tuple):
            kept.update(name for name in stamps if isinstance(name, str))
        given = {
            key: value
            for key, value in options.items()
            if value is not None and not (key in kept and key in own)
        }
        return replace(
            self,
            args=self.args if self.immutable else (*args, *self.args),
            kwargs=self.kwargs if self.immutable else {**self.kwargs, **kwargs},
            options={**own, **given},
        )

    def having(self, **options: Any) -> Signature:
        """The same with these options; those that are None are left as they were."""
        given = {key: value for key, value in options.items() if value is not None}
        return replace(self, options={**self.options, **given}) if given else self

    def linked(self, name: str, more: Any) -> Signature:
        """The same with more signatures in the option `name`, `link` or `link_error`.

        Those that stand there already are not added again.
        """
        found = listed(self.options.get(name))
        found += [one for one in listed(more) if one not in found]
        return self.having(**{name: found}) if found else self

    def built_of(self, tasks: Sequence[Signature]) -> Signature:
        """The same chain or group of other tasks."""
        return replace(self, kwargs={**self.kwargs, "tasks": [one.written() for one in tasks]})

    def ending_with(self, body: Signature) -> Signature:
        """The same chord with another body."""
        return replace(self, kwargs={**self.kwargs, "body": body.written()})


def listed(value: Any) -> list[Any]:
    """One signature, several, or none, as a list."""
    if not value:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def deeper(depth: int) -> int:
    """The next level.

    :raises Malformed: there are too many.
    """
    if depth >= MOST_NESTED:
        raise Malformed(f"signatures stand more than {MOST_NESTED} deep in each other")
    return depth + 1
