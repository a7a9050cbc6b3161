"""Log lines of the tasks of a flow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.persistence import _sealed_fields, base, models
from wbengine.persistence._step_notes import StepNote
from wbengine.types import codec
from wbengine.views import _formatting
from wbengine.views.redaction import Redactor

__all__ = ["LogLine", "Sources", "read", "read_sources", "sources_of"]

#: Maximum number of tasks whose lines are read one by one, instead of all lines of the flow.
_MAX_QUERIES: Final = 20
#: Maximum number of the latest chunks of a flow that are searched, if the lines are limited.
_MAX_FILTERED_CHUNKS: Final = 10_000


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
        return _formatting.as_dict(self)


class Sources(NamedTuple):
    """The tasks and steps whose lines are read.

    :ivar names: names by uuid.
    :ivar selected: uuids of the selected ones; None: all.
    """

    names: Mapping[str, str]
    selected: Collection[str] | None = None


def sources_of(detail: models.FlowDetail, task: str | None = None) -> Sources:
    """Return all tasks and steps of a flow, or the selected ones.

    :param task: name or uuid of a task or a step. A workflow includes its steps, and the name of a
        step without the name of its workflow includes all steps of this name.
    :raises NotFound: if there is no such task.
    """
    names = {record.uuid: record.name for record in detail}
    if task is None:
        return Sources(names)
    selected = {uuid for uuid, name in names.items() if task in (uuid, name)}
    notes = {record.uuid: StepNote.of(record) for record in detail if record.is_step}
    if not selected:
        selected = {
            uuid
            for uuid, note in notes.items()
            if note is not None and note.short_name(names[uuid]) == task
        }
    if not selected:
        hint = object_names.hint(task, names.values())
        raise exceptions.NotFound(f"unknown task {task!r} in flow {detail.uuid}{hint}")
    selected |= {
        uuid for uuid, note in notes.items() if note is not None and note.workflow in selected
    }
    return Sources(names, selected)


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

    :param task: see `sources_of`.
    :param limit: maximum number of lines; the latest ones are returned.
    :raises NotFound: if the flow or the task does not exist.
    :raises StorageFailure: if this process cannot decrypt them.
    """
    with codec.unknown_classes_as_text():
        detail = connection.get_flow_details(uuid)
    _sealed_fields.check_opened(detail)
    sources = sources_of(detail, task)
    flow_redactor = redactor.with_secrets_of_flow(detail)
    return read_sources(connection, uuid, sources, attempt, redactor=flow_redactor, limit=limit)


def read_sources(
    connection: base.Connection,
    uuid: str,
    sources: Sources,
    attempt: int | None = None,
    item: int | None = None,
    *,
    redactor: Redactor,
    limit: int | None = None,
) -> list[LogLine]:
    """Return the lines of some tasks like `read`, but without reading the records of the flow.

    :param redactor: a redactor that masks the secrets of the flow.
    """
    selected = sources.names if sources.selected is None else sources.selected
    # The store returns the chunks of all tasks or of one.
    is_each = sources.selected is not None and len(selected) <= _MAX_QUERIES
    is_filtered = (sources.selected is not None and not is_each) or attempt is not None
    chunk_limit = _MAX_FILTERED_CHUNKS if limit is not None and is_filtered else limit
    chunks = (
        chunk
        for source in (sorted(selected) if is_each else [None])
        for chunk in connection.get_logs(uuid, source, chunk_limit)
        if chunk.atom_uuid in selected
        and attempt in (None, chunk.attempt)
        and item in (None, chunk.item)
    )
    return _lines(chunks, sources.names, redactor, limit)


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
