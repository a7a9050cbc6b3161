"""All exceptions of wbengine.

The tree (names and places are those of TaskFlow; `*` marks new ones)::

    Exception
    ├── WrappedFailure
    └── WbengineException                (also available as TaskFlowException)
        ├── StorageFailure
        │   ├── CorruptRecord *
        │   └── LedgerFailure *
        ├── ConductorFailure
        ├── JobFailure
        │   └── UnclaimableJob
        ├── ExecutionFailure
        │   ├── RequestTimeout
        │   │   └── NeverStarted *
        │   ├── InvalidState
        │   ├── DeadlineExceeded *
        │   ├── Cancelled *
        │   ├── Expired *
        │   ├── SoftTimeLimitExceeded *
        │   ├── TimeLimitExceeded *
        │   ├── FlowBusy *
        │   ├── LeaseLost *
        │   └── WorkerLost *
        ├── DependencyFailure
        │   ├── AmbiguousDependency
        │   └── MissingDependencies
        ├── CompilationFailure
        │   └── NotAFlow *               (also a TypeError)
        ├── IncompatibleVersion
        ├── Duplicate
        ├── NotFound
        ├── Empty
        ├── MultipleChoices
        ├── InvalidFormat
        │   ├── NotEncodable *
        │   └── TooLarge *
        ├── NotTrusted *
        ├── TransportFailure *
        └── DisallowedAccess
    NotImplementedError                  (a subclass of the builtin)

All of them preserve their attributes when they are pickled.
"""

from __future__ import annotations

import builtins
import copyreg
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from wbengine import _names

#: Maximum number of causes that `pformat` prints. Chains may be circular or very long.
_MAX_CAUSES = 100


class WbengineException(Exception):
    """The base class of all errors of this package.

    `cause` is the exception (or any object) that caused this one. `str()` shows the whole chain of
    causes, one in each line, with increasing indentation.
    """

    # A class attribute too, for exceptions that were created from descriptions.
    _cause: BaseException | None = None

    def __init__(self, message: str = "", cause: BaseException | None = None) -> None:
        super().__init__(message)
        self._cause = cause

    @property
    def cause(self) -> BaseException | None:
        return self._cause

    def __str__(self) -> str:
        return self.pformat()

    def __reduce__(self) -> tuple[Any, ...]:
        # Bypasses __init__, because subclasses have other parameters than the final message.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def _own_message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def pformat(
        self, indent: int = 2, indent_text: str = " ", show_root_class: bool = False
    ) -> str:
        """Return the message, and below it the chain of causes, each indented by `indent` more.

        The chain continues only through errors of this package; any other cause ends it.
        """
        if indent < 0:
            raise ValueError(f"indent must be 0 or more, got {indent}")
        first = self._own_message()
        lines = [f"{type(self).__name__}: {first}" if show_root_class else first]
        seen = {id(self)}
        cause = self.cause
        while cause is not None and id(cause) not in seen:
            if len(seen) > _MAX_CAUSES:
                lines.append(indent_text * (indent * len(seen)) + "...")
                break
            margin = indent_text * (indent * len(seen))
            seen.add(id(cause))
            if isinstance(cause, WbengineException):
                lines.append(f"{margin}{type(cause).__name__}: {cause._own_message()}")
                cause = cause.cause
            else:
                lines.extend(margin + line for line in _describe(cause).splitlines())
                cause = None
        return "\n".join(lines)


def _describe(cause: Any) -> str:
    if isinstance(cause, BaseException):
        return "".join(traceback.format_exception_only(type(cause), cause))
    return str(cause)


#: The name of the base class in TaskFlow.
TaskFlowException = WbengineException


def raise_with_cause(
    exc_cls: type[WbengineException], message: str, *args: Any, **kwargs: Any
) -> NoReturn:
    """Raise `exc_cls(message, *args, **kwargs)`, caused by the exception being handled, if any.

    A `cause` in `kwargs` replaces the current exception.
    """
    cause = kwargs.setdefault("cause", sys.exc_info()[1])
    raise exc_cls(message, *args, **kwargs) from cause


class StorageFailure(WbengineException):
    """A failed read or write of the store."""


