"""Deletion of payloads to which no flow refers.

A sweep deletes the files in `refs` of flows that do not exist, and then payloads without such a
file, unless they are younger than a grace period. It may be interrupted and repeated at any time,
and several sweeps may run together.

A payload is first moved to `condemned`. If a file in `refs` exists afterwards, the payload is moved
back; otherwise it is deleted. A writer that creates its file in `refs` later finds no payload, and
writes it again. So a sweep loses nothing, whatever the grace period is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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
    :ivar young, bytes_young: those of the kept payloads that no flow uses, but that are too young.
    :ivar references_deleted: number of references of flows that do not exist.
    :ivar needs_force: whether `operations.sweep` deletes them only with `force`.
    """

    parts: int = 0
    parts_done: int = 0
    kept: int = 0
    deleted: int = 0
    bytes_kept: int = 0
    bytes_deleted: int = 0
    young: int = 0
    bytes_young: int = 0
    references_deleted: int = 0
    needs_force: bool = False


def flows_of(payloads: places.Payloads) -> Iterator[str]:
    """Yield the uuids of the flows with payloads; that of a flow with several of them repeatedly.

    :raises StorageFailure: if the folder or bucket cannot be reached.
    """
    for prefix in payloads.files.folders("refs"):
        for file in payloads.files.list(f"refs/{prefix}"):
            _, flow = _parts_of(file)
            if flow != places.NO_FLOW:
                yield flow


def sweep(
    payloads: places.Payloads,
    existing_flows: Callable[[Collection[str]], Collection[str]],
    now: float,
    grace: float = GRACE_SECONDS,
    *,
    dry_run: bool = False,
) -> Iterator[Swept]:
    """Delete payloads without a flow, and yield the progress after each part.

    This uses memory for one part. No payload is read.

    :param existing_flows: returns those of these uuids whose flows the store contains.
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
        # Payloads first: the reference of a payload that appears meanwhile is in the second list.
        data = list(files.list(f"data/{prefix}"))
        references = [(*_parts_of(file), file) for file in files.list(f"refs/{prefix}")]
        existing = existing_flows({flow for _, flow, _ in references if flow != places.NO_FLOW})
        in_use, young = set[str](), set[str]()
        for address, flow, file in references:
            name = f"refs/{prefix}/{file.name}"
            if flow in existing:
                in_use.add(address)
            elif now - file.changed < grace or _is_renewed(files, name, file):
                young.add(address)
            else:
                swept.references_deleted += 1
                if not dry_run:
                    files.delete(name)
        for file in data:
            is_used = file.name in in_use
            is_young = not is_used and (file.name in young or now - file.changed < grace)
            if is_used or is_young or not (dry_run or _delete(payloads, file)):
                swept.kept += 1
                swept.bytes_kept += file.size
                swept.young += is_young
                swept.bytes_young += file.size if is_young else 0
            else:
                swept.deleted += 1
                swept.bytes_deleted += file.size
        for folder in (f"data/{prefix}", f"refs/{prefix}"):
            for file in list(files.incomplete(folder)):
                if now - file.changed >= max(grace, _WRITING_SECONDS) and not dry_run:
                    files.delete(f"{folder}/{file.name}")
        swept.parts_done += 1
        yield swept


def _parts_of(reference: File) -> tuple[str, str]:
    """Return the address and the uuid of the flow in the name of a file in `refs`."""
    address, _, flow = reference.name.partition(".")
    return address, flow


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
