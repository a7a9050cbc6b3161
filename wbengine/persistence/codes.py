"""Versions of the code that runs flows: `Code`, and the flows that wait for one.

A flow stores the code that executed its latest task or step, as 'app:version'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = ["Code", "check", "missing", "missing_counts", "waits_text"]

#: Seconds after its latest report in which a conductor is considered to run.
LIVE_SECONDS: Final = 90.0
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")


class Code(NamedTuple):
    """A version of the code of an app.

    :ivar number: order of first appearance in the store.
    :ivar version: "" in the entry of conductors without a version, which has no app.
    :ivar age: seconds since a conductor reported that it has this code.
    """

    number: int
    app: str
    version: str
    age: float

    @property
    def text(self) -> str:
        return f"{self.app}:{self.version}"

    @property
    def is_live(self) -> bool:
        return self.age < LIVE_SECONDS


def check(name: str, value: str) -> str:
    """Return `value` if it is a valid name of an app or version.

    :raises ValueError: if it is not; the message contains `name`.
    """
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{name} must be 1 to 100 characters of A-Z a-z 0-9 _ . + -, got {value!r:.200}"
        )
    return value


def missing(codes: Iterable[Code], text: str) -> bool:
    """Return whether no live conductor has this code, later code of its app, or no version."""
    known = list(codes)
    needed = next((code for code in known if code.text == text), None)
    return needed is not None and not any(
        code.is_live
        and (not code.version or (code.app == needed.app and code.number >= needed.number))
        for code in known
    )


def missing_counts(codes: Iterable[Code], flows: Mapping[str, int]) -> dict[str, int]:
    """Return the number of flows by the code that they wait for, without codes that run.

    :param flows: number of flows by code.
    """
    known = list(codes)
    return {text: number for text, number in flows.items() if missing(known, text)}


def waits_text(text: str) -> str:
    app, _, version = text.partition(":")
    return f"code {version} or newer of {app}"
