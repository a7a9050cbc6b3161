"""Retry controllers: atoms that decide what happens after a failure in their flow.

A retry controller runs before the members of its flow and may provide values for them. After a
failure of a member it decides whether the flow runs again.
"""

from __future__ import annotations

import abc
import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from wbengine import atom, exceptions
from wbengine._introspection import binding
from wbengine._text import durations
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

#: Names of arguments that the engine passes to the methods of retry controllers.
EXECUTE_REVERT_HISTORY: Final = "history"
REVERT_FLOW_FAILURES: Final = atom.REVERT_FLOW_FAILURES


class Decision(enum.StrEnum):
    """Decisions of a retry controller after a failure in its flow."""

    #: Give up. The surrounding retry controller decides; if there is none, everything is reverted.
    REVERT = "REVERT"
    #: Revert everything.
    REVERT_ALL = "REVERT_ALL"
    #: Revert this flow and run it again.
    RETRY = "RETRY"


REVERT: Final = Decision.REVERT
REVERT_ALL: Final = Decision.REVERT_ALL
RETRY: Final = Decision.RETRY

Outcomes = Mapping[str, ft.Failure]

#: Number of attempts in the history of a controller without a maximum number of attempts.
_MAX_HISTORY: Final = 20


class History:
    """The values that a retry controller provided, and the failures of each attempt, oldest first.

    Read-only. Iteration yields `(provided, {atom name: Failure})`.

    :ivar elapsed: seconds since the first attempt began, for a controller with `retry_for`.
    :ivar attempts: number of attempts. With `attempts=None` or `retries=None`, the history contains
        only the latest ones.
    """

    __slots__ = ("_contents", "_failure", "attempts", "elapsed")

    def __init__(
        self,
        contents: Sequence[tuple[Any, Outcomes]],
        failure: ft.Failure | None = None,
        *,
        elapsed: float = 0.0,
        dropped: int = 0,
    ) -> None:
        self._contents = contents
        self._failure = failure
        self.elapsed: Final = elapsed
        self.attempts: Final = len(contents) + dropped

    @property
    def failure(self) -> ft.Failure | None:
        """The failure of the retry controller itself, or None."""
        return self._failure

    def provided_iter(self) -> Iterator[Any]:
        """Iterate over the provided values, one for each attempt."""
        for provided, _ in self._contents:
            yield provided

    def outcomes_iter(self, index: int | None = None) -> Iterator[tuple[str, ft.Failure]]:
        """Iterate over `(atom name, Failure)` of all attempts, or of the attempt at `index`."""
        attempts = self._contents if index is None else [self._contents[index]]
        for _, outcomes in attempts:
            yield from outcomes.items()

    def caused_by(
        self,
        exception_cls: type[BaseException] | str,
        index: int | None = None,
        include_retry: bool = False,
    ) -> bool:
        """Return True if a failure, of any attempt or of attempt `index`, is such an exception.

        :param include_retry: include the failure of the retry controller itself.
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
    """The base class of retry controllers. The parameters are those of `Atom`.

    Without a name, a retry controller is named after its flow. It always runs in the thread of the
    engine.
    """

    _REVERT_IGNORES: ClassVar[tuple[str, ...]] = (
        atom.REVERT_RESULT,
        REVERT_FLOW_FAILURES,
        EXECUTE_REVERT_HISTORY,
    )
    _NEVER_ASYNC: ClassVar[tuple[str, ...]] = ("execute", "revert", "on_failure", "wait")

    #: Name of the task whose `retries` it implements. None: it belongs to a flow.
    _of_task: str | None = None
    #: Maximum number of attempts in the stored history.
    _max_history: int | None = None
    #: Seconds after the start of the first attempt after which no other one starts.
    _retry_for: float = math.inf

    def __init__(
        self,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
    ) -> None:
        super().__init__(
            name, provides, requires, auto_extract, rebind, ignore_list=[EXECUTE_REVERT_HISTORY]
        )

    @abc.abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an attempt. The return value is provided to the flow.

        The arguments are `history` (the earlier attempts) and the named values. If this raises an
        exception, the surrounding retry controller decides.
        """

    def revert(self, *args: Any, **kwargs: Any) -> Any:
        """Clean up after the retry controller gave up and its flow was reverted.

        The arguments are `history`, `flow_failures` and named values, as far as it accepts them.
        """

    @abc.abstractmethod
    def on_failure(self, *args: Any, **kwargs: Any) -> Decision | str:
        """Return `RETRY`, `REVERT` or `REVERT_ALL` after a failure in the flow.

        The arguments are those of `execute`. The last attempt in `history` is the failed one. This
        is called for each failure. If the decisions for an attempt differ, `REVERT_ALL` takes
        precedence over `REVERT`, and `REVERT` over `RETRY`.
        """

    def wait(self, history: History) -> float:
        """Return the seconds to wait before the flow runs again. `history` is never empty.

        Called once for each RETRY, after the flow was reverted. The wait blocks neither the engine
        nor other branches, and continues after a suspension and in another process. An exception is
        a failure, as in `execute`.
        """
        return 0.0

    def _check_elapsed(self, history: History) -> None:
        """Check that an attempt may still start.

        :raises Exception: the latest failure in the history, if not.
        """


