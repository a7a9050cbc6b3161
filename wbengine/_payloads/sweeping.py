"""Deletion of payloads to which no flow refers.

A sweep deletes the files in `refs` of flows that do not exist, and then payloads without such a
file, unless they are younger than a grace period. It may be interrupted and repeated at any time,
and several sweeps may run together.

A payload is first moved to `condemned`. If a file in `refs` exists afterwards, the payload is moved
back; otherwise it is deleted. A writer that creates its file in `refs` later finds no payload, and
writes it again. So a sweep loses nothing, whatever the grace period is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from wbengine._concurrency.crash_points import crashpoint
from wbengine._payloads import payloads as places
from wbengine._payloads.files import File, Files

__all__ = ["GRACE_SECONDS", "Swept", "flows_of", "sweep"]

#: Default age in seconds below which payloads and references are kept. A flow that is being
#: submitted, and a flow without a store, do not exist for a sweep.
GRACE_SECONDS: Final = 24 * 3600.0

#: Age in seconds of an incomplete file whose writer has certainly ended.
_WRITING_SECONDS: Final = 24 * 3600.0


@dataclass
class Swept:
    """What a sweep has done, or would do, up to a part.

    :ivar parts: number of all parts, each with the addresses of the same first digits.
    :ivar parts_done: number of complete parts.
    :ivar kept, deleted: numbers of payloads.
    :ivar bytes_kept, bytes_deleted: sizes of their files.
    :ivar references_deleted: number of references of flows that do not exist.
    """

    parts: int = 0
    parts_done: int = 0
    kept: int = 0
    deleted: int = 0
    bytes_kept: int = 0
    bytes_deleted: int = 0
    references_deleted: int = 0


def flows_of(payloads: places.Payloads) -> Iterator[str]:
    """Yield the uuids of the flows with payloads; that of a flow with several of them repeatedly.

    :raises StorageFailure: if the folder or bucket cannot be reached.
    """
    for prefix in payloads.files.folders("refs"):
        for file in payloads.files.list(f"refs/{prefix}"):
            flow = file.name.partition(".")[2]
            if flow != places.NO_FLOW:
                yield flow


def sweep(
    payloads: places.Payloads,
    flow_exists: Callable[[str], bool],
    now: float,
    grace: float = GRACE_SECONDS,
    *,
    dry_run: bool = False,
) -> Iterator[Swept]:
    """Delete payloads without a flow, and yield the progress after each part.

    This uses memory for one part. No payload is read.

    :param flow_exists: whether the store contains the flow with this uuid.
    :param now: the time of the files, in Unix seconds.
    :param dry_run: only count.
    :raises StorageFailure: if the folder or bucket cannot be reached.
    """
    swept, files = Swept(), payloads.files
    if not dry_run:
        for file in list(files.list("condemned")):
            _settle(payloads, file.name)  # An earlier sweep was interrupted.
        for file in list(files.list("damaged")):
            if files.find(places.data_name(file.name)) is None:
                files.delete(places.damaged_name(file.name))
    prefixes = sorted({*files.folders("data"), *files.folders("refs")})
    swept.parts = len(prefixes)
    yield swept
    for prefix in prefixes:
        existing: dict[str, bool] = {}
        # Payloads first: the reference of a payload that appears meanwhile is in the second list.
        data = list(files.list(f"data/{prefix}"))
        needed: set[str] = set()
        for file in files.list(f"refs/{prefix}"):
            address, _, flow = file.name.partition(".")
            if flow not in existing:
                existing[flow] = flow != places.NO_FLOW and flow_exists(flow)
            name = f"refs/{prefix}/{file.name}"
            if existing[flow] or now - file.changed < grace or _is_renewed(files, name, file):
                needed.add(address)
                continue
            swept.references_deleted += 1
            if not dry_run:
                files.delete(name)
        for file in data:
            is_young = now - file.changed < grace
            if file.name in needed or is_young or not (dry_run or _delete(payloads, file)):
                swept.kept += 1
                swept.bytes_kept += file.size
            else:
                swept.deleted += 1
                swept.bytes_deleted += file.size
        for folder in (f"data/{prefix}", f"refs/{prefix}"):
            for file in list(files.incomplete(folder)):
                if now - file.changed >= max(grace, _WRITING_SECONDS) and not dry_run:
                    files.delete(f"{folder}/{file.name}")
        swept.parts_done += 1
        yield swept


def _is_renewed(files: Files, name: str, listed: File) -> bool:
    """Return whether a writer has written a file in `refs` again since it was listed."""
    current = files.find(name)
    return current is not None and current.changed > listed.changed


def _delete(payloads: places.Payloads, file: File) -> bool:
    """Delete a payload unless a flow refers to it now. Return whether it was deleted."""
    crashpoint("payloads.before-condemn")
    if not payloads.files.move(places.data_name(file.name), places.condemned_name(file.name)):
        return False  # Another sweep has deleted it.
    crashpoint("payloads.after-condemn")
    return _settle(payloads, file.name)


def _settle(payloads: places.Payloads, address: str) -> bool:
    """Delete a condemned payload, or move it back. Return whether it was deleted."""
    files = payloads.files
    prefix = f"{address}."
    is_needed = any(file.name.startswith(prefix) for file in files.list(f"refs/{address[:2]}"))
    if is_needed:
        files.move(places.condemned_name(address), places.data_name(address))
    else:
        files.delete(places.condemned_name(address))
    return not is_needed
