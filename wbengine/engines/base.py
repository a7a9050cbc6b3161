"""What every engine can do, and how its options are read."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from wbengine import _names
from wbengine import storage as storage_module
from wbengine.persistence import base as persistence
from wbengine.persistence import models
from wbengine.types import notifier as notifier_module

__all__ = ["Engine", "flag"]

_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "t", "true", "on", "y", "yes"), True),
    **dict.fromkeys(("0", "f", "false", "off", "n", "no"), False),
}


def flag(name: str, value: Any) -> bool:
    """Read a boolean option, which may be a word ('true', 'no', ...) when it came by URI."""
    if isinstance(value, str):
        try:
            return _FLAGS[value.strip().lower()]
        except KeyError:
            raise ValueError(
                f"Option {name}={value!r} is neither true nor false ({', '.join(_FLAGS)})"
            ) from None
    return bool(value)


class Engine(abc.ABC):
    """Runs one flow: `compile`, `prepare`, `validate`, then `run` (which does the former itself).

    `notifier` tells of the flow's changes of state, `atom_notifier` of those of its tasks and
    retries.  Listeners are called in the engine's thread.
    """

    #: The options a kind of engine knows, besides those of its base classes.
    OPTIONS: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._flow = flow
        self._flow_detail = flow_detail
        self._backend = backend
        self._options = dict(options or {})
        self._check_options()
        self._notifier = notifier_module.Notifier()
        self._atom_notifier = notifier_module.Notifier()

    @classmethod
    def known_options(cls) -> frozenset[str]:
        """The names of all options this kind of engine understands."""
        return frozenset().union(*(vars(kind).get("OPTIONS", ()) for kind in cls.__mro__))

    def _check_options(self) -> None:
        known = self.known_options()
        for name in self._options:
            if name not in known:
                raise ValueError(
                    f"{type(self).__name__} has no option {name!r}{_names.hint(name, known)};"
                    f" it knows: {', '.join(sorted(known))}"
                )

    @property
    def flow(self) -> Any:
        return self._flow

    @property
    def options(self) -> Mapping[str, Any]:
        """The options the engine was made with."""
        return self._options

    @property
    def notifier(self) -> notifier_module.Notifier:
        """Tells of the flow's changes of state."""
        return self._notifier

    @property
    def atom_notifier(self) -> notifier_module.Notifier:
        """Tells of the atoms' changes of state."""
        return self._atom_notifier

    @property
    @abc.abstractmethod
    def storage(self) -> storage_module.Storage:
        """What is known of this run."""

    @property
    @abc.abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Figures of the current or latest run."""

    @abc.abstractmethod
    def compile(self) -> None:
        """Turn the flow into what the engine runs; does nothing the second time."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make sure that every atom has its record; a flow that was reverted starts anew.

        Raises `InvalidState` before `compile`.
        """

    @abc.abstractmethod
    def validate(self) -> None:
        """Raise `MissingDependencies` when an atom needs what nothing provides.

        Raises `InvalidState` before `prepare`.
        """

    @abc.abstractmethod
    def run(self, timeout: float | None = None) -> None:
        """Run the flow to an end state, or to SUSPENDED; raise what it failed with."""

    @abc.abstractmethod
    def run_iter(self, timeout: float | None = None) -> Iterator[str]:
        """Run the flow, and yield the states of the run loop."""

    @abc.abstractmethod
    def suspend(self) -> None:
        """Let nothing more start; what runs finishes, then the flow is SUSPENDED."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget all results, so that the next run starts anew."""
