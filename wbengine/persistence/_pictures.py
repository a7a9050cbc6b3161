"""Readable text of records: one line for each field, with indented contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine.persistence import _history

__all__ = ["INDENT_STEP", "lines_of_atom", "lines_of_meta", "picture"]

INDENT_STEP: Final = 2
_MAX_VALUE_LENGTH: Final = 200
_LATER_FIELDS: Final = ("failure", "revert_results", "revert_failure")


def picture(head: str, lines: Iterable[str], inside: Iterable[str], indent: int, end: str) -> str:
    """Return the heading, the lines of its fields, and `inside`, which is already indented."""
    pad = " " * indent
    return end.join(
        [f"{pad}{head}", *(f"{pad}{' ' * INDENT_STEP}{line}" for line in lines), *inside]
    )


def lines_of_meta(meta: Mapping[str, Any] | None) -> list[str]:
    if not meta:
        return []
    return [
        "- meta:",
        *(f"{' ' * INDENT_STEP}+ {key} = {_value_text(meta[key])}" for key in list(meta)),
    ]


def lines_of_atom(record: Any, meta: Mapping[str, Any] | None) -> list[str]:
    lines = [
        f"- uuid = {record.uuid}",
        f"- state = {record.state}, intention = {record.intention}, version = {record.version}",
    ]
    if record.attempt:
        lines.append(f"- attempt = {record.attempt} ({record.action}{_run_text(record)})")
    if record.progress is not None:
        lines.append(f"- progress = {record.progress:.2%}")
    if record.kind == "retry":
        lines += _retry_lines(record.results)
        lines += _result_lines(record, _LATER_FIELDS)
    else:
        lines += _result_lines(record)
    if record.items is not None:
        counts = Counter(item.state for item in record.items)
        summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        lines.append(f"- items = {len(record.items)}{f' ({summary})' if summary else ''}")
    return lines + lines_of_meta(meta)


def _result_lines(record: Any, names: tuple[str, ...] = ("results", *_LATER_FIELDS)) -> list[str]:
    values = ((name, getattr(record, name)) for name in names)
    return [f"- {name} = {_value_text(value)}" for name, value in values if value is not None]


def _retry_lines(entries: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[str]:
    lines = []
    for number, (value, failures) in enumerate(entries, 1):
        lines.append(f"- try {number} = {_value_text(value)}")
        lines += [
            f"{' ' * INDENT_STEP}+ {name}: {_value_text(failure)}"
            for name, failure in failures.items()
        ]
    return lines


def _run_text(record: Any) -> str:
    text = f" on {record.worker}" if record.worker is not None else ""
    seconds = _history.runtime(record.started, record.ended)
    if seconds is not None:
        text += f", {seconds:.3f} s"
    return text


def _value_text(value: Any) -> str:
    try:
        text = str(value) if hasattr(value, "exc_info") else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: repr() raised {type(error).__name__}>"
    text = " ".join(text.split("\n"))
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
