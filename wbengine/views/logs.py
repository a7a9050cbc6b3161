"""Log lines of the tasks of a flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wbengine import _names, exceptions
from wbengine.persistence import base, models
from wbengine.types import codec
from wbengine.views import formatting
from wbengine.views.redaction import Redactor

__all__ = ["LogLine", "of_task", "read"]


class LogLine(NamedTuple):
    """One line that a task logged. `at` is Unix time on the worker's clock.

    :ivar item: index of an item of a Map; None for other tasks.
    """

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
    """Return the lines of a flow or of one task in chronological order.

    Secrets that the records of the flow contain are masked.

    :param task: name or uuid of a task.
    :param limit: maximum number of lines; the latest ones are returned.
    :raises NotFound: if the flow or the task does not exist.
    """
    with codec.unknown_classes_as_text():
        detail = connection.get_flow_details(uuid)
    names = {atom.uuid: atom.name for atom in detail}
    wanted_uuid = None
    if task is not None:
        wanted_uuid = next(
            (atom_uuid for atom_uuid, name in names.items() if task in (atom_uuid, name)), None
        )
        if wanted_uuid is None:
            hint = _names.hint(task, names.values())
            raise exceptions.NotFound(f"unknown task {task!r} in flow {uuid}{hint}")
    chunks = (
        chunk
        for chunk in connection.get_logs(uuid, wanted_uuid, limit)
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
    """Return the lines of one task like `read`, but without reading the records of the flow.

    :param redactor: a redactor that masks the secrets of the flow.
    """
    chunks = connection.get_logs(uuid, task_uuid, limit)
    return _lines(chunks, {task_uuid: name}, redactor, limit)


def _lines(
    chunks: Iterable[models.LogChunk],
    names: Mapping[str, str],
    redactor: Redactor,
    limit: int | None,
) -> list[LogLine]:
    lines = [
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
    lines.sort(key=lambda line: line.at)
    if limit is not None:
        del lines[:-limit]
    texts = redactor.texts(line.text for line in lines)
    return [line._replace(text=text) for line, text in zip(lines, texts, strict=True)]
