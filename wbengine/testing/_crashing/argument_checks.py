"""Checks of the arguments of `crash_everywhere`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wbengine import states
from wbengine._introspection import object_names
from wbengine.testing._crashing.outcome import OwnCheck, PlannedSignal
from wbengine.testing._worlds.world import World

__all__ = [
    "check_choice",
    "check_limits",
    "check_real_runs",
    "checks",
    "exceptions",
    "signals",
    "worlds",
]


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError if a value is not one of the choices."""
    allowed = list(choices)
    if value not in allowed:
        hint = object_names.hint(str(value), allowed)
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r:.80}{hint}")


def check_limits(budget: object, max_runs: object) -> None:
    """Raise TypeError or ValueError if a limit is not a positive number."""
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise TypeError(f"budget must be a number of seconds, got {budget!r:.80}")
    if max_runs is not None and (isinstance(max_runs, bool) or not isinstance(max_runs, int)):
        raise TypeError(f"max_runs must be a whole number or None, got {max_runs!r:.80}")
    if not budget > 0 or (max_runs is not None and max_runs < 1):
        raise ValueError(f"budget and max_runs must be positive, got {budget!r} and {max_runs!r}")


def check_real_runs(real_runs: object, engine: str, end: str) -> None:
    """Raise TypeError or ValueError if runs with real processes are not possible."""
    if isinstance(real_runs, bool) or not isinstance(real_runs, int) or real_runs < 0:
        raise TypeError(f"real_runs must be a whole number of at least 0, got {real_runs!r:.80}")
    if real_runs and (not hasattr(os, "fork") or engine != "worker-based" or end == states.WAITING):
        raise ValueError(
            "real_runs must be 0 without os.fork, if engine is 'serial', and if end is 'WAITING'"
        )


def worlds(given: World | Iterable[World]) -> list[World]:
    found = [given] if isinstance(given, World) else list(given)
    for each in found:
        if not isinstance(each, World):
            raise TypeError(f"world must be a World, or several, got {each!r:.80}")
    return found


def signals(given: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[PlannedSignal]:
    pairs = list(given.items() if isinstance(given, Mapping) else given)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(f"signals must be values by name, or pairs of both, got {pair!r:.80}")
    counts = Counter[str]()
    planned = []
    for name, value in pairs:
        counts[name] += 1
        label = name if counts[name] == 1 else f"{name} {counts[name]}"
        planned.append(PlannedSignal(label, name, value))
    return planned


def exceptions(
    given: Mapping[str, Sequence[type[Exception]]] | None,
) -> dict[str, Sequence[type[Exception]]]:
    for name, classes in (given or {}).items():
        for each in classes if isinstance(classes, list | tuple) else [None]:
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise TypeError(
                    f"exceptions[{name!r}] must be a list of classes of exceptions,"
                    f" got {classes!r:.80}"
                )
    return dict(given or {})


def checks(given: OwnCheck | Iterable[OwnCheck]) -> list[OwnCheck]:
    found = [given] if callable(given) else list(given)
    for each in found:
        if not callable(each):
            raise TypeError(f"checks must be functions, got {each!r:.80}")
    return found
