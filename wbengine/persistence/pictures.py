"""Records as text for people: one line for each thing that is known, what is inside further in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine.persistence import history

__all__ = ["STEP", "lines_of_atom", "lines_of_meta", "picture"]

#: So much further in is what belongs to something.
STEP: Final = 2
#: Longer values are cut.
_LONGEST: Final = 200
_AFTER: Final = ("failure", "revert_results", "revert_failure")


def picture(head: str, lines: Iterable[str], inside: Iterable[str], indent: int, end: str) -> str:
    """`head`, below it `lines`, and below them what is `inside` (pictures, indented already)."""
    pad = " " * indent
    return end.join([f"{pad}{head}", *(f"{pad}{' ' * STEP}{line}" for line in lines), *inside])


def lines_of_meta(meta: Mapping[str, Any] | None) -> list[str]:
    """Whatever listeners and users attached, by key."""
    if not meta:
        return []
    return ["- meta:", *(f"{' ' * STEP}+ {key} = {_shown(meta[key])}" for key in list(meta))]


def lines_of_atom(record: Any, meta: Mapping[str, Any] | None) -> list[str]:
    """What an `AtomDetail` says, without what it does not know."""
    lines = [
        f"- uuid = {record.uuid}",
        f"- state = {record.state}, intention = {record.intention}, version = {record.version}",
    ]
    if record.attempt:
        lines.append(f"- attempt = {record.attempt} ({record.action}{_run(record)})")
    if record.progress is not None:
        lines.append(f"- progress = {record.progress:.2%}")
    if record.kind == "retry":
        lines += _history(record.results)
        lines += _outcomes(record, _AFTER)
    else:
        lines += _outcomes(record)
    if record.items is not None:
        counts = Counter(item.state for item in record.items)
        told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        lines.append(f"- items = {len(record.items)}{f' ({told})' if told else ''}")
    return lines + lines_of_meta(meta)


def _outcomes(record: Any, names: tuple[str, ...] = ("results", *_AFTER)) -> list[str]:
    found = ((name, getattr(record, name)) for name in names)
    return [f"- {name} = {_shown(value)}" for name, value in found if value is not None]


def _history(entries: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[str]:
    lines = []
    for number, (value, failures) in enumerate(entries, 1):
        lines.append(f"- try {number} = {_shown(value)}")
        lines += [f"{' ' * STEP}+ {name}: {_shown(found)}" for name, found in failures.items()]
    return lines


def _run(record: Any) -> str:
    """Where it ran, and how long."""
    told = f" on {record.worker}" if record.worker is not None else ""
    seconds = history.runtime(record.started, record.ended)
    if seconds is not None:
        told += f", {seconds:.3f} s"
    return told


def _shown(value: Any) -> str:
    try:
        text = str(value) if hasattr(value, "exc_info") else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: repr() raised {type(error).__name__}>"
    text = " ".join(text.split("\n"))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
