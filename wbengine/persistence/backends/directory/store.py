"""The flows of a directory backend, and those of them that are open for writing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine.persistence.backends.directory import aside, files, folder, lines, opened

__all__ = ["Store"]

#: Flows whose files stay open between the turns of their owners, each with two files.
_MOST_OPEN: Final = 64


class Store:
    """Any thread may use it, and a forked child too.

    `most_atoms`: of so many atoms the flow is remembered, for who asks for them by their uuid only.
    """

    def __init__(self, root: str, most_atoms: int) -> None:
        self.root = root
        self._most_atoms = most_atoms
        self._reported: set[tuple[str, int]] = set()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, opened.OpenFlow] = OrderedDict()
        self._homes: OrderedDict[bytes, folder.FlowFolder] = OrderedDict()

    def folder_for(self, flow_uuid: str) -> folder.FlowFolder:
        """Where a flow is, or would be."""
        return folder.FlowFolder(self.root, flow_uuid, self._reported)

    def close(self) -> None:
        """Close all files; they are opened again when they are needed."""
        with self._lock:
            idle = [flow for flow in self._open.values() if not flow.users]
            self._open.clear()
        for flow in idle:
            flow.close()

    # -- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self, flow_uuid: str, *, keep: bool = False) -> Iterator[opened.OpenFlow]:
        """The files of a flow, while nobody else writes them; `keep`: more is to come soon.

        What is found damaged is copied aside.

        :raises NotFound: the flow is not kept.
        :raises CorruptRecord: its head is damaged.
        """
        flow = self._borrow(flow_uuid)
        try:
            with files.all_there(), flow:
                yield flow
        except exceptions.CorruptRecord as error:
            aside.put_aside(self.root, error)
            raise
        except (exceptions.NotFound, exceptions.LeaseLost):
            keep = False
            raise
        finally:
            self._give_back(flow, keep)

    def _borrow(self, flow_uuid: str) -> opened.OpenFlow:
        if self._pid != os.getpid():  # the parent's files: their locks are shared with it
            for flow in self._open.values():
                flow.abandon()
            self._begin()
        key = lines.key_of(flow_uuid)
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = opened.OpenFlow(self.folder_for(flow_uuid))
            else:
                self._open.move_to_end(key)
            found.users += 1
            return found

    def _give_back(self, flow: opened.OpenFlow, keep: bool) -> None:
        key = flow.folder.key
        idle: list[opened.OpenFlow] = []
        with self._lock:
            flow.users -= 1
            kept = self._open.get(key)
            if keep and kept is None:
                kept = self._open[key] = flow
            elif not keep and kept is flow:
                kept = None
                del self._open[key]
            if kept is not flow and not flow.users:
                idle.append(flow)
            for other in list(self._open):
                if len(self._open) <= _MOST_OPEN:
                    break
                if not self._open[other].users:
                    idle.append(self._open.pop(other))
        for each in idle:
            each.close()

    # -- atoms ----------------------------------------------------------------------------------

    def flow_of(self, atom_uuid: str) -> folder.FlowFolder:
        """Where the flow of an atom is.  Cost: of all that is kept, unless it is remembered.

        :raises NotFound: the atom is not kept.
        """
        key = lines.key_of(atom_uuid)
        with self._lock:
            found = self._homes.get(key)
        if found is None or not _mentions(found, key):
            found = next(filter(lambda each: _mentions(each, key), self._folders()), None)
        if found is None:
            raise exceptions.NotFound(f"No atom detail {atom_uuid} is kept in {self.root}")
        with self._lock:
            self._homes[key] = found
            self._homes.move_to_end(key)
            while len(self._homes) > self._most_atoms:
                self._homes.popitem(last=False)
        return found

    def flow_names(self) -> list[str]:
        """The names of the folders of flows."""
        names = files.names_in(os.path.join(self.root, "flows"))
        return [name for name in names if not name.startswith(".")]

    def _folders(self) -> Iterator[folder.FlowFolder]:
        return map(self.folder_for, self.flow_names())


def _mentions(where: folder.FlowFolder, atom_key: bytes) -> bool:
    """Whether the files of a flow have a line of an atom.  Cheaper than to read them."""
    for name in files.names_in(where.path):
        if name.startswith(("records.", "journal.")):
            with contextlib.suppress(FileNotFoundError):
                data = files.read(os.path.join(where.path, name))
                if b" task %s " % atom_key in data or b" retry %s " % atom_key in data:
                    return True
    return False
