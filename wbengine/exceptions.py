"""All exceptions of wbengine.

The tree (names and order are those of TaskFlow; `*` marks exceptions that TaskFlow does not have)::

    Exception
    ├── WrappedFailure
    └── WbengineException                (also available as TaskFlowException)
        ├── StorageFailure
        │   ├── CorruptRecord *
        │   ├── RecordTooLarge *
        │   ├── PayloadUnavailable *
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
        │   │   └── Interrupted *
        │   ├── Expired *
        │   ├── SoftTimeLimitExceeded *
        │   ├── TimeLimitExceeded *
        │   ├── FlowBusy *
        │   ├── LeaseLost *
        │   ├── WorkerLost *
        │   └── NonDeterministicWorkflow *
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
        │   ├── UndecodableValue *
        │   └── TooLarge *
        ├── NotTrusted *
        ├── TransportFailure *
        └── DisallowedAccess
    NotImplementedError                  (a subclass of the builtin)
    BaseException
    └── WorkflowInterrupted *            (ends a workflow function whose run ends)

All of them keep their attributes when they are pickled.
"""

from __future__ import annotations

import builtins
import copyreg
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from wbengine._introspection import object_names

#: Maximum number of causes that `pformat` prints. Chains may be circular or very long.
_MAX_CAUSES = 100


class WbengineException(Exception):
    """The base class of all errors of this package.

    `cause` is the exception (or any object) that caused this error. `str()` returns the chain of
    causes, one per line, with increasing indentation.
    """

    # Also a class attribute, for exceptions that are created without a call of `__init__`.
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
        # Bypass __init__, because subclasses have other parameters.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def _own_message(self) -> str:
        return str(self.args[0]) if self.args else ""

    def pformat(
        self, indent: int = 2, indent_text: str = " ", show_root_class: bool = False
    ) -> str:
        """Return the message, followed by the chain of causes, each indented by `indent` more.

        The chain ends at the first cause that is not an error of this package.
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
    """Raise `exc_cls(message, *args, **kwargs)`, caused by the current exception, if any.

    A `cause` in `kwargs` replaces the current exception.
    """
    cause = kwargs.setdefault("cause", sys.exc_info()[1])
    raise exc_cls(message, *args, **kwargs) from cause


class StorageFailure(WbengineException):
    """A failed read or write of the store."""


class CorruptRecord(StorageFailure):
    """A damaged record, or a record with an unknown format. Reading did not change it.

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


class RecordTooLarge(StorageFailure):
    """A record exceeds the maximum size of the store and was not written."""


class PayloadUnavailable(StorageFailure):
    """A value that is stored out of line is lost or damaged, or this process cannot read it."""


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
    """No worker claimed the request in time, and none will, so there is nothing to revert."""


class InvalidState(ExecutionFailure):
    """The operation or transition is not allowed in the current state."""


class DeadlineExceeded(ExecutionFailure):
    """The deadline of the run passed before the flow ended.

    `cause` is the failure of the flow, if it also failed.
    """


class Cancelled(ExecutionFailure):
    """A task or its flow was cancelled (`engine.cancel`)."""


class Interrupted(Cancelled):
    """An execution ended with its engine, and does not run again, for example after `cancel`.

    Whether it took effect is unknown. So `revert` is called, with this failure as `result`, also if
    it is registered only for successful executions.
    """


class Expired(ExecutionFailure):
    """The task was not started before its time `expires`."""


class SignalTimeout(ExecutionFailure):
    """The signal of a `task.WaitFor` did not arrive in time."""


class SoftTimeLimitExceeded(ExecutionFailure):
    """Raised in a task after its soft time limit. The task may clean up and should then end."""

    # Another thread raises it, without arguments.
    def __init__(self, message: str = "the soft time limit has expired", cause: Any = None) -> None:
        super().__init__(message, cause)


class TimeLimitExceeded(ExecutionFailure):
    """A task exceeded its hard time limit and was stopped or abandoned. Its effects are unknown."""

    def __init__(self, message: str = "the hard time limit has expired", cause: Any = None) -> None:
        super().__init__(message, cause)


