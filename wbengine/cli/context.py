"""What a command is handed: settings, a printer, the store."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import _streams, exceptions
from wbengine.cli import arguments, config, errors, output

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence
    from wbengine.views import redaction

__all__ = ["Context"]

LOG: Final = logging.getLogger(__name__)


class Context:
    """Of one call of the command, with these arguments; `commands` are the names there are, for the
    tables of files.
    """

    def __init__(self, commands: Collection[str], arguments: Sequence[str] = ()) -> None:
        self._commands = commands
        self._arguments = arguments
        #: What flags say, by the name of the setting.
        self.given: dict[str, Any] = {}
        #: The only file of settings to read.
        self.file: str | None = os.environ.get(config.VARIABLE) or None
        #: When it was called, on the monotonic clock.
        self.began = time.monotonic()
        #: The command that is being run, in words.
        self.path = "wbengine"
        #: What is undone when the command has ended.
        self.ends = contextlib.ExitStack()

    @cached_property
    def files(self) -> list[config.File]:
        """The files of settings there are, those that count more first.

        :raises Failed: something is wrong with one of them.
        """
        return config.read_files(self.file, self._commands)

    @cached_property
    def settings(self) -> config.Settings:
        """What holds, wherever it was said.

        :raises Failed: something is wrong with it.
        """
        return config.read(self.given, self.files)

    @cached_property
    def redactor(self) -> redaction.Redactor:
        """What hides passwords and other secrets."""
        from wbengine.views import redaction

        return redaction.Redactor()

    @cached_property
    def printer(self) -> output.Printer:
        """Where results and remarks go."""
        settings = self.settings
        return output.Printer(
            as_json=settings.json,
            color=settings.color,
            quiet=settings.quiet,
            mask=lambda text: self.redactor.text(text),  # which takes its time to load
        )

    def start(self, log_level: str) -> None:
        """The log goes to the standard error; modules of here can be imported.

        :param log_level: the least that is logged, if no setting says so.
        """
        from wbengine.cli import logs

        settings = self.settings
        if settings.origins["log_level"] != config.DEFAULT:
            log_level = settings.log_level
        elif settings.quiet:
            log_level = "warning"
        logs.install(log_level, settings.log_format, settings.color)
        for warning in arguments.warnings_of(self._arguments):
            LOG.warning("%s", warning)
        self.import_here()
        self._use(settings)
        for name in settings.include:
            what = f"{name!r} cannot be imported"
            with settings.failing("include", Exception, what=what), _streams.aside():
                importlib.import_module(name)

    def _use(self, settings: config.Settings) -> None:
        """Let the keys and flows that are set hold wherever records are read, until the end."""
        before = os.environ.get("WBENGINE_KEYS")
        if settings.keys and settings.keys != before:
            os.environ["WBENGINE_KEYS"] = settings.keys
            self.ends.callback(_set_variable, "WBENGINE_KEYS", before)
        if settings.flows:
            from wbengine.engines import allowed

            with settings.failing("flows", ValueError):
                allowed.set_for_process(settings.flows)
            self.ends.callback(allowed.set_for_process, None)

    def environment(self) -> dict[str, str]:
        """For a command that goes on with what this one does: others cannot see it, unlike
        arguments.
        """
        file = {} if self.file is None else {config.VARIABLE: os.path.abspath(self.file)}
        return {**file, **self.settings.environment()}

    def failed(self, error: BaseException) -> int:
        """Tell what went wrong, in one line; returns the exit code."""
        words = self.redactor.text(errors.line_of(error))
        line = f"{self.path}: error: {words}"
        code = errors.code_of(error)
        if self._wants_json():
            content = {"command": self.path, "error": words, "code": code}
            output.say(json.dumps({"schema": "wbengine/error/1", **content}))
        elif code == errors.INTERRUPTED and isinstance(error, errors.Failed):
            output.say_behind_ctrl_c(line)
        else:
            output.say(line)
        return code

    def _wants_json(self) -> bool:
        if "--json" in self._arguments:  # perhaps behind what is wrong
            return True
        try:
            return self.settings.json
        except errors.Failed:  # what is wrong are the settings
            return False

    def import_here(self) -> None:
        """Let modules of the current folder be found, after all that is installed: a file there
        takes the place of no module of Python's or of a package.
        """
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)

    @contextlib.contextmanager
    def backend(self, **how: bool) -> Iterator[persistence.Backend]:
        """The store of flows; `how` it is opened, and what is wrong otherwise, says
        `stores.opened`.

        :raises Failed: something was not found, because nothing was ever kept there.
        """
        from wbengine.cli import stores

        with contextlib.closing(stores.opened(self.settings, **how)) as found:
            try:
                yield found
            except exceptions.NotFound as error:
                if stores.is_made(self.settings, found):
                    raise
                line = f"{errors.line_of(error)} ({stores.not_made(self.settings)})"
                raise errors.Failed(line, errors.NO_SUCH) from error

    @contextlib.contextmanager
    def connection(self) -> Iterator[tuple[persistence.Backend, persistence.Connection]]:
        """The store of flows, and a connection to it.

        :raises Failed: see `backend`.
        """
        with self.backend() as found, contextlib.closing(found.get_connection()) as connection:
            yield found, connection

    @contextlib.contextmanager
    def flow(self, text: str) -> Iterator[tuple[persistence.Connection, str]]:
        """A connection to the store of flows, and the uuid of the flow that is meant.

        :raises Failed: see `backend`.
        :raises NotFound: there is no such flow.
        """
        from wbengine import operations

        with self.connection() as (backend, connection):
            yield connection, operations.find(backend, text).uuid


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