class AlwaysRevert(Retry):
    """Never retries. The surrounding controller decides; without one, everything is reverted."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def on_failure(self, *args: Any, **kwargs: Any) -> Decision:
        return REVERT


class AlwaysRevertAll(Retry):
    """Never retries. Everything is reverted."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return None

    def on_failure(self, *args: Any, **kwargs: Any) -> Decision:
        return REVERT_ALL


class Counted(Retry):
    """Base class of retry controllers with a limited number of attempts.

    :param revert_all: when giving up, revert everything without asking the surrounding controller.
    :param backoff: the wait before each further attempt. A number is a constant wait in seconds.
    :param retry_on: retry only if every failure of the attempt is one of these, or an exception
        group whose members all are.
    :param give_up_on: give up if any failure of the attempt is one of these, or an exception group
        with such a member.
    :raises TypeError: if `backoff`, `retry_on` or `give_up_on` has a wrong type.
    :raises ValueError: if a name in `retry_on` or `give_up_on` cannot be the name of a class.

    The failures of an attempt are those of the members of the flow. If a nested flow has its own
    retry controller, a failure inside it counts as a failure of that controller.
    """

    def __init__(
        self,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_for: float | str | None = None,
    ) -> None:
        super().__init__(name, provides, requires, auto_extract, rebind)
        self._revert_action = REVERT_ALL if revert_all else REVERT
        self._backoff = Backoff.of(backoff)
        self._retry_on = None if retry_on is None else _errors("retry_on", retry_on)
        self._give_up_on = () if give_up_on is None else _errors("give_up_on", give_up_on)
        if retry_for is not None:
            self._retry_for = durations.seconds_of(retry_for)

    def wait(self, history: History) -> float:
        if self._backoff is None:
            return 0.0
        seconds = self._backoff.seconds(history.attempts)
        is_in_time = history.elapsed + seconds <= self._retry_for
        return seconds if is_in_time else self._shortest_wait(history)

    def _shortest_wait(self, history: History) -> float:
        return 0.0 if self._backoff is None else self._backoff.shortest(history.attempts)

    def _decide(self, history: History, left: bool) -> Decision:
        is_in_time = (
            self._retry_for == math.inf
            or history.elapsed + self._shortest_wait(history) <= self._retry_for
        )
        is_retried = left and is_in_time and self._is_retryable(history)
        return RETRY if is_retried else self._revert_action

    def _check_elapsed(self, history: History) -> None:
        if history.elapsed <= self._retry_for:
            return
        for _, failure in history.outcomes_iter(-1):
            failure.reraise()

    def _is_retryable(self, history: History) -> bool:
        if self._retry_on is None and not self._give_up_on:
            return True
        failures = [failure for _, failure in history.outcomes_iter(-1)]
        if any(_matches(failure, self._give_up_on, any) for failure in failures):
            return False
        retried_errors = self._retry_on
        return retried_errors is None or all(
            _matches(failure, retried_errors, all) for failure in failures
        )


def _matches(
    failure: ft.Failure,
    errors: Sequence[type[BaseException] | str],
    quantifier: Callable[[Iterable[bool]], bool],
) -> bool:
    """Return whether a failure, or any or all members of an exception group, are such errors."""
    if failure.check(*errors) is not None:
        return True
    return bool(failure.members) and quantifier(
        _matches(member, errors, quantifier) for member in failure.members
    )


