"""Check of the keys that sign messages."""

from __future__ import annotations

import time
from collections.abc import Iterator

from wbengine import exceptions
from wbengine._security import keys
from wbengine.diagnosis.findings import Finding, Place, bad, good, line

__all__ = ["check"]


def check(place: Place) -> Iterator[Finding]:
    """Check that the key file can be read and that its signing key has not expired."""
    try:
        ring = keys.keyring(place.keys)
    except (exceptions.InvalidFormat, ValueError) as error:
        yield bad(
            "keys",
            line(error),
            "for details: wbengine keys show; to create a file: wbengine keys new",
        )
        return
    if ring is None:
        return
    now = time.time()
    key = ring.signing_key(now)
    if key.is_over(now):
        yield bad(
            "keys",
            f"key {key.id} in {ring.path} has expired, so other processes reject its messages",
            "run: wbengine keys rotate --in 0; then copy the files to all processes",
        )
    else:
        yield good("keys", f"key {key.id} of role {ring.role!r} signs messages")