class CorruptRecord(StorageFailure):
    """A record is damaged or has an unknown format. The record was not changed.

    `path` names the file (or table and row), `flow` the uuid of its flow, if known. Other flows can
    still be read.
    """

    path: str = ""
    flow: str | None = None

    def __init__(
        self,
        message: str = "",
        cause: BaseException | None = None,
        *,
        path: str = "",
        flow: str | None = None,
    ) -> None:
        super().__init__(message or f"{path} is damaged", cause)
        self.path = path
        self.flow = flow


class LedgerFailure(StorageFailure):
    """A failed read or write of a ledger."""


class ConductorFailure(WbengineException):
    """A conductor failed."""


class JobFailure(WbengineException):
    """A job or a job board failed."""


class UnclaimableJob(JobFailure):
    """Another process owns the job."""


class ExecutionFailure(WbengineException):
    """The execution of a flow or atom failed for a reason outside of the atom's own code."""


class RequestTimeout(ExecutionFailure):
    """No worker claimed the request in time."""


class NeverStarted(RequestTimeout):
    """No worker claimed the request in time, and none will: there is nothing to revert."""


class InvalidState(ExecutionFailure):
    """The operation or transition is not allowed in the current state."""


class DeadlineExceeded(ExecutionFailure):
    """The deadline of the run passed before the flow ended.

    `cause` is the failure of the flow, if it also failed.
    """


class Cancelled(ExecutionFailure):
    """A task or its flow was cancelled (`engine.cancel`)."""


class Expired(ExecutionFailure):
    """The task was not started, because its `expires` moment had passed."""


class SignalTimeout(ExecutionFailure):
    """The signal of a `task.WaitFor` did not arrive in time."""


class SoftTimeLimitExceeded(ExecutionFailure):
    """Raised in a task after its soft time limit: it may clean up and should then end."""

    # Another thread raises it, without arguments.
    def __init__(self, message: str = "the soft time limit has expired", cause: Any = None) -> None:
        super().__init__(message, cause)


class TimeLimitExceeded(ExecutionFailure):
    """A task was stopped, or given up, after its hard time limit; its effects are unknown."""

    def __init__(self, message: str = "the hard time limit has expired", cause: Any = None) -> None:
        super().__init__(message, cause)


class FlowBusy(ExecutionFailure):
    """Another process runs the flow, or changes it for longer than the permitted wait.

    `owner` is the owner of the lease, `epoch` its epoch, and `seconds` the time after which the
    lease expires unless it is renewed.
    """

    owner: str = ""
    epoch: int = 0
    seconds: float = 0.0

    def __init__(
        self,
        message: str = "",
        cause: BaseException | None = None,
        *,
        owner: str = "",
        epoch: int = 0,
        seconds: float = 0.0,
    ) -> None:
        super().__init__(message or f"the flow is run by {owner}", cause)
        self.owner = owner
        self.epoch = epoch
        self.seconds = seconds


class LeaseLost(ExecutionFailure):
    """Another process took the flow over, or the flow was deleted: this run writes nothing more."""


class WorkerLost(ExecutionFailure):
    """The worker that ran the task was lost; it is unknown whether the task finished."""


class DependencyFailure(WbengineException):
    """The links between the members of a flow are invalid."""


class AmbiguousDependency(DependencyFailure):
    """Several members provide a required name, and no rule selects one of them."""


class MissingDependencies(DependencyFailure):
    """`who` requires names that nothing provides.

    :param requirements: the missing names.
    :param method: the method that needs them: 'execute' or 'revert'.
    :param available: names to search for similar ones.
    :param askers: descriptions of the arguments and atoms that need the names.
    """

    #: A set if a set was given, otherwise a list.
    missing_requirements: Iterable[str] = ()

    def __init__(
        self,
        who: Any,
        requirements: Iterable[str],
        cause: BaseException | None = None,
        method: str | None = None,
        *,
        available: Iterable[str] = (),
        askers: Iterable[str] = (),
    ) -> None:
        names = list(requirements)
        choices = list(available)
        # No hint for a name that exists but is provided too late: the nearest name would be itself.
        missing_names = ", ".join(
            repr(name) if name in choices else f"{name!r}{_names.hint(str(name), choices)}"
            for name in names
        )
        where = f"{method!r} of " if method else ""
        told_who = str(who)
        if not told_who.startswith('"'):  # atoms and flows contain their own quotes
            told_who = f"'{told_who}'"
        late = all(name in choices for name in names)
        asker_names = ", ".join(askers)
        super().__init__(
            f"{where}{told_who} requires {missing_names}, but nothing"
            f" {'before it ' if late else ''}provides it"
            + (f" (requested as {asker_names})" if asker_names else ""),
            cause,
        )
        self.missing_requirements = (
            requirements if isinstance(requirements, set | frozenset) else names
        )