class Times(Counted):
    """Makes at most `attempts` attempts. It provides the number of the attempt, from 1.

    The other parameters are those of `Counted`.

    :param attempts: None: any number within `retry_for`, which is then required. The history
        contains the latest 20.
    """

    def __init__(
        self,
        attempts: int | None = 1,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_for: float | str | None = None,
    ) -> None:
        if attempts is None:
            if retry_for is None:
                raise TypeError("attempts of a Times retry must be an int, got None: set retry_for")
            self._max_history = _MAX_HISTORY
        elif not isinstance(attempts, int) or isinstance(attempts, bool):
            raise TypeError(f"attempts of a Times retry must be an int, got {attempts!r}")
        elif attempts < 0:
            raise ValueError(f"attempts of a Times retry must be 0 or more, got {attempts}")
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
            retry_for=retry_for,
        )
        self._attempts = math.inf if attempts is None else attempts

    def on_failure(self, history: History, *args: Any, **kwargs: Any) -> Decision:
        return self._decide(history, history.attempts < self._attempts)

    def execute(self, history: History, *args: Any, **kwargs: Any) -> int:
        return history.attempts + 1


class ForEachBase(Counted):
    """Base class of retry controllers that iterate over values; see `Counted`."""

    def _get_next_value(self, values: Iterable[Any], history: History) -> Any:
        """Return the first of `values` that no earlier attempt provided. Equal values count each.

        :raises NotFound: if all were provided.
        :raises TypeError: if `values` is not iterable.
        """
        if not isinstance(values, Iterable):
            raise TypeError(f"values of retry {self.name!r} must be an iterable, got {values!r}")
        tried = list(history.provided_iter())
        for value in values:
            if value not in tried:
                return value
            tried.remove(value)
        raise exceptions.NotFound(f"Retry {self.name} has no more values")

    def _on_failure(self, values: Iterable[Any], history: History) -> Decision:
        try:
            self._get_next_value(values, history)
        except exceptions.NotFound:
            return self._revert_action
        return self._decide(history, True)


class ForEach(ForEachBase):
    """Provides the next of `values` in each attempt, until the flow succeeds.

    The other parameters are those of `Counted`.
    """

    def __init__(
        self,
        values: Iterable[Any],
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        revert_all: bool = False,
        *,
        backoff: Backoff | float | None = None,
        retry_on: Errors | None = None,
        give_up_on: Errors | None = None,
        retry_for: float | str | None = None,
    ) -> None:
        if not isinstance(values, Iterable):
            raise TypeError(f"values of a ForEach retry must be an iterable, got {values!r}")
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
            retry_for=retry_for,
        )
        # A list, because an iterator can be used only once.
        self._values = list(values)

    def on_failure(self, history: History, *args: Any, **kwargs: Any) -> Decision:
        return self._on_failure(self._values, history)

    def execute(self, history: History, *args: Any, **kwargs: Any) -> Any:
        return self._get_next_value(self._values, history)


class ParameterizedForEach(ForEachBase):
    """Like `ForEach`, with values from the stored name `values` (or its rebound name)."""

    def on_failure(
        self, values: Iterable[Any], history: History, *args: Any, **kwargs: Any
    ) -> Decision:
        return self._on_failure(values, history)

    def execute(self, values: Iterable[Any], history: History, *args: Any, **kwargs: Any) -> Any:
        return self._get_next_value(values, history)


def _errors(option: str, wanted: Errors) -> tuple[type[BaseException] | str, ...]:
    error_list = (wanted,) if isinstance(wanted, str | type) else wanted
    errors = tuple(error_list) if isinstance(error_list, Iterable) else (error_list,)
    for error in errors:
        is_class = isinstance(error, type) and issubclass(error, BaseException)
        if not (is_class or (isinstance(error, str) and error)):
            raise TypeError(
                f"{option} must contain exception classes or their full names, got {error!r}"
            )
        if isinstance(error, str) and not all(part.isidentifier() for part in error.split(".")):
            raise ValueError(
                f"{option} must contain full names of exception classes, got {error!r}"
            )
    return errors
