"""Versions of the code that runs flows: `Code`, and the flows that wait for one.

A flow stores the code that executed its latest task or step, as 'app:version'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = ["NO_CONDUCTOR", "Code", "is_served", "missing", "missing_counts", "waits_text"]

NO_CONDUCTOR: Final = "no conductor (wbengine serve) runs now"

#: Seconds after its latest report in which a conductor is considered to run.
LIVE_SECONDS: Final = 90.0


class Code(NamedTuple):
    """A version of the code of an app.

    :ivar number: order of first appearance in the store.
    :ivar app: "" in the entry of conductors without an app of their own.
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


def is_served(codes: Iterable[Code]) -> bool:
    """Return whether a conductor runs."""
    return any(code.is_live for code in codes)


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
