"""Check of the folder or bucket of large values."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from wbengine import _payloads, exceptions
from wbengine.diagnosis.findings import Finding, Place, bad, good, line

__all__ = ["check"]


def check(place: Place) -> Iterator[Finding]:
    """Write, read, list and delete a file."""
    try:
        payloads = _payloads.opened(place.payloads)
    except (ValueError, ImportError) as error:
        yield bad("payloads", line(error), "correct --payloads ($WBENGINE_PAYLOADS)")
        return
    if payloads is None:
        return
    name, content = f"doctor/{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        payloads.files.write(name, lambda: [content])
        try:
            is_equal = payloads.files.retried(name, lambda file: file.read()) == content
            is_listed = name in [f"doctor/{file.name}" for file in payloads.files.list("doctor")]
        finally:
            payloads.files.delete(name)
    except (exceptions.StorageFailure, OSError) as error:
        yield bad("payloads", line(error), "check that the folder or bucket exists, and that this"
                  " process may write, read, list and delete its files")  # fmt: skip
        return
    if is_equal and is_listed:
        yield good("payloads", f"wrote, read, listed and deleted a file in {payloads}")
    else:
        yield bad("payloads", f"a file that was written to {payloads} was not"
                  f" {'listed' if is_equal else 'read'} afterwards",
                  "use a folder or bucket that shows completed writes at once")  # fmt: skip
