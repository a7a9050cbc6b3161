"""What goes wrong, as one line for people and a number for scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import click

from wbengine import _names, exceptions
from wbengine.diagnosis.one_line import joined

__all__ = ["Failed", "TEXT", "code_of", "failing", "line_of", "making", "reason"]

OK: Final = 0
#: The flow failed, or something is not as it should be.
UNHEALTHY: Final = 1
USAGE: Final = 2
NO_SUCH: Final = 66
UNAVAILABLE: Final = 69
TRY_AGAIN: Final = 75
BAD_CONFIG: Final = 78
INTERRUPTED: Final = 130

#: For the help.
TEXT: Final = """\
Exit codes:
  0    it is done
  1    the flow failed or was reverted, or a check found something wrong
  2    wrong usage
  66   there is no such flow, book or worker
  69   the broker, the store or the workers cannot be reached, or used
  75   it took too long, or somebody else is at it: try again
  78   a setting, in the environment or in a file, is wrong
  130  interrupted"""


class Failed(Exception):
    """A command cannot go on: with which line, and which exit code."""

    def __init__(self, line: str, code: int = UNHEALTHY) -> None:
        super().__init__(line)
        self.line = line
        self.code = code


@contextlib.contextmanager
def failing(code: int, *kinds: type[BaseException], where: str = "") -> Iterator[None]:
    """Errors of these kinds end the command with this code; `where` they happen is said first."""
    try:
        yield
    except kinds as error:
        line = line_of(error)
        raise Failed(f"{where}: {line}" if where else line, code) from error


@contextlib.contextmanager
def making(what: str) -> Iterator[None]:
    """Code of the user is imported and called: if it is wrong, so was the command.  Errors that are
    not ours say first `what` was to be made.

    :raises Failed: it is wrong.
    """
    try:
        yield
    except (Failed, exceptions.StorageFailure, exceptions.TransportFailure, exceptions.JobFailure):
        raise
    except (exceptions.WbengineException, ValueError, ImportError) as error:
        raise Failed(line_of(error), USAGE) from error
    except (Exception, SystemExit) as error:  # as of a script that was written to be run
        line = line_of(error)
        if isinstance(error, SystemExit):
            line = f"it ends the process ({line})"
        raise Failed(f"{what}: {line}", USAGE) from error


#: By kind, the first that fits.
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
    """The exit code that belongs to an error."""
    if isinstance(error, Failed):
        return error.code
    if isinstance(error, click.ClickException):
        return BAD_CONFIG if _is_of_settings(error) else error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNHEALTHY)


def line_of(error: BaseException) -> str:
    """What is wrong, in one line."""
    if isinstance(error, Failed):
        return joined(error.line)
    if isinstance(error, click.ClickException):
        return joined(_of_click(error))
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted"
    # Its causes tell one by one what it tells as a whole.
    whole = isinstance(error, exceptions.MissingDependencies)
    words = joined(str(error.args[0] if whole else error))
    known = isinstance(error, exceptions.WbengineException | ValueError | OSError | ImportError)
    if known and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def reason(error: OSError | UnicodeError) -> str:
    """Why a file cannot be read or written."""
    return getattr(error, "strerror", None) or "it is no text"


def _of_click(error: click.ClickException) -> str:
    if isinstance(error, click.BadParameter) and _is_of_settings(error):
        return f"{_origin(error)}: {error.message.rstrip('.')}"
    if isinstance(error, click.NoSuchOption):
        near = _names.hint(error.option_name, error.possibilities or ())
        line = f"there is no option {error.option_name!r}{near}"
    else:
        message = error.format_message()
        line = message[:1].lower() + message[1:].rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{line}; see {error.ctx.command_path} --help"
    return line


def _is_of_settings(error: click.ClickException) -> bool:
    """Whether a wrong value of an option came out of the environment, or a file."""
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None:
        return False
    source = error.ctx.get_parameter_source(error.param.name or "")
    kinds = click.core.ParameterSource
    return source in (kinds.ENVIRONMENT, kinds.DEFAULT_MAP)


def _origin(error: click.BadParameter) -> str:
    """The variable, or the table of a file, that a wrong value came from."""
    ctx, param = error.ctx, error.param
    assert ctx is not None and param is not None
    source = ctx.get_parameter_source(param.name or "")
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f"${ctx.auto_envvar_prefix}_{str(param.name).upper()}"
    return f"[{'.'.join(ctx.command_path.split()[1:])}] of the settings: {param.name}"
