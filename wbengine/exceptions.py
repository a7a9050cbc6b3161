"""Every error that wbengine raises.

The tree (names and places are those TaskFlow users know; the ones marked * are new)::

    Exception
    ├── WrappedFailure                   several failures, or one that cannot be re-raised as itself
    └── WbengineException                (also under the name TaskFlowException)
        ├── StorageFailure               the store could not be read or written
        │   ├── CorruptRecord *          what is stored is damaged: see `.path`
        │   └── LedgerFailure *          a worker ledger could not be read or written
        ├── ConductorFailure
        ├── JobFailure
        │   └── UnclaimableJob           somebody else holds the job
        ├── ExecutionFailure             running went wrong
        │   ├── RequestTimeout           no worker took the request in time
        │   │   └── NeverStarted *       and it is certain that none ever will
        │   ├── InvalidState             not allowed in this state
        │   ├── DeadlineExceeded *       the time given to the run was up
        │   ├── Cancelled *              somebody asked for it to end
        │   ├── Expired *                it was of no use any more when its turn came
        │   ├── SoftTimeLimitExceeded *  raised in a task that runs for too long
        │   ├── TimeLimitExceeded *      a task that ran for too long was ended
        │   ├── FlowBusy *               somebody else runs the flow: see `.owner`
        │   ├── LeaseLost *              somebody else took the flow over
        │   └── WorkerLost *             the worker went away; the outcome is unknown
        ├── DependencyFailure            the links of a flow make no sense
        │   ├── AmbiguousDependency      several providers, and no rule to choose one
        │   └── MissingDependencies      nobody provides a required name
        ├── CompilationFailure           the flow cannot be turned into a plan
        │   └── NotAFlow *               it is neither a flow nor a task (a TypeError too)
        ├── IncompatibleVersion
        ├── Duplicate                    a name that must be unique is not
        ├── NotFound
        ├── Empty
        ├── MultipleChoices
        ├── InvalidFormat                data is not of the promised form
        │   ├── NotEncodable *           a value cannot be sent or stored
        │   └── TooLarge *               a message exceeds the size limit
        ├── NotTrusted *                 it is not believed: who signed it, what it names
        ├── TransportFailure *           the broker cannot be reached
        └── DisallowedAccess             not now: see `.state`
    NotImplementedError                  (the builtin one behind it) not made, and never will be

All of them survive pickling with their attributes.
"""

from __future__ import annotations

import builtins
import copyreg
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from wbengine import _names

#: How many causes `pformat` prints at most; chains may be circular or very long.
_MAX_CAUSES = 100


class WbengineException(Exception):
    """The base of all errors of this package.

    `cause` is the exception (or any object) behind this one; `str()` shows the whole chain of
    causes, one per line, each a little further in.
    """

    # On the class as well: what is known of an error that came from elsewhere.
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
        # Not through __init__: subclasses take other arguments than the finished message.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def _own_message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def pformat(
        self, indent: int = 2, indent_text: str = " ", show_root_class: bool = False
    ) -> str:
        """The message, and below it the chain of causes, each indented by `indent` more.

        A chain goes on only through errors of this package; anything else ends it.
        """
        if indent < 0:
            raise ValueError(f"indent must be zero or greater, not {indent}")
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


#: The name under which code written for TaskFlow knows the base class.
TaskFlowException = WbengineException


def raise_with_cause(
    exc_cls: type[WbengineException], message: str, *args: Any, **kwargs: Any
) -> NoReturn:
    """Raise `exc_cls(message, *args, **kwargs)`, caused by the exception being handled, if any.

    A `cause` in `kwargs` is used instead of the current exception.
    """
    cause = kwargs.setdefault("cause", sys.exc_info()[1])
    raise exc_cls(message, *args, **kwargs) from cause


class StorageFailure(WbengineException):
    """The store could not be read or written."""


class CorruptRecord(StorageFailure):
    """A record is damaged, or of a format that is not known here; it was not changed.

    `path` names the file (or table and row) and `flow` the uuid of the flow it belongs to, where
    that is known.  The other flows can be read.
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
    """A worker ledger could not be read or written."""


class ConductorFailure(WbengineException):
    """A conductor could not do its work."""


class JobFailure(WbengineException):
    """A job or a job board could not do its work."""


class UnclaimableJob(JobFailure):
    """The job is held by somebody else."""


class ExecutionFailure(WbengineException):
    """Running a flow or an atom went wrong, not through an error of the atom's own code."""


class RequestTimeout(ExecutionFailure):
    """No worker took the request in time."""


class NeverStarted(RequestTimeout):
    """No worker took the request in time, and none ever will: there is nothing to undo."""


class InvalidState(ExecutionFailure):
    """The operation, or the transition, is not allowed in the present state."""


class DeadlineExceeded(ExecutionFailure):
    """The time given to the run was up before the flow had come to its end.

    `cause` is what the flow failed with besides, if it did.
    """


class Cancelled(ExecutionFailure):
    """Somebody asked for a task, or its flow, to end (`engine.cancel`)."""


class Expired(ExecutionFailure):
    """The time after which a task was not to be started any more had come; it was not started."""


class SignalTimeout(ExecutionFailure):
    """The signal that a `task.WaitFor` waited for was not given in time."""


class SoftTimeLimitExceeded(ExecutionFailure):
    """Raised in a task whose soft time limit is over: it may clean up, and then should end."""

    # Another thread raises it, and can give it no text of its own.
    def __init__(self, message: str = "the soft time limit is over", cause: Any = None) -> None:
        super().__init__(message, cause)