class FlowBusy(ExecutionFailure):
    """Another process runs the flow, or changes it for longer than the maximum wait.

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
    """Another process took over the flow, or the flow was deleted. This run can write no more."""


class WorkerLost(ExecutionFailure):
    """The worker that ran the task was lost. Whether the task finished is unknown."""


class NonDeterministicWorkflow(ExecutionFailure):
    """A workflow function did not repeat the steps that are recorded for its attempt.

    Nothing is reverted: the flow stays resumable, and continues with corrected code.

    `workflow` is the name of the workflow, `step` the position of the step, `recorded` the recorded
    call, and `actual` what the function does instead ('is now ...', 'is not called any more').
    """

    workflow: str = ""
    step: int = -1
    recorded: str = ""
    actual: str = ""

    def __init__(
        self,
        message: str = "",
        cause: BaseException | None = None,
        *,
        workflow: str = "",
        step: int = -1,
        recorded: str = "",
        actual: str = "",
    ) -> None:
        super().__init__(message, cause)
        self.workflow = workflow
        self.step = step
        self.recorded = recorded
        self.actual = actual


class WorkflowInterrupted(BaseException):
    """Raised in a workflow function whose run is suspended, parked or cancelled.

    It is not an `Exception`, so that `except Exception` does not catch it. Do not catch it: a later
    run calls the function again and repeats its recorded steps.
    """


class DependencyFailure(WbengineException):
    """The links between the members of a flow are invalid."""


class AmbiguousDependency(DependencyFailure):
    """Several members provide a required name, and no rule selects one of them."""


class MissingDependencies(DependencyFailure):
    """`who` requires names that nothing provides.

    :param requirements: the missing names.
    :param method: the method that needs them: 'execute' or 'revert'.
    :param available: existing names, for suggestions.
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
        # No hint for an existing name that is provided too late: the hint would be the same name.
        missing_names = ", ".join(
            repr(name) if name in choices else f"{name!r}{object_names.hint(str(name), choices)}"
            for name in names
        )
        method_prefix = f"{method!r} of " if method else ""
        quoted_who = str(who)
        if not quoted_who.startswith('"'):  # The text of an atom or flow is already quoted.
            quoted_who = f"'{quoted_who}'"
        late = all(name in choices for name in names)
        asker_names = ", ".join(askers)
        super().__init__(
            f"{method_prefix}{quoted_who} requires {missing_names}, but nothing"
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


class UniqueKeyConflict(Duplicate):
    """A flow with the same unique key was submitted with another factory or other inputs."""


class NotFound(WbengineException):
    """An object with this name or number does not exist."""


class FlowDeleted(NotFound):
    """A submitted flow was deleted from the store."""


class FlowNotCommitted(NotFound):
    """The transaction in which a flow was submitted is not committed, or was rolled back."""


class Empty(WbengineException):
    """A collection is empty, but at least one element is required."""


class MultipleChoices(WbengineException):
    """A collection has several elements, but exactly one is required."""


class InvalidFormat(WbengineException):
    """Data has an invalid format."""


class UndecodableValue(InvalidFormat):
    """The classes of this process cannot decode a value: one is unknown, or refuses the value.

    Other code may decode it. A stored flow with such a value is blocked by its code.
    """


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
    """A message exceeds the maximum size and is not sent."""


class NotTrusted(WbengineException):
    """A message or record has no valid signature, or a record names code that is not allowed."""


class TransportFailure(WbengineException):
    """The broker cannot be reached, or refused an operation."""


class DisallowedAccess(WbengineException):
    """The object must not be used in its current `state`."""

    state: str | None = None

    def __init__(
        self, message: str = "", cause: BaseException | None = None, state: str | None = None
    ) -> None:
        super().__init__(message, cause)
        self.state = state


class NotImplementedError(builtins.NotImplementedError):
    """An operation is deliberately not supported."""


class WrappedFailure(Exception):
    """An exception for several failures, or for one failure whose exception does not exist here.

    Iteration yields the failures. A `WrappedFailure` among the causes is replaced by its failures.
    With a single failure, it is also an instance of that failure's type, if `types.failure.allow`
    permits this.
    """

    _MAX_LISTED_FAILURES: Final = 10  # Maximum number of failures in its text.

    def __init__(self, causes: Iterable[Any]) -> None:
        # Not super(): the next class may be the original exception, with other parameters.
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
        # A mangled name, so that it cannot conflict with attributes of the original class.
        self.__failures = tuple(flat)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.__failures,)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__failures)

    def __len__(self) -> int:
        return len(self.__failures)

    def check(self, *exc_classes: type[BaseException] | str) -> type[BaseException] | str | None:
        """Return the first of `exc_classes` (types or names) that matches a failure, or None.

        :raises TypeError: if an argument is neither a type nor a name.
        """
        for failure in self.__failures:
            matching_class: type[BaseException] | str | None = failure.check(*exc_classes)
            if matching_class is not None:
                return matching_class
        return None

    def __str__(self) -> str:
        texts = [str(failure) for failure in self.__failures[: self._MAX_LISTED_FAILURES]]
        if len(self.__failures) > self._MAX_LISTED_FAILURES:
            texts.append(f"and {len(self.__failures) - self._MAX_LISTED_FAILURES} more")
        return f"{type(self).__name__}: [{', '.join(texts)}]"


def exception_message(exc: BaseException) -> str:
    """Return `str(exc)`, or a replacement if `__str__` raises an exception."""
    try:
        return str(exc)
    except Exception as error:
        return f"<{type(exc).__name__}: str() raised {type(error).__name__}>"
