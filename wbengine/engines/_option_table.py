"""The options of engines: their kinds, parsers and defaults.

Values from a URI are strings (`parallel://?max_workers=4`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine._concurrency import clocks, time_limits
from wbengine._configuration import named_options
from wbengine._limits import account_stores
from wbengine._runtime import executors, saving
from wbengine.engines import _differences, _ownership
from wbengine.persistence import _leases

__all__ = ["COMMON", "LOCAL", "WORKER_BASED", "WORKER_EXECUTOR", "Option", "read"]


def _unchanged(name: str, value: Any) -> Any:
    return value


class Option(NamedTuple):
    """One option: `read(name, value)` returns its value, or raises an error with both."""

    read: Callable[[str, Any], Any] = _unchanged
    default: Any = None


def read(kind: str, options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options of a kind of engine: the given ones, and defaults.

    :raises ValueError: if an option is unknown or its value is not allowed.
    :raises TypeError: if a value has a wrong type.
    """
    named_options.check_known(kind, values, options)
    return {
        name: option.read(name, values[name]) if name in values else option.default
        for name, option in options.items()
    }


def _choice(choices: Sequence[str]) -> Option:
    return Option(lambda name, value: named_options.choice(name, value, choices), choices[0])


def _limit(name: str, value: Any) -> time_limits.TimeLimit:
    return time_limits.read(value, f"Option {name}")


def _grace(name: str, value: Any) -> float | None:
    return None if _is_none(value) else named_options.number(name, value)


def _count(name: str, value: Any) -> int | None:
    return None if value is None else named_options.whole(name, value, least=1)


def _seconds(name: str, value: Any) -> float | None:
    """Return seconds or None. As in TaskFlow, 0 or less in `worker_expiry` means never."""
    if _is_none(value):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds) or (seconds < 0 and name != "worker_expiry"):
        raise ValueError(f"{name} must be 0 or more seconds or None, got {value!r}")
    return seconds


def _limits_url(name: str, value: Any) -> str | None:
    return None if _is_none(value) else account_stores.check_url(value)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "none")


def _clock(name: str, value: Any) -> clocks.Clock | None:
    if value is not None and not isinstance(value, clocks.Clock):
        raise TypeError(f"{name} must be a testing.ManualClock or None, got {value!r:.80}")
    return value


def _names_in(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(filter(None, map(str.strip, value.split(","))))


def _parse_word(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return value


_WORDS: Final[Mapping[str, Any]] = {"none": None, "true": True, "false": False}
_TIMELIMIT: Final = Option(_limit, time_limits.UNLIMITED)
_OFF, _ON = Option(named_options.flag, False), Option(named_options.flag, True)

COMMON: Final[Mapping[str, Option]] = {
    "never_resolve": _OFF,
    "defer_reverts": _ON,
    "inject_transient": _ON,
    "gather_statistics": _ON,
    "migrate": Option(lambda _, value: _differences.hook(value)),
    "local_tasks": Option(),
    "durability": _choice(saving.LEVELS),
    "keep_logs": _ON,
    "on_busy": _choice(_ownership.ON_BUSY),
    "lease": Option(named_options.number, _leases.LEASE_SECONDS),
    "limits": Option(_limits_url),
    "payloads": Option(),
    "strict_results": _OFF,
    "timelimit": _TIMELIMIT,
    "clock": Option(_clock),
}

#: Options of the serial and of the parallel engine, so that the kind can be configured.
LOCAL: Final[Mapping[str, Option]] = {
    **COMMON,
    "cancel_grace": Option(_grace, executors.CANCEL_GRACE_SECONDS),
    "executor": Option(),
    "max_workers": Option(_count),
    "wait_timeout": Option(),
}

#: Arguments of `WorkerTaskExecutor`, which defines their defaults.
WORKER_EXECUTOR: Final[Mapping[str, Option]] = {
    **dict.fromkeys(("url", "exchange", "transport", "transport_options"), Option()),
    **dict.fromkeys(("retry_options", "interop", "ledger", "keys"), Option()),
    "topics": Option(_names_in),
    "transition_timeout": Option(_seconds),
    "worker_expiry": Option(_seconds),
    "timelimit": _TIMELIMIT,
    **dict.fromkeys(("on_worker_lost", "max_resends", "max_message_size"), Option(_parse_word)),
    **dict.fromkeys(("broker_persistent", "result_ttl", "trace_arguments"), Option(_parse_word)),
}

WORKER_BASED: Final[Mapping[str, Option]] = {
    **COMMON,
    **WORKER_EXECUTOR,
    "executor": Option(),
}
