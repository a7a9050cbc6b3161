"""The folder of one flow, to be read.  Reading makes nothing, and hinders nobody for long."""

from __future__ import annotations

import logging
import os
import re
from typing import Final, NamedTuple

from wbengine import exceptions
from wbengine.persistence import models
from wbengine.persistence.backends.directory import contents, files, head, lines

__all__ = ["FlowFolder", "Picture"]

LOG = logging.getLogger(__name__)

#: So often without keeping writers out; they seldom come so often.
_TRIES: Final = 4
#: Seconds to wait for a writer, which may be frozen.
_PATIENCE: Final = 2.0
_GENERATIONS: Final = re.compile(r"(records|journal)\.(\d+)").fullmatch


class Picture(NamedTuple):
    """What was found in the files of a flow."""

    head: head.Head
    #: The highest epoch anything tells of.
    epoch: int
    found: list[lines.Line]
    #: The first line of the records.
    first: lines.Line
    #: Sizes in bytes: of the records, of what counts of the journal, and of what follows there.
    folded: int
    length: int
    unfinished: int


class FlowFolder:
    """Where a flow is kept.  Holds nothing open; any thread may use it.

    What is unfinished at the end of a journal is logged, once for all who share `reported`.
    """

    __slots__ = ("key", "path", "reported", "uuid")

    def __init__(self, root: str, uuid: str, reported: set[tuple[str, int]]) -> None:
        self.uuid = uuid
        self.key = lines.key_of(uuid)
        self.path = os.path.join(root, "flows", self.key.decode())
        self.reported = reported

    @property
    def head_path(self) -> str:
        return os.path.join(self.path, "head")

    @property
    def outline_path(self) -> str:
        return os.path.join(self.path, "outline")

    def records(self, generation: int) -> str:
        return os.path.join(self.path, f"records.{generation}")

    def journal(self, generation: int) -> str:
        return os.path.join(self.path, f"journal.{generation}")

    def is_there(self) -> bool:
        return os.path.isdir(self.path)

    def not_found(self) -> exceptions.NotFound:
        return exceptions.NotFound(f"No flow detail {self.uuid} is kept in {self.path}")

    def damaged(self, path: str, problem: str) -> exceptions.CorruptRecord:
        """The error about a damaged file, which says what to do."""
        remedy = (
            "remove it if no process runs the flow: it is made again"
            if path == self.head_path
            else "restore it from a copy, or destroy the log book of the flow"
        )
        return exceptions.CorruptRecord(
            f"{path}, of flow {self.uuid}, is damaged ({problem}): {remedy}",
            path=path,
            flow=self.uuid,
        )

    def detail(self, picture: Picture, *, lazy: bool = False) -> models.FlowDetail:
        """The flow that was found.

        :raises CorruptRecord: a record says what none says.
        """
        try:
            return contents.Contents(picture.found).flow(picture.epoch, lazy)
        except lines.Damaged as error:
            raise self.damaged(self.records(picture.head.mark.generation), str(error)) from None

    def atom(self, picture: Picture, key: bytes) -> models.AtomDetail | None:
        """One atom of what was found; None if it is not there.

        :raises CorruptRecord: a record says what none says.
        """
        found = contents.Contents(picture.found)
        try:
            return found.atom(key) if key in found else None
        except lines.Damaged as error:
            raise self.damaged(self.records(picture.head.mark.generation), str(error)) from None

    # -- reading --------------------------------------------------------------------------------

    def read_head(self) -> head.Head:
        """Who runs the flow, and what counts.

        :raises NotFound: the flow is not kept.
        :raises CorruptRecord: the head is damaged.
        """
        for _ in range(_TRIES):
            try:
                return self.parse_head(files.read(self.head_path))
            except exceptions.CorruptRecord:
                continue  # perhaps it was being written just then
            except FileNotFoundError:
                return self.missing_head()
        with _Reader(self):
            return self.parse_head(files.read(self.head_path))

    def parse_head(self, data: bytes) -> head.Head:
        """:raises CorruptRecord: it is damaged."""
        try:
            return head.parse(data, self.key)
        except lines.Damaged as error:
            raise self.damaged(self.head_path, str(error)) from None

    def missing_head(self) -> head.Head:
        """What a head would say that somebody removed.

        :raises NotFound: the flow is not kept.
        """
        found = [_GENERATIONS(name) for name in files.names_in(self.path)]
        numbers = [int(match[2]) for match in found if match is not None and match[1] == "records"]
        if not numbers:
            raise self.not_found()
        return head.Head(head.Holder(), head.Mark(max(numbers)))

    def read(self) -> Picture:
        """All that is kept, as it was at one moment.

        :raises NotFound: the flow is not kept.
        :raises CorruptRecord: something of it is damaged.
        """
        for _ in range(_TRIES):
            try:
                picture = self.look()
            except exceptions.CorruptRecord:
                continue  # perhaps somebody was writing just then
            if not picture.unfinished:
                return picture
        with _Reader(self) as reader:
            picture = self.look()
            if picture.unfinished and reader.alone:
                self.tell_unfinished(picture)
            return picture

    def look(self) -> Picture:
        """`read`, with what may be wrong only because somebody is writing."""
        told = self._head()
        path = self.records(told.mark.generation)
        try:
            raws = files.read_lines(path)
        except FileNotFoundError:
            raise self.damaged(path, "it is missing") from None
        kept = lines.scan(raws, "records", self.key, told.mark.generation)
        if kept.problem is not None or kept.first is None or not kept.lines:
            raise self.damaged(path, kept.problem or "its records are missing")
        journal, size = self.read_journal(told.mark)
        return Picture(
            told,
            max(told.holder.epoch, kept.epoch, journal.epoch),
            kept.lines + journal.lines,
            kept.first,
            kept.end,
            journal.end,
            size - journal.end,
        )

    def _head(self) -> head.Head:
        try:
            return self.parse_head(files.read(self.head_path))
        except FileNotFoundError:
            return self.missing_head()

    def read_journal(self, mark: head.Mark) -> tuple[lines.Scan, int]:
        """The turns since the flow was folded, and the size of the file.

        :raises CorruptRecord: it is damaged within what counts.
        """
        path = self.journal(mark.generation)
        try:
            raws = files.read_lines(path)
        except FileNotFoundError:
            raws = []
            # There is none yet, or none any more: then it had turns that others may have seen.
            if self._head().mark.generation != mark.generation:
                raise self.damaged(path, "it is missing") from None
        found = lines.scan(raws, "journal", self.key, mark.generation)
        size = sum(map(len, raws))
        if found.end < mark.length or found.within:
            raise self.damaged(path, found.problem or f"of {mark.length} bytes it has {size}")
        return found, size

    def tell_unfinished(self, picture: Picture) -> None:
        """Log, once, that the end of a journal does not count."""
        path = self.journal(picture.head.mark.generation)
        if (path, picture.length) not in self.reported:
            self.reported.add((path, picture.length))
            LOG.warning(
                "%s ends with %d bytes of a turn that was not written to its end:"
                " they do not count",
                path,
                picture.unfinished,
            )

    def leftovers(self, mark: head.Mark) -> list[str]:
        """Files of other generations, and unfinished ones."""
        kept = {self.records(mark.generation), self.journal(mark.generation)}
        found = [
            os.path.join(self.path, name)
            for name in files.names_in(self.path)
            if _GENERATIONS(name) is not None or name.startswith((".records.", "head.", "outline."))
        ]
        return [path for path in found if path not in kept]


class _Reader:
    """Keeps writers out for the length of a `with` block, unless one of them takes too long."""

    def __init__(self, folder: FlowFolder) -> None:
        self._folder = folder
        self._fd = -1
        self.alone = True

    def __enter__(self) -> _Reader:
        try:
            self._fd = files.open_at(self._folder.head_path, os.O_RDONLY)
        except FileNotFoundError:
            return self
        self.alone = files.lock(self._fd, self._folder.head_path, shared=True, patience=_PATIENCE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._fd >= 0:
            if self.alone:
                files.unlock(self._fd)
            os.close(self._fd)
