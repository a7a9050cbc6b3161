"""Visitors with access keys, which the store contains."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from typing import Final

from wbengine import exceptions
from wbengine._concurrency import clocks
from wbengine.dashboard import _key_macs, _roles, _visitors
from wbengine.dashboard._visitors import Visitor
from wbengine.persistence import _access_keys, base
from wbengine.persistence._access_keys import AccessKey

__all__ = ["KeyVisitors"]

LOG: Final = logging.getLogger(__name__)

#: Time for which a key that was read is used again. A revoked key works for this time.
REFRESH_SECONDS: Final = 2.0
#: Minimum time between two writes of the latest use of a key.
USE_SECONDS: Final = 60.0
MAX_CACHED_KEYS: Final = 1_000

#: A key that no text matches: unknown ids take the time of known ones.
_NO_KEY: Final = AccessKey("", "0" * 64, "", "", {}, 0.0)


class KeyVisitors:
    """Checks of access keys. Thread-safe."""

    def __init__(self, backend: base.Backend, clock: clocks.Clock = clocks.SYSTEM) -> None:
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        #: Keys by id, with the time (monotonic) at which each was read.
        self._keys: OrderedDict[str, tuple[float, AccessKey]] = OrderedDict()
        #: Times of the latest uses that were written, by id.
        self._uses: OrderedDict[str, float] = OrderedDict()

    def visitor_of(self, text: str) -> Visitor | None:
        """Return the visitor with a key; None if it is unknown, revoked or expired. Blocks.

        :raises StorageFailure: if the store cannot be read.
        """
        key_id, now = _access_keys.id_of(text), self._clock.time()
        if key_id is None:
            return None
        key = self._read(key_id)
        if not (key or _NO_KEY).matches(text) or key is None or not key.is_valid(now):
            return None
        try:
            role = _roles.check_role(key.role)
            visitor = Visitor(f"{_visitors.KEY_PREFIX}{key.name}", role, key.tags, key.queues)
        except ValueError as error:  # a newer version stored it
            LOG.warning("access key %s cannot be used: %s", key.id, error)
            return None
        self._note_use(key, now)
        return visitor

    def _read(self, key_id: str) -> AccessKey | None:
        moment = self._clock.monotonic()
        with self._lock:
            read_at, key = self._keys.get(key_id, (moment - REFRESH_SECONDS, _NO_KEY))
        if moment - read_at < REFRESH_SECONDS:
            return key
        with contextlib.closing(self._backend.get_connection()) as connection:
            stored = _trusted(connection.access_key(key_id))
        with self._lock:
            self._keys.pop(key_id, None)
            if stored is not None:
                self._keys[key_id] = moment, stored
                if len(self._keys) > MAX_CACHED_KEYS:
                    self._keys.popitem(last=False)
        return stored

    def _note_use(self, key: AccessKey, now: float) -> None:
        """Write the latest use in a thread: the request does not wait for it."""
        with self._lock:
            if now - max(self._uses.get(key.id, 0.0), key.used or 0.0) < USE_SECONDS:
                return
            self._uses.pop(key.id, None)
            self._uses[key.id] = now
            if len(self._uses) > MAX_CACHED_KEYS:
                self._uses.popitem(last=False)
        thread = threading.Thread(
            target=self._write_use, args=(key.id, now), name="wbengine-key-use", daemon=True
        )
        thread.start()

    def _write_use(self, key_id: str, now: float) -> None:
        try:
            with contextlib.closing(self._backend.get_connection()) as connection:
                connection.note_use_of_access_key(key_id, now)
        except exceptions.StorageFailure as error:
            LOG.warning("the use of access key %s was not stored: %s", key_id, error)


def _trusted(key: AccessKey | None) -> AccessKey | None:
    try:
        if key is not None:
            _key_macs.verify(key)
        return key
    except exceptions.NotTrusted as error:
        LOG.warning("an access key cannot be used: %s", error)
        return None
