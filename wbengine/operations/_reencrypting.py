"""Encryption of a store with the current key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wbengine import exceptions
from wbengine._payloads import encryption
from wbengine._security import sealing
from wbengine.persistence import base
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import reencrypting

__all__ = ["Reencrypted", "reencrypt"]


@dataclass
class Reencrypted:
    """What was done up to now.

    :ivar rows, rows_written: numbers of rows that were read, and of those that had another key.
    :ivar payloads, payloads_written: the same of large values out of line.
    """

    rows: int = 0
    rows_written: int = 0
    payloads: int = 0
    payloads_written: int = 0


def reencrypt(backend: base.Backend) -> Iterator[Reencrypted]:
    """Encrypt what a store contains with the current key, and yield the progress.

    Rows and payloads that have this key are only read, so an interrupted run may be repeated.
    Engines may run meanwhile. With keys that do not encrypt, rows are decrypted.

    :raises InvalidState: if the backend is not an SQL store; if this process has no keys; or if the
        keys do not encrypt, and the store has a place for payloads.
    :raises NotTrusted: if the key file lacks the key of a row or payload, or one is damaged.
    :raises StorageFailure: if the store, or the folder or bucket, cannot be reached.
    """
    if not isinstance(backend, _sql.SQLBackend):
        raise exceptions.InvalidState(f"Only SQL stores can be encrypted, got {backend!r}")
    if sealing.ring() is None:
        raise exceptions.InvalidState("This process has no keys: set a key file (--keys FILE)")
    if sealing.current_key() is None and backend.payloads is not None:
        raise exceptions.InvalidState(
            "Large values cannot be decrypted: use a key file with the entry 'encrypt'"
        )
    done = Reencrypted()
    for read, written in reencrypting.reencrypt(backend):
        done.rows += read
        done.rows_written += written
        yield done
    payloads = backend.payloads
    if payloads is None:
        return
    try:
        folders = [f"data/{prefix}" for prefix in payloads.files.folders("data")]
        for folder in (*folders, "condemned"):  # A sweep may move them back.
            for was_written in encryption.reencrypt(payloads.files, folder):
                done.payloads += 1
                done.payloads_written += was_written
                yield done
    except (PermissionError, ValueError) as error:
        raise exceptions.NotTrusted(f"A payload in {payloads}: {error}") from error
