"""Errors of commands: a line of text for users and an exit code for scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import click

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.diagnosis._one_line import join_lines

__all__ = ["Failed", "TEXT", "code_of", "failing", "line_of", "running_user_code", "reason"]

OK: Final = 0
#: The flow failed, or a check found a problem.
UNHEALTHY: Final = 1
USAGE: Final = 2
NO_SUCH: Final = 66
UNAVAILABLE: Final = 69
TRY_AGAIN: Final = 75
BAD_CONFIG: Final = 78
INTERRUPTED: Final = 130

TEXT: Final = """\
Exit codes:
  0    success
  1    the flow failed or was reverted, or a check found a problem
  2    the command line is invalid
  66   the flow, logbook, request or worker does not exist
  69   the broker, the store or the workers cannot be reached or used
  75   a time limit expired, the flow is suspended, or it has another owner: try again
  78   a setting in the environment or in a file is invalid
  130  interrupted"""


class Failed(Exception):
    """An error that ends a command with a message and an exit code."""

    def __init__(self, line: str, code: int = UNHEALTHY) -> None:
        super().__init__(line)
        self.line = line
        self.code = code


@contextlib.contextmanager
def failing(code: int, *kinds: type[BaseException], where: str = "") -> Iterator[None]:
    """Convert errors of these kinds into a `Failed` with this exit code.

    :param where: prefix of the message.
    """
    try:
        yield
    except kinds as error:
        line = line_of(error)
        raise Failed(_prefixed(where, line) if where else line, code) from error


@contextlib.contextmanager
def running_user_code(prefix: str) -> Iterator[None]:
    """Convert errors of the user's code, which the block imports and calls, into usage errors.

    :param prefix: prefix of the message for errors that wbengine does not define.
    :raises Failed: if the code raises an error.
    """
    try:
        yield
    except (Failed, exceptions.StorageFailure, exceptions.TransportFailure, exceptions.JobFailure):
        raise
    except (exceptions.WbengineException, ValueError, ImportError) as error:
        raise Failed(f"{line_of(error)}{_location(error)}", USAGE) from error
    except (Exception, SystemExit) as error:  # SystemExit: the module is a script
        line = line_of(error)
        if isinstance(error, SystemExit):
            line = f"the code ends the process ({line})"
        raise Failed(f"{prefix}: {line}{_location(error)}", USAGE) from error


def _location(error: BaseException) -> str:
    from wbengine.types import _user_frames

    place = None if isinstance(error, SyntaxError) else _user_frames.innermost(error)
    return "" if place is None else f" ({place})"


#: Exit codes by type of the error. The first match counts.
_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (exceptions.NotFound, NO_SUCH),
    (exceptions.MultipleChoices, USAGE),
    (exceptions.StorageFailure, UNAVAILABLE),
    (exceptions.TransportFailure, UNAVAILABLE),
    (exceptions.JobFailure, UNAVAILABLE),
    (exceptions.RequestTimeout, TRY_AGAIN),
    (exceptions.FlowBusy, TRY_AGAIN),
    (TimeoutError, TRY_AGAIN),
    (ImportError, USAGE),
    (ConnectionError, UNAVAILABLE),
    (KeyboardInterrupt, INTERRUPTED),
    (click.Abort, INTERRUPTED),
)


def code_of(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, Failed):
        return error.code
    if isinstance(error, click.ClickException):
        return BAD_CONFIG if _is_from_settings(error) else error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNHEALTHY)


def line_of(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, Failed):
        return join_lines(error.line)
    if isinstance(error, click.ClickException):
        return join_lines(_click_message(error))
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted"
    # The first argument is complete. The causes repeat parts of it.
    has_summary = isinstance(error, exceptions.MissingDependencies)
    message = join_lines(str(error.args[0] if has_summary else error))
    has_clear_text = isinstance(
        error, exceptions.WbengineException | ValueError | OSError | ImportError
    )
    if has_clear_text and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def reason(error: OSError | UnicodeError) -> str:
    """Return the reason why a file cannot be read or written."""
    return getattr(error, "strerror", None) or "not UTF-8 text"


def _click_message(error: click.ClickException) -> str:
    if isinstance(error, click.BadParameter) and _is_from_settings(error):
        return _prefixed(_origin(error), error.message.rstrip("."))
    if isinstance(error, click.NoSuchOption):
        near = object_names.hint(error.option_name, error.possibilities or ())
        line = f"unknown option {error.option_name!r}{near}"
    elif (
        isinstance(error, click.BadParameter) and error.param and error.message.startswith("must ")
    ):
        line = _prefixed(_label(error.param), error.message)
    else:
        message = error.format_message()
        line = message[:1].lower() + message[1:].rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{line}; see {error.ctx.command_path} --help"
    return line


def _prefixed(name: str, message: str) -> str:
    return f"{name}{' ' if message.startswith('must ') else ': '}{message}"


def _label(param: click.Parameter) -> str:
    """Return a parameter as users write it: --name, or the name of an argument."""
    options = [each for each in param.opts if each.startswith("--")]
    return options[0] if options else param.human_readable_name


def _is_from_settings(error: click.ClickException) -> bool:
    """Return whether the invalid value of an option came from the environment or a file."""
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None:
        return False
    source = error.ctx.get_parameter_source(error.param.name or "")
    kinds = click.core.ParameterSource
    return source in (kinds.ENVIRONMENT, kinds.DEFAULT_MAP)


def _origin(error: click.BadParameter) -> str:
    """Return the variable or the table of a file that the invalid value came from."""
    ctx, param = error.ctx, error.param
    assert ctx is not None and param is not None
    source = ctx.get_parameter_source(param.name or "")
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f"${param.envvar}"
    key = _label(param).lstrip("-").replace("-", "_")
    return f"[{'.'.join(ctx.command_path.split()[1:])}] in the settings: {key}"
