"""Ledgers: who may run a request, and what came of it.  `base` is the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base, directory, memory
from wbengine.transports import memory as brokers

if TYPE_CHECKING:
    from wbengine.transports.target import Target


def open_ledger(place: str | Target, role: str = "engine") -> base.Ledger:
    """Open a ledger, made when it is not there: `memory://NAME`, `dir:///PATH`, or a broker's
    target.

    The ledger of a folder transport is `ledger` in the folder that requests go to: `out` of an
    engine, `in` of a worker (`role`), so that both open the same.  That of a memory broker belongs
    to the broker.

    :raises ValueError: it is another place.
    :raises LedgerFailure: it cannot be used.
    """
    if isinstance(place, str):
        scheme, mark, rest = place.partition("://")
        if mark and scheme == "memory":
            return _of_broker(place)
        if mark and scheme == "dir" and rest:
            return _of_folder(unquote(rest))
        raise ValueError(f"no ledger at {place!r}: use memory://NAME or dir:///PATH")
    if place.broker is not None:
        return _of_broker(f"memory://{place.broker}")
    if place.folders is not None:
        folder_in, folder_out = place.folders
        return _of_folder(f"{folder_in if role == 'worker' else folder_out}/ledger")
    raise ValueError(f"no ledger of its own at {place.url}: name one")


def for_target(target: Target, role: str = "engine") -> base.Ledger | None:
    """The ledger that comes with a broker; None when none does.  See `open_ledger`.

    :raises TransportFailure: a broker whose ledger cannot be used cannot be used.
    """
    if target.broker is None and target.folders is None:
        return None
    try:
        return open_ledger(target, role)
    except exceptions.LedgerFailure as exc:
        raise exceptions.TransportFailure(
            f"the broker at {target.url} cannot be used: {exc}"
        ) from exc


def _of_folder(folder: str) -> base.Ledger:
    return directory.DirectoryLedger(folder)


def _of_broker(url: str) -> base.Ledger:
    broker = brokers.broker(brokers.broker_name(url))
    with broker.lock:
        if broker.ledger is None:
            broker.ledger = memory.MemoryLedger()
        found: base.Ledger = broker.ledger
        return found