class CompilationFailure(WbengineException):
    """A flow cannot be compiled."""


class NotAFlow(CompilationFailure, TypeError):
    """The object to compile is neither a flow nor a task."""


class IncompatibleVersion(WbengineException):
    """Two versions are incompatible."""


class Duplicate(WbengineException):
    """A name that must be unique is used twice."""


class NotFound(WbengineException):
    """Something with this name or number does not exist."""


class Empty(WbengineException):
    """A collection is empty although at least one element is required."""


class MultipleChoices(WbengineException):
    """There is more than one element although exactly one is required."""


class InvalidFormat(WbengineException):
    """Data has an invalid format."""


class NotEncodable(InvalidFormat):
    """A value cannot be sent or stored.

    `path` is the path to the value (`result['a'][3]`), `type_name` its type.
    """

    path: str = ""
    type_name: str = ""

    def __init__(
        self,
        message: str = "",
        cause: BaseException | None = None,
        *,
        path: str = "",
        type_name: str = "",
    ) -> None:
        super().__init__(message or f"{path}: {type_name} cannot be encoded", cause)
        self.path = path
        self.type_name = type_name


class TooLarge(InvalidFormat):
    """A message exceeds the size limit; it is not sent."""


class NotTrusted(WbengineException):
    """A message or record has no valid signature, or a record names code that is not allowed."""


class TransportFailure(WbengineException):
    """The broker cannot be reached, or refused an operation."""


class DisallowedAccess(WbengineException):
    """The object exists but must not be used in `state`."""

    state: str | None = None

    def __init__(
        self, message: str = "", cause: BaseException | None = None, state: str | None = None
    ) -> None:
        super().__init__(message, cause)
        self.state = state


class NotImplementedError(builtins.NotImplementedError):
    """Deliberately not supported, unlike methods that users have to implement."""


class WrappedFailure(Exception):
    """An exception that stands for several failures, or for one without its exception.

    Iterates over its failures; a `WrappedFailure` among them is replaced by its failures. If it
    stands for a single failure, it is also an instance of that failure's type, if
    `types.failure.allow` permits.
    """

    _TOLD: Final = 10  # maximum number in its text

    def __init__(self, causes: Iterable[Any]) -> None:
        # Not super(): the next class may be that of the original exception, with other parameters.
        Exception.__init__(self)
        if not isinstance(causes, Iterable):
            raise TypeError(f"WrappedFailure causes must be a list of failures, got {causes!r}")
        flat: list[Any] = []
        for cause in causes:
            if not hasattr(cause, "check"):
                raise TypeError(f"WrappedFailure causes must be failures, got {cause!r}")
            inner = getattr(cause, "exception", None)
            if isinstance(inner, WrappedFailure):
                flat.extend(inner)
            else:
                flat.append(cause)
        # A mangled name, so that it cannot clash with attributes of the original's class.
        self.__failures = tuple(flat)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.__failures,)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__failures)

    def __len__(self) -> int:
        return len(self.__failures)

    def check(self, *exc_classes: type[BaseException] | str) -> type[BaseException] | str | None:
        """Return the first of `exc_classes` (types or names) that one of the failures is, or None.

        :raises TypeError: if one of them is neither.
        """
        for failure in self.__failures:
            matching_class: type[BaseException] | str | None = failure.check(*exc_classes)
            if matching_class is not None:
                return matching_class
        return None

    def __str__(self) -> str:
        texts = [str(failure) for failure in self.__failures[: self._TOLD]]
        if len(self.__failures) > self._TOLD:
            texts.append(f"and {len(self.__failures) - self._TOLD} more")
        return f"{type(self).__name__}: [{', '.join(texts)}]"


def exception_message(exc: BaseException) -> str:
    """Return `str(exc)`, or a replacement if its `__str__` raises an exception."""
    try:
        return str(exc)
    except Exception as error:
        return f"<{type(exc).__name__}: str() raised {type(error).__name__}>"
