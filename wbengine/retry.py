"""Retries: atoms that decide what becomes of a flow when something inside it fails.

A retry sits on a flow.  It executes before the flow's members and may provide values to them; when
one of them fails it is asked whether to run them again, and with what.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from wbengine import _binding, atom, exceptions
from wbengine.backoff import Backoff, Errors
from wbengine.types import failure as ft

__all__ = [
    "REVERT",
    "REVERT_ALL",
    "RETRY",
    "Decision",
    "AlwaysRevert",
    "AlwaysRevertAll",
    "Backoff",
    "Counted",
    "EXECUTE_REVERT_HISTORY",
    "ForEach",
    "ForEachBase",
    "History",
    "ParameterizedForEach",
    "REVERT_FLOW_FAILURES",
    "Retry",
    "Times",
]

#: Arguments of a retry's methods that the engine itself fills.
EXECUTE_REVERT_HISTORY: Final = "history"
REVERT_FLOW_FAILURES: Final = atom.REVERT_FLOW_FAILURES


class Decision(str, enum.Enum):
    """What a retry may answer when something in its flow failed."""

    #: Give up: the retry around this one decides; without one, revert everything.
    REVERT = "REVERT"
    #: Revert everything.
    REVERT_ALL = "REVERT_ALL"
    #: Revert this flow and run it again.
    RETRY = "RETRY"

    def __str__(self) -> str:
        return self.value


REVERT: Final = Decision.REVERT
REVERT_ALL: Final = Decision.REVERT_ALL
RETRY: Final = Decision.RETRY

Outcomes = Mapping[str, ft.Failure]


class History:
    """What a retry provided so far, and what became of it, oldest first.

    Iterates over `(provided, {atom name: Failure})`; read only.
    """

    __slots__ = ("_contents", "_failure")

    def __init__(
        self,
        contents: Sequence[tuple[Any, Outcomes]],
        failure: ft.Failure | None = None,
    ) -> None:
        self._contents = contents
        self._failure = failure

    @property
    def failure(self) -> ft.Failure | None:
        """The retry's own failure, if it failed itself."""
        return self._failure

    def provided_iter(self) -> Iterator[Any]:
        """What was provided, attempt by attempt."""
        for provided, _ in self._contents:
            yield provided

    def outcomes_iter(self, index: int | None = None) -> Iterator[tuple[str, ft.Failure]]:
        """`(atom name, Failure)` of all attempts, or of the one at `index`."""
        attempts = self._contents if index is None else [self._contents[index]]
        for _, outcomes in attempts:
            yield from outcomes.items()

    def caused_by(
        self,
        exception_cls: type[BaseException] | str,
        index: int | None = None,
        include_retry: bool = False,
    ) -> bool:
        """Was one of the failures (of all attempts, or of the one at `index`) such an exception?

        `include_retry` looks at the retry's own failure as well.
        """
        if any(failure.check(exception_cls) for _, failure in self.outcomes_iter(index)):
            return True
        own = self._failure
        return include_retry and own is not None and own.check(exception_cls) is not None

    def __len__(self) -> int:
        return len(self._contents)

    def __getitem__(self, index: int) -> tuple[Any, Outcomes]:
        return self._contents[index]

    def __iter__(self) -> Iterator[tuple[Any, Outcomes]]:
        return iter(self._contents)

    def __repr__(self) -> str:
        return f"History({self._contents!r}, failure={self._failure!r})"


class Retry(atom.Atom):
    """The base of retries; the parameters are those of `Atom`.

    An unnamed retry is named after its flow.  Retries always run in the engine's own thread.
    """

    _REVERT_IGNORES: ClassVar[tuple[str, ...]] = (
        atom.REVERT_RESULT,
        REVERT_FLOW_FAILURES,
        EXECUTE_REVERT_HISTORY,
    )
    _NEVER_ASYNC: ClassVar[tuple[str, ...]] = ("execute", "revert", "on_failure", "wait")

    def __init__(
        self,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
    ) -> None:
        super().__init__(
            name, provides, requires, auto_extract, rebind, ignore_list=[EXECUTE_REVERT_HISTORY]
        )

    @abc.abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an attempt; what is returned is provided to the flow.

        Called with `history=`, the attempts before, and the names it asks for.  An error here is a
        failure that the retry around this one decides about.
        """

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        """Called when the retry gave up, after its flow was reverted.

        Takes `history` and `flow_failures`, and the names it asks for.
        """

    @abc.abstractmethod
    def on_failure(self, *args: Any, **kwargs: Any) -> Decision | str:
        """Something in the flow failed: answer `RETRY`, `REVERT` or `REVERT_ALL`.

        Called as `execute` is; the last attempt in `history` is the one that failed.  Called for
        each failure, also when it answered before that one came: the widest answer counts.
        """

    def wait(self, history: History) -> float:
        """How many seconds to wait before the flow runs again; `history` is never empty.

        Asked once for each RETRY, when everything in the flow is reverted.  The wait holds up
        nothing else: not the engine's loop, not other branches.  It goes on where it was after a
        suspension, and in another process.  An error here is a failure as one of `execute` is.
        """
        return 0.0


class AlwaysRevert(Retry):
    """Never tries again; asks the retry around it, or reverts everything."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def on_failure(self, *args: Any, **kwargs: Any) -> Decision:
        return REVERT


