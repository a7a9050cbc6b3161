"""Commands: requests of a workflow function to its engine."""

from __future__ import annotations

import hashlib
import re
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine._calls import invocation
from wbengine._introspection import binding, object_names
from wbengine._security import masking
from wbengine._tasks import call_options, child
from wbengine._tasks.base import Task
from wbengine.types import codec

__all__ = [
    "CHILD_FLOW", "REVERT_SCOPE", "Command", "child_command", "continued_inputs",
    "revert_arguments", "revert_command", "task_class_at", "task_command", "waiting_command",
]  # fmt: skip

#: `Command.path` of the reversion of the steps of a scope.
REVERT_SCOPE: Final = "revert-scope"
#: `Command.path` of a step that runs a child flow.
CHILD_FLOW: Final = "child-flow"

#: Maximum length of `Command.text`, without masks.
MAX_TEXT_LENGTH: Final = 200

#: Task classes that `task_command` has checked.
_checked: Final[weakref.WeakSet[type[Task]]] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Command:
    """A request to execute a task, or to revert earlier steps.

    :ivar path: the task as `module:name`, `CHILD_FLOW` or `REVERT_SCOPE`.
    :ivar name: the displayed name of the step.
    :ivar digest: digest of the arguments; "" without arguments.
    :ivar to_revert: positions of the steps to revert.
    :ivar start: the first bytes of the encoded arguments.
    """

    path: str
    name: str
    digest: str
    task: Task | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    to_revert: Sequence[int] = ()
    start: bytes = b""

    @property
    def text(self) -> str:
        """The start of the arguments as JSON, with masked secrets; "" without arguments."""
        text = masking.masked(self.start[:MAX_TEXT_LENGTH].decode(errors="ignore"))
        return text if len(self.start) <= MAX_TEXT_LENGTH else f"{text}..."

    @property
    def is_wait(self) -> bool:
        return self.task is not None and self.task.is_wait


def task_command(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Command:
    """Return the command to execute a task class with these arguments.

    :param task: a task class, also with options for this call. The options are not part of the
        identity of the step, so a replay may use other ones.
    :raises TypeError: if `task` is not a task class that can be a step, if it has a `revert` and
        cannot be imported, or if the arguments do not match its signature.
    :raises NotEncodable: if an argument cannot be encoded.
    """
    task, options = call_options.options_of(task)
    if not (isinstance(task, type) and issubclass(task, Task)):
        hint = (
            f": use the class {type(task).__name__}"
            if isinstance(task, Task)
            else ": decorate the function with task.task"
            if callable(task)
            else ""
        )
        raise TypeError(f"A step must be a task class, got {task!r:.80}{hint}")
    if not _is_plain(task):
        raise TypeError(
            f"A step must be a plain task, got {object_names.dotted(task)}: use steps.map for a"
            " list, steps.sleep or steps.wait_for to wait, steps.child to run a workflow as a flow"
            " of its own, and a function with steps as argument to share code between workflows"
        )
    if task not in _checked:
        _check_importable(task)
        _checked.add(task)
    instance = task()
    for option, value in options.items():
        setattr(instance, option, value)
    arguments = _bind(instance, args, kwargs)
    if not arguments:
        return Command(path_of(task), task.__name__, "", instance)
    encoded = codec.dumps(arguments, "arguments")
    # A copy, because the function may change the objects before the task runs.
    copied_arguments = codec.loads(encoded)
    return Command(
        path_of(task), task.__name__, _digest(encoded), instance, copied_arguments,
        start=_start(encoded),
    )  # fmt: skip


def waiting_command(waiting: Task, **definition: Any) -> Command:
    """Return the command to wait.

    :param definition: values that a replay must repeat.
    """
    path, encoded = path_of(type(waiting)), codec.dumps(definition)
    return Command(path, waiting.name, _digest(encoded), waiting, start=_start(encoded))


def child_command(flow: Any, inputs: Any, name: Any, *, is_detached: bool) -> Command:
    """Return the command to run a child flow and to wait for its end.

    :raises TypeError, ValueError: if an argument is invalid.
    :raises NotEncodable: if an input cannot be encoded.
    """
    copied_inputs = child.check(flow, inputs, name)
    task = child.Child(flow, copied_inputs, name, is_detached=is_detached)
    encoded = codec.dumps({"flow": task.path, "inputs": copied_inputs})
    label = name or re.split("[:.]", task.path)[-1]
    return Command(CHILD_FLOW, label, _digest(encoded), task, start=_start(encoded))


def revert_command(positions: Sequence[int]) -> Command:
    """Return the command to revert the steps at these positions."""
    encoded = codec.dumps(positions)
    return Command(
        REVERT_SCOPE, REVERT_SCOPE, _digest(encoded), to_revert=positions, start=_start(encoded)
    )


def path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def task_class_at(path: str) -> type[Task] | None:
    """Return the task class at `module:name`, or None if no loaded module contains it.

    Only classes that `task_command` accepts are returned.
    """
    task = _object_at(path)
    if not (isinstance(task, type) and issubclass(task, Task)) or not _is_plain(task):
        return None
    return task


def _is_plain(task: type[Task]) -> bool:
    return not (task.fans_out or task.runs_steps or task.is_wait)


def _object_at(path: str) -> Any:
    module, _, name = path.partition(":")
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _check_importable(task: type[Task]) -> None:
    """Check that a later process can find the class of a task that it has to revert.

    :raises TypeError: if the class has a `revert` and is not at the top level of its module.
    """
    if not invocation.reverts_nothing(task) and _object_at(path_of(task)) is not task:
        raise TypeError(
            f"Task {object_names.dotted(task)} has a revert, so it must be defined at the top level"
            " of a module: a later process finds it there by its name"
        )


def _bind(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = task._signatures()[0]
    called = f"{type(task).__name__}()"
    try:
        arguments = signature.bind(args, kwargs)
    except TypeError as error:
        unknown = [name for name in kwargs if not signature.takes(name)]
        hint = object_names.hint(unknown[0], signature.names) if unknown else ""
        raise TypeError(f"{called}: {error}{hint}") from None
    # Values of `inject=` apply to arguments that are not passed.
    for name, stored in task.rebind.items():
        if name not in arguments and task.inject and stored in task.inject:
            arguments[name] = task.inject[stored]
    missing = [name for name in signature.required if name not in arguments]
    if missing:
        raise TypeError(f"{called} requires {', '.join(map(repr, missing))}")
    return arguments


def revert_arguments(task: Task, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the `revert` of a task accepts, including defaults of `execute`."""
    execute, revert = task._signatures()
    missing = revert.names.intersection(execute.optional).difference(arguments)
    values = dict(arguments)
    if missing:
        parameters = execute.inspected.parameters
        values.update((name, parameters[name].default) for name in missing)
    return {name: value for name, value in values.items() if revert.takes(name)}


def continued_inputs(function: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the inputs with which a workflow continues as new.

    :raises TypeError: if the function does not have such a parameter.
    :raises NotEncodable: if an input cannot be encoded.
    """
    signature = binding.signature_of(function)
    steps, *names = signature.inspected.parameters
    for name in inputs:
        if name == steps or not signature.takes(name):
            raise TypeError(
                f"Workflow {object_names.dotted(function)!r} has no input"
                f" {name!r}{object_names.hint(name, names)}"
            )
    copied_inputs: dict[str, Any] = codec.loads(codec.dumps(dict(inputs), "inputs"))
    return copied_inputs


def _digest(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=8).hexdigest()


def _start(encoded: bytes) -> bytes:
    return encoded[: MAX_TEXT_LENGTH + 1]
