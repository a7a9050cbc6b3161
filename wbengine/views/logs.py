"""What the tasks of a flow logged, as people look at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wbengine import _names, exceptions
from wbengine.persistence import base, models
from wbengine.views import formatting
from wbengine.views.redaction import Redactor

__all__ = ["LogLine", "of_task", "read"]


class LogLine(NamedTuple):
    """What a task logged once: under which attempt at it, as which item of a Map (None: it is no
    Map), when (unix seconds, on the clock of its worker), at which level, by which logger."""

    task: str
    uuid: str
    attempt: int
    item: int | None
    at: float
    level: str
    logger: str
    text: str

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self)


def read(
    connection: base.Connection,
    uuid: str,
    task: str | None = None,
    attempt: int | None = None,
    *,
    redactor: Redactor,
    limit: int | None = None,
) -> list[LogLine]:
    """The lines of a flow, or of one of its tasks (a name or a uuid), in the order of their times:
    all of them, or the latest `limit`.

    Secrets of the flow's records are masked.

    :raises NotFound: the flow is not kept, or has no such task.
    """
    detail = connection.get_flow_details(uuid)
    names = {atom.uuid: atom.name for atom in detail}
    wanted = None
    if task is not None:
        wanted = next((one for one, name in names.items() if task in (one, name)), None)
        if wanted is None:
            near = _names.hint(task, names.values())
            raise exceptions.NotFound(f"there is no task {task!r} in flow {uuid}{near}")
    chunks = (
        chunk
        for chunk in connection.get_logs(uuid, wanted, limit)
        if chunk.atom_uuid in names and attempt in (None, chunk.attempt)
    )
    return _lines(chunks, names, redactor.with_secrets_of_flow(detail), limit)


def of_task(
    connection: base.Connection,
    uuid: str,
    task_uuid: str,
    name: str,
    *,
    redactor: Redactor,
    limit: int | None = None,
) -> list[LogLine]:
    """As `read`, of a task that is known; `redactor` knows the secrets of its flow.

    Costs nothing for the other tasks of the flow.
    """
    chunks = connection.get_logs(uuid, task_uuid, limit)
    return _lines(chunks, {task_uuid: name}, redactor, limit)


def _lines(
    chunks: Iterable[models.LogChunk],
    names: Mapping[str, str],
    redactor: Redactor,
    limit: int | None,
) -> list[LogLine]:
    found = [
        LogLine(
            names[chunk.atom_uuid],
            chunk.atom_uuid,
            chunk.attempt,
            None if chunk.item < 0 else chunk.item,
            *line,
        )
        for chunk in chunks
        for line in chunk.lines
    ]
    found.sort(key=lambda line: line.at)
    if limit is not None:
        del found[:-limit]
    texts = redactor.texts(line.text for line in found)
    return [line._replace(text=text) for line, text in zip(found, texts, strict=True)]