class TimeLimitExceeded(ExecutionFailure):
    """A task whose hard time limit was over was ended, or given up; what it did is unknown."""

    def __init__(self, message: str = "the hard time limit is over", cause: Any = None) -> None:
        super().__init__(message, cause)


class FlowBusy(ExecutionFailure):
    """Somebody else runs the flow, or changes it for longer than such a change is waited for.

    `owner` says who, `epoch` is that of the owner's lease, and `seconds` after so many the lease
    ends unless its owner gives another sign of life.
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
    """Somebody else took the flow over, or it was removed: nothing more of this run is written."""


class WorkerLost(ExecutionFailure):
    """The worker that ran the task went away; whether the task ran to its end is not known."""


class DependencyFailure(WbengineException):
    """The links between the members of a flow make no sense."""


class AmbiguousDependency(DependencyFailure):
    """Several members provide the required name, and no rule chooses one of them."""


class MissingDependencies(DependencyFailure):
    """`who` requires names that nobody provides.

    `missing_requirements` holds the names; `method` (`'execute'`, `'revert'`) says what needs them;
    `available`, when given, is searched for names that may have been meant; `askers` say in words
    as which arguments of which atoms they are asked for.
    """

    #: The names, as a set when a set was given, else as a list.
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
        # The nearest to a name that is there, only not early enough, would be the name itself.
        wanted = ", ".join(
            repr(name) if name in choices else f"{name!r}{_names.hint(str(name), choices)}"
            for name in names
        )
        where = f"{method!r} of " if method else ""
        told_who = str(who)
        if not told_who.startswith('"'):  # atoms and flows quote themselves
            told_who = f"'{told_who}'"
        late = all(name in choices for name in names)
        told = ", ".join(askers)
        super().__init__(
            f"{where}{told_who} requires {wanted}, but nothing"
            f" {'that comes before ' if late else ''}provides it"
            + (f" (asked for as {told})" if told else ""),
            cause,
        )
        self.missing_requirements = (
            requirements if isinstance(requirements, set | frozenset) else names
        )


class CompilationFailure(WbengineException):
    """A flow cannot be turned into a plan."""


class NotAFlow(CompilationFailure, TypeError):
    """What is to be compiled is neither a flow nor a task."""


class IncompatibleVersion(WbengineException):
    """Two versions cannot work together."""


class Duplicate(WbengineException):
    """A name that must be unique is used twice."""


class NotFound(WbengineException):
    """Something that was asked for by name or number does not exist."""


class Empty(WbengineException):
    """Nothing is there where at least one was needed."""


class MultipleChoices(WbengineException):
    """More than one is there where exactly one was needed."""


class InvalidFormat(WbengineException):
    """Data is not of the promised form."""


class NotEncodable(InvalidFormat):
    """A value cannot be sent or stored.

    `path` leads to the culprit (`result['a'][3]`), `type_name` is the culprit's type.
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
    """A message exceeds the size limit; it is never sent."""


class NotTrusted(WbengineException):
    """A message or record was not signed by who may say it, or was changed since; or a record names
    what must not be called.
    """


class TransportFailure(WbengineException):
    """The broker cannot be reached, or refused what was asked of it."""


class DisallowedAccess(WbengineException):
    """The thing exists, but must not be used while in `state`."""

    state: str | None = None

    def __init__(
        self, message: str = "", cause: BaseException | None = None, state: str | None = None
    ) -> None:
        super().__init__(message, cause)
        self.state = state


class NotImplementedError(builtins.NotImplementedError):
    """Something is not there on purpose, as opposed to what users left out."""


class WrappedFailure(Exception):
    """One exception that stands for several failures, or for one that lost its exception object.

    Iterates over its failures; a `WrappedFailure` among them is replaced by what it holds.  One
    that stands for a single failure is of its type as well, where `types.failure.allow` permits.
    """

    _TOLD: Final = 10  # in its text; whoever wants all of them iterates

    def __init__(self, causes: Iterable[Any]) -> None:
        # Not by super(): behind this class there may be the original's, which asks for more.
        Exception.__init__(self)
        if not isinstance(causes, Iterable):
            raise TypeError(f"WrappedFailure takes a list of failures, not {causes!r}")
        flat: list[Any] = []
        for cause in causes:
            if not hasattr(cause, "check"):
                raise TypeError(f"WrappedFailure holds failures, not {cause!r}")
            inner = getattr(cause, "exception", None)
            if isinstance(inner, WrappedFailure):
                flat.extend(inner)
            else:
                flat.append(cause)
        # A name that no other class of an exception has by chance.
        self.__failures = tuple(flat)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.__failures,)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__failures)

    def __len__(self) -> int:
        return len(self.__failures)

    def check(self, *exc_classes: type[BaseException] | str) -> type[BaseException] | str | None:
        """The first of `exc_classes` (types or names) that one of the failures is, or None.

        :raises TypeError: one of them is something else.
        """
        for failure in self.__failures:
            found: type[BaseException] | str | None = failure.check(*exc_classes)
            if found is not None:
                return found
        return None

    def __str__(self) -> str:
        told = [str(failure) for failure in self.__failures[: self._TOLD]]
        if len(self.__failures) > self._TOLD:
            told.append(f"and {len(self.__failures) - self._TOLD} more")
        return f"{type(self).__name__}: [{', '.join(told)}]"


def exception_message(exc: BaseException) -> str:
    """`str(exc)`, or a stand-in when the exception's own `__str__` raises."""
    try:
        return str(exc)
    except Exception as error:
        return f"<{type(exc).__name__}: str() raised {type(error).__name__}>"
