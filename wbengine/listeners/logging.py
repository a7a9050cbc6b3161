"""Listeners that write events to a logger."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, Final

from wbengine import formatters, states
from wbengine._introspection import object_names
from wbengine.listeners import base
from wbengine.types import failure as ft

__all__ = ["DynamicLoggingListener", "LoggingListener"]

LOG: Final = logging.getLogger(__name__)


_FAILED_FLOW_STATES: Final = (states.FAILURE, states.REVERTED)
_FAILED_ATOM_STATES: Final = (*_FAILED_FLOW_STATES, states.RETRYING, states.REVERT_FAILURE)


class LoggingListener(base.DumpingListener):
    """Logs every state change at one level."""

    #: Default logger; None: the logger of this module.
    _LOGGER: ClassVar[Any] = None

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        log: Any = None,
        level: int = logging.DEBUG,
    ) -> None:
        """Create a listener for `engine`.

        :param log: a logger, or a logger adapter.
        :raises TypeError: if `log` is neither, or `level` is not a number.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._logger = _first_logger(log, self._LOGGER)
        self._level = _level("level", level)

    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        self._logger.log(self._level, message, *args, **kwargs)


class DynamicLoggingListener(base.Listener):
    """Logs every state change, failures at a higher level.

    `failure_level` applies to flows that end in FAILURE or REVERTED, and to atoms that fail, are
    reverted, cannot be reverted, or are about to run again (RETRYING). `level` applies to all other
    events. A failure is logged with its traceback and the atoms that ran before it
    (`fail_formatter`). Results are logged only if `level` is enabled, and unless they are hidden or
    masked.
    """

    _LOGGER: ClassVar[Any] = None

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        log: Any = None,
        failure_level: int = logging.WARNING,
        level: int = logging.DEBUG,
        hide_inputs_outputs_of: Collection[str] = (),
        fail_formatter: Any = None,
        mask_inputs_keys: Collection[str] = (),
        mask_outputs_keys: Collection[str] = (),
    ) -> None:
        """Create a listener for `engine`.

        :param hide_inputs_outputs_of: names of atoms whose arguments and results are hidden.
        :param fail_formatter: object with a `format` like that of `formatters.FailureFormatter`,
            the default.
        :param mask_inputs_keys: arguments, and keys in them, whose values are hidden.
        :param mask_outputs_keys: names of provided results, and keys in them, whose values are
            hidden.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._failure_level = _level("failure_level", failure_level)
        self._level = _level("level", level)
        words = object_names.as_tuple
        self._hide_inputs_outputs_of = words("hide_inputs_outputs_of", hide_inputs_outputs_of)
        self._mask_inputs_keys = words("mask_inputs_keys", mask_inputs_keys)
        self._mask_outputs_keys = words("mask_outputs_keys", mask_outputs_keys)
        self._logger = _first_logger(log, self._LOGGER)
        self._fail_formatter = (
            fail_formatter
            if fail_formatter is not None
            else formatters.FailureFormatter(
                engine,
                hide_inputs_outputs_of=self._hide_inputs_outputs_of,
                mask_inputs_keys=self._mask_inputs_keys,
                mask_outputs_keys=self._mask_outputs_keys,
            )
        )

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        name = details[f"{kind}_name"]
        failure_states = _FAILED_FLOW_STATES if kind == "flow" else _FAILED_ATOM_STATES
        level = self._failure_level if state in failure_states else self._level
        message = f"{kind.capitalize()} '%s' (%s) transitioned into state '%s' from state '%s'"
        args: tuple[Any, ...] = (name, details[f"{kind}_uuid"], state, details.get("old_state"))
        if "result" not in details or state not in base.FINISH_STATES:
            self._logger.log(level, message, *args)
            return
        result = details["result"]
        if isinstance(result, ft.Failure):
            exc_info, text = self._fail_formatter.format(result, formatters.NamedAtom(name))
            if text:
                message, args = f"{message}%s%s", (*args, os.linesep, text)
            self._logger.log(self._failure_level, message, *args, exc_info=exc_info)
        elif self._is_shown(name):
            shown = self._masked(name, state, result)
            self._logger.log(level, f"{message} with result '%s'", *args, shown)
        else:
            self._logger.log(level, message, *args)

    def _is_shown(self, name: str) -> bool:
        return self._logger.isEnabledFor(self._level) and name not in self._hide_inputs_outputs_of

    def _masked(self, name: str, state: str, result: Any) -> Any:
        keys = self._mask_outputs_keys
        if not keys:
            return result
        if state == states.SUCCESS:
            result = formatters.without_parts(result, self._save_as(name), keys)
        return formatters.masked(result, keys)

    def _save_as(self, name: str) -> Any:
        plan = self._engine.compilation.plan
        node = plan.by_name.get(name)
        # The result of a step of a workflow is not provided under a name.
        return {} if node is None else plan.items[node].save_as


def _first_logger(*loggers: Any) -> Any:
    chosen = next((logger for logger in loggers if logger is not None), LOG)
    if not hasattr(chosen, "log"):
        raise TypeError(f"log must be a logger or a logger adapter, got {chosen!r}")
    return chosen


def _level(name: str, value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be a number such as logging.INFO, got {value!r}")
    return value
