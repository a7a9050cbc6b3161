"""The keys that messages are signed with."""

from __future__ import annotations

import time
from collections.abc import Iterator

from wbengine import exceptions, keys
from wbengine.diagnosis.findings import Finding, Place, bad, good, line

__all__ = ["look"]


def look(place: Place) -> Iterator[Finding]:
    """Whether the key file that is set can be read, and one of its keys be believed."""
    try:
        ring = keys.keyring(place.keys)
    except (exceptions.InvalidFormat, ValueError) as error:
        yield bad("keys", line(error), "wbengine keys show says more; wbengine keys new makes one")
        return
    if ring is None:
        return
    now = time.time()
    key = ring.signing_key(now)
    if key.is_over(now):
        yield bad(
            "keys",
            f"nobody believes who has {ring.path}: its key {key.id} is over",
            "wbengine keys rotate --in 0, then copy the files to all processes",
        )
    else:
        yield good("keys", f"key {key.id} of role {ring.role!r} signs")
