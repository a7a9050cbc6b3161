"""The options of engines: which kind takes which, how each is read, and its default.

Values are words when they come by URI (`parallel://?max_workers=4`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import _options
from wbengine.concurrency import limits
from wbengine.engines import differences, ownership
from wbengine.permits import stores
from wbengine.persistence import leases
from wbengine.runtime import executors, saving

__all__ = ["EVERY", "LOCAL", "WORKER_BASED", "WORKER_EXECUTOR", "Option", "read"]


def _as_it_is(name: str, value: Any) -> Any:
    return value


class Option(NamedTuple):
    """One option: `read(name, value)` gives its value, or raises an error that names both."""

    read: Callable[[str, Any], Any] = _as_it_is
    default: Any = None


def read(kind: str, known: Mapping[str, Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all options that a kind of engine takes: those that are given, and defaults.

    :raises ValueError: the kind does not take one, or cannot have such a value; the text names it.
    :raises TypeError: a value is of a wrong type.
    """
    _options.check_known(kind, given, known)
    return {
        name: option.read(name, given[name]) if name in given else option.default
        for name, option in known.items()
    }


def _choice(words: Sequence[str]) -> Option:
    """One of some words; the first is the default."""
    return Option(lambda name, value: _options.choice(name, value, words), words[0])


def _limit(name: str, value: Any) -> limits.TimeLimit:
    return limits.read(value, f"Option {name}")


def _grace(name: str, value: Any) -> float | None:
    return None if _is_none(value) else _options.number(name, value)


def _count(name: str, value: Any) -> int | None:
    return None if value is None else _options.whole(name, value, least=1)


def _seconds(name: str, value: Any) -> float | None:
    """Seconds, or None; workers never expire after none or less, as in TaskFlow."""
    if _is_none(value):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds) or (seconds < 0 and name != "worker_expiry"):
        raise ValueError(f"Option {name} must be a number of seconds or None, not {value!r}")
    return seconds


def _limits_url(name: str, value: Any) -> str | None:
    return None if _is_none(value) else stores.check_url(value)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "none")


def _names_in(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(filter(None, map(str.strip, value.split(","))))


def _plain(name: str, value: Any) -> Any:
    """What a word says; the executor checks it."""
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
_TIMELIMIT: Final = Option(_limit, limits.UNLIMITED)
_OFF, _ON = Option(_options.flag, False), Option(_options.flag, True)

#: Of every kind.
EVERY: Final[Mapping[str, Option]] = {
    "never_resolve": _OFF,
    "defer_reverts": _ON,
    "inject_transient": _ON,
    "gather_statistics": _ON,
    "migrate": Option(lambda _, value: differences.hook(value)),
    "local_tasks": Option(),
    "durability": _choice(saving.LEVELS),
    "keep_logs": _ON,
    "on_busy": _choice(ownership.ON_BUSY),
    "lease": Option(_options.number, leases.LEASE_SECONDS),
    "limits": Option(_limits_url),
    "strict_results": _OFF,
    "timelimit": _TIMELIMIT,
}

#: Of the serial engine and of the parallel one, so that which it is can be configured.
LOCAL: Final[Mapping[str, Option]] = {
    **EVERY,
    "cancel_grace": Option(_grace, executors.CANCEL_GRACE),
    "executor": Option(),
    "max_workers": Option(_count),
    "wait_timeout": Option(),
}

#: What a `WorkerTaskExecutor` is made with, which has the defaults.
WORKER_EXECUTOR: Final[Mapping[str, Option]] = {
    **dict.fromkeys(("url", "exchange", "transport", "transport_options"), Option()),
    **dict.fromkeys(("retry_options", "interop", "ledger", "keys"), Option()),
    "topics": Option(_names_in),
    "transition_timeout": Option(_seconds),
    "worker_expiry": Option(_seconds),
    "timelimit": _TIMELIMIT,
    **dict.fromkeys(("on_worker_lost", "max_resends", "max_message_size"), Option(_plain)),
    **dict.fromkeys(("broker_persistent", "result_ttl", "trace_arguments"), Option(_plain)),
}

#: Of the engine whose tasks run on workers.
WORKER_BASED: Final[Mapping[str, Option]] = {
    **EVERY,
    **WORKER_EXECUTOR,
    "executor": Option(),
}
