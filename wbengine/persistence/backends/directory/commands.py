"""Commands, each in a file of its own: one look into their folder tells whether there are any.

One that was not cleared before its run ended stays there, and means nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from wbengine import exceptions
from wbengine._crash import crashpoint
from wbengine.persistence import base, leases
from wbengine.persistence.backends.directory import files, lines, store

__all__ = ["FOLDER", "forget", "put", "read_all"]

FOLDER = "wishes"


def put(of: store.Store, lease: leases.Lease, command: base.FlowCommand) -> None:
    """Keep a command; the caller keeps others from writing the flow."""
    path = _path(of.root, lease.flow)
    files.make_folders(os.path.dirname(path))
    temporary = _unfinished(path)
    key, told = lines.key_of(lease.flow), command._replace(epoch=lease.epoch)
    crashpoint("dir.before-wish")
    files.write_new(temporary, [lines.write("wish", key, lease.epoch, tree=told.to_dict())])
    crashpoint("dir.after-wish-write")
    files.rename(temporary, path)
    crashpoint("dir.after-wish")


def forget(root: str, flow_uuid: str) -> None:
    """Whatever was wanted is not wanted any more."""
    path = _path(root, flow_uuid)
    for kept in (path, _unfinished(path)):
        files.remove(kept)


def read_all(
    of: store.Store, flow_uuids: Collection[str]
) -> Iterator[tuple[str, base.FlowCommand]]:
    """The commands about the present runs of flows."""
    present = files.names_in(os.path.join(of.root, FOLDER))
    if not present:
        return
    asked = {lines.file_name(uuid): uuid for uuid in flow_uuids}
    for name in present:
        if name in asked:
            command = read(of.root, asked[name])
            if command is not None and _is_about(of, asked[name], command):
                yield asked[name], command


def read(root: str, flow_uuid: str) -> base.FlowCommand | None:
    """What is wanted of some run of a flow; what is damaged, is as if it were not."""
    try:
        told = lines.read(files.read(_path(root, flow_uuid))).tree()
        return base.FlowCommand.from_dict(told)
    except (FileNotFoundError, lines.Damaged, exceptions.InvalidFormat):
        return None


def _is_about(of: store.Store, flow_uuid: str, command: base.FlowCommand) -> bool:
    try:
        holder = of.folder_for(flow_uuid).read_head().holder
    except exceptions.NotFound:
        return False
    return holder.held and holder.epoch == command.epoch


def _unfinished(path: str) -> str:
    """Where a command is while it is not there yet."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")


def _path(root: str, flow_uuid: str) -> str:
    return os.path.join(root, FOLDER, lines.file_name(flow_uuid))
