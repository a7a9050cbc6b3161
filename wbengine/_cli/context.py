"""Context of a command: settings, printer and store."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions, operations
from wbengine._cli import (
    collector,
    config,
    errors,
    location_checks,
    output,
    secret_arguments,
    settings_schema,
    standard_streams,
    store_access,
)
from wbengine._configuration import default_broker, process_names
from wbengine._introspection import object_names

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence
    from wbengine.persistence import models
    from wbengine.views import redaction

__all__ = ["Context"]

LOG: Final = logging.getLogger("wbengine.cli")


class Context:
    """Context of one call of the command with these arguments.

    :param commands: names of all commands, which are valid names of tables in files of settings.
    """

    def __init__(self, commands: Collection[str], arguments: Sequence[str] = ()) -> None:
        self._commands = commands
        self._arguments = arguments
        #: Values of options by name of the setting.
        self.option_values: dict[str, Any] = {}
        #: The only file of settings to read, or None.
        self.file: str | None = os.environ.get(config.VARIABLE) or None
        self.started_at = time.monotonic()
        self.path = "wbengine"
        self.exit_stack = contextlib.ExitStack()

    @cached_property
    def files(self) -> list[config.File]:
        """The files of settings, in order of precedence.

        :raises Failed: if a file is invalid.
        """
        return config.read_files(self.file, self._commands)

    @cached_property
    def settings(self) -> config.Settings:
        """The effective settings.

        :raises Failed: if a setting is invalid.
        """
        return config.read(self.option_values, self.files)

    @cached_property
    def redactor(self) -> redaction.Redactor:
        """The redactor that masks passwords and other secrets."""
        from wbengine.views import redaction

        return redaction.Redactor()

    @cached_property
    def printer(self) -> output.Printer:
        """The printer for results and remarks."""
        settings = self.settings
        return output.Printer(
            as_json=settings.json,
            color=settings.color,
            quiet=settings.quiet,
            # a lambda, because the redactor is slow to load
            mask=lambda text: self.redactor.text(text),
        )

    def start(self, log_level: str) -> None:
        """Set up logging and imports before the command runs.

        The log goes to the standard error. Modules of the current folder become importable.

        :param log_level: the lowest level that is logged, unless a setting defines another one.
        """
        from wbengine._cli import log_output

        settings = self.settings
        if settings.origins["log_level"] != config.DEFAULT:
            log_level = settings.log_level
        elif settings.quiet:
            log_level = "warning"
        log_output.install(log_level, settings.log_format, settings.color, settings.traceback)
        for warning in secret_arguments.warnings_of(self._arguments):
            LOG.warning("%s", warning)
        default_broker.set_store_of_process(settings.persistence)
        self.exit_stack.callback(default_broker.set_store_of_process, None)
        process_names.set_program(self.path)
        self.exit_stack.callback(process_names.set_program, None)
        location_checks.check(settings)
        self.import_here()
        self._apply(settings)
        if settings.include:
            collector.release()
        for name in settings.include:
            action = f"cannot import {name!r}"
            with settings.failing("include", Exception, action=action), standard_streams.aside():
                object_names.import_module(name)

    def _apply(self, settings: config.Settings) -> None:
        """Apply settings to the whole process until the command ends."""
        for name in ("keys", "payloads"):  # Child processes read the variables.
            variable, value = settings_schema.VARIABLES[name], getattr(settings, name)
            before = os.environ.get(variable)
            if value and value != before:
                os.environ[variable] = value
                self.exit_stack.callback(_set_variable, variable, before)
        if settings.databases:
            # Child processes read the variable.
            variable = settings_schema.VARIABLES["databases"]
            before = os.environ.get(variable)
            os.environ[variable] = json.dumps(dict(settings.databases))
            self.exit_stack.callback(_set_variable, variable, before)
        if settings.flows:
            from wbengine.engines import _allowed

            with settings.failing("flows", ValueError):
                _allowed.set_for_process(settings.flows)
            self.exit_stack.callback(_allowed.set_for_process, None)

    def environment(self) -> dict[str, str]:
        """Return environment variables for a child process that continues this command.

        Variables are used because other users can see the arguments of a process.
        """
        file = {} if self.file is None else {config.VARIABLE: os.path.abspath(self.file)}
        return {**file, **self.settings.environment()}

    def announce(self, text: str, **fields: Any) -> None:
        """Report an event of a command that runs until it is stopped.

        A log of JSON lines contains it with these fields; otherwise it is a remark.
        """
        if self.settings.log_format == "json":
            LOG.info("%s", text, extra=fields)
        else:
            self.printer.note(text)

    def failed(self, error: BaseException) -> int:
        """Print an error as one line and return the exit code."""
        if error.__cause__ is not None and self._shows_all_frames():
            full_traceback = "".join(traceback.format_exception(error.__cause__))
            output.say_lines(self.redactor.text(full_traceback.rstrip("\n")))
        words = self.redactor.text(errors.line_of(error))
        line = f"{self.path}: error: {words}"
        code = errors.code_of(error)
        if self._wants_json():
            content = {"command": self.path, "error": words, "code": code}
            output.say(json.dumps({"schema": "wbengine/error/1", **content}), folded=False)
        elif code == errors.INTERRUPTED and isinstance(error, errors.Failed):
            output.say_on_new_line(line)
        else:
            output.say(line)
        return code

    def _shows_all_frames(self) -> bool:
        try:
            return self.settings.traceback
        except errors.Failed:  # the settings are invalid
            return False

    def _wants_json(self) -> bool:
        if "--json" in self._arguments:  # click may have failed before it parsed this option
            return True
        try:
            return self.settings.json
        except errors.Failed:  # the settings are invalid
            return False

    def import_here(self) -> None:
        """Append the current folder to `sys.path`.

        It comes after the standard library and installed packages, so that its files never shadow
        them.
        """
        folder = str(config.current_folder())
        if folder not in sys.path:
            sys.path.append(folder)

    @contextlib.contextmanager
    def backend(self, **options: bool) -> Iterator[persistence.Backend]:
        """Open the store of flows and close it at the end.

        :param options: the options of `store_access.open_store`, which also describes its errors.
        :raises Failed: if the key file cannot be used, or if a record was not found because the
            store does not exist.
        """
        if self.settings.keys:
            object_names.load("wbengine._cli.fleets:keys")(self.settings)
        with collector.loading():
            opened = store_access.open_store(self.settings, **options)
        with contextlib.closing(opened) as backend:
            try:
                yield backend
            except exceptions.NotFound as error:
                if store_access.store_exists(self.settings, backend):
                    raise
                line = f"{errors.line_of(error)} ({store_access.missing_message(self.settings)})"
                raise errors.Failed(line, errors.NO_SUCH) from error

    @contextlib.contextmanager
    def connection(self) -> Iterator[tuple[persistence.Backend, persistence.Connection]]:
        """Open the store of flows and a connection to it.

        :raises Failed: see `backend`.
        """
        with self.backend() as backend, contextlib.closing(backend.get_connection()) as connection:
            yield backend, connection

    @contextlib.contextmanager
    def flow(self, text: str) -> Iterator[tuple[persistence.Connection, str]]:
        """Open a connection to the store of flows and yield it with the uuid of a flow.

        :param text: the uuid or its beginning.
        :raises Failed: see `backend`.
        :raises NotFound: if there is no such flow.
        """
        with self.connection() as (backend, connection):
            yield connection, operations.find(backend, text).uuid

    def flow_detail(self, text: str) -> models.FlowDetail:
        """Return a flow with its records, to show them. Arguments and errors are those of `flow`.

        Values of classes that this process does not know are plain values.
        """
        from wbengine.types import codec

        with self.flow(text) as (connection, uuid), codec.unknown_classes_as_text():
            return connection.get_flow_details(uuid)


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