class AlwaysRevertAll(Retry):
    """Never tries again; reverts everything."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def on_failure(self, *args: Any, **kwargs: Any) -> Decision:
        return REVERT_ALL


class Counted(Retry):
    """What the retries that try so many times and then give up share.

    :param revert_all: when it gives up, revert everything without asking the retry around it.
    :param backoff: the wait before each further attempt; a number is the same wait each time.
    :param retry_on: tries again only when every failure of the attempt is one of these.
    :param give_up_on: gives up at once when a failure of the attempt is one of these.
    :raises TypeError: when `backoff`, `retry_on` or `give_up_on` is something else.
    :raises ValueError: when a name in `retry_on` or `give_up_on` cannot be one of a class.

    The failures of an attempt are those of its members; of a flow inside that has a retry of its
    own, what failed there counts as the failure of that retry.
    """

    def __init__(
        self,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
    ) -> None:
        super().__init__(name, provides, requires, auto_extract, rebind)
        self._revert_action = REVERT_ALL if revert_all else REVERT
        self._backoff = Backoff.of(backoff)
        self._retry_on = None if retry_on is None else _errors("retry_on", retry_on)
        self._give_up_on = () if give_up_on is None else _errors("give_up_on", give_up_on)

    def wait(self, history: History) -> float:
        return 0.0 if self._backoff is None else self._backoff.seconds(len(history))

    def _decide(self, history: History, left: bool) -> Decision:
        """RETRY if anything is `left` to try, and what failed is worth it."""
        return RETRY if left and self._worth_it(history) else self._revert_action

    def _worth_it(self, history: History) -> bool:
        if self._retry_on is None and not self._give_up_on:
            return True
        failures = [failure for _, failure in history.outcomes_iter(-1)]
        if any(failure.check(*self._give_up_on) is not None for failure in failures):
            return False
        wanted = self._retry_on
        return wanted is None or all(failure.check(*wanted) is not None for failure in failures)


class Times(Counted):
    """Tries `attempts` times in all; provides the number of the attempt, from 1.

    The other parameters are those of `Counted`.
    """

    def __init__(
        self,
        attempts: int = 1,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
    ) -> None:
        if not isinstance(attempts, int) or isinstance(attempts, bool):
            raise TypeError(f"The attempts of a Times retry must be an int, not {attempts!r}")
        if attempts < 0:
            raise ValueError(f"The attempts of a Times retry cannot be negative, as {attempts} is")
        super().__init__(
            name,
            provides,
            requires,
            auto_extract,
            rebind,
            revert_all,
            backoff=backoff,
            retry_on=retry_on,
            give_up_on=give_up_on,
        )
        self._attempts = attempts

    def on_failure(self, history: History, *args: Any, **kwargs: Any) -> Decision:
        return self._decide(history, len(history) < self._attempts)

    def execute(self, history: History, *args: Any, **kwargs: Any) -> int:
        return len(history) + 1


class ForEachBase(Counted):
    """What the retries that go through values share; the parameters are those of `Counted`."""

    def _get_next_value(self, values: Iterable[Any], history: History) -> Any:
        """The first of `values` that was not provided yet; each try uses up one equal value.

        :raises NotFound: all were.
        :raises TypeError: nothing that can be gone through.
        """
        if not isinstance(values, Iterable):
            raise TypeError(
                f"The values of retry {self.name!r} must be an iterable, not {values!r}"
            )
        tried = list(history.provided_iter())
        for value in values:
            if value not in tried:
                return value
            tried.remove(value)
        raise exceptions.NotFound(f"No value is left for retry {self.name} to try")

    def _on_failure(self, values: Iterable[Any], history: History) -> Decision:
        try:
            self._get_next_value(values, history)
        except exceptions.NotFound:
            return self._revert_action
        return self._decide(history, True)


class ForEach(ForEachBase):
    """Provides one of `values` after the other, as long as the flow fails.

    The other parameters are those of `Counted`.
    """

    def __init__(
        self,
        values: Iterable[Any],
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
    ) -> None:
        if not isinstance(values, Iterable):
            raise TypeError(f"The values of a ForEach retry must be an iterable, not {values!r}")
        super().__init__(
            name,
            provides,
            requires,
            auto_extract,
            rebind,
            revert_all,
            backoff=backoff,
            retry_on=retry_on,
            give_up_on=give_up_on,
        )
        # An iterator could be gone through only once.
        self._values = list(values)

    def on_failure(self, history: History, *args: Any, **kwargs: Any) -> Decision:
        return self._on_failure(self._values, history)

    def execute(self, history: History, *args: Any, **kwargs: Any) -> Any:
        return self._get_next_value(self._values, history)


class ParameterizedForEach(ForEachBase):
    """As `ForEach`, with the stored name `values` (or what it is rebound to) as values."""

    def on_failure(
        self, values: Iterable[Any], history: History, *args: Any, **kwargs: Any
    ) -> Decision:
        return self._on_failure(values, history)

    def execute(self, values: Iterable[Any], history: History, *args: Any, **kwargs: Any) -> Any:
        return self._get_next_value(values, history)


def _errors(option: str, wanted: Errors) -> tuple[type[BaseException] | str, ...]:
    """Read `retry_on` or `give_up_on`."""
    several = (wanted,) if isinstance(wanted, str | type) else wanted
    found = tuple(several) if isinstance(several, Iterable) else (several,)
    for error in found:
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not (is_class or (isinstance(error, str) and error)):
            raise TypeError(f"{option} takes exception classes and their full names, not {error!r}")
        if isinstance(error, str) and not all(part.isidentifier() for part in error.split(".")):
            raise ValueError(f"{option}={error!r} is not the full name of an exception class")
    return found
