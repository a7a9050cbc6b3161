"""Writes what happens to a logger."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, Final

from wbengine import _names, formatters, states
from wbengine.listeners import base
from wbengine.types import failure as ft

__all__ = ["DynamicLoggingListener", "LoggingListener"]

LOG: Final = logging.getLogger(__name__)


#: States in which something went wrong.
_WRONG_FLOW: Final = (states.FAILURE, states.REVERTED)
_WRONG_ATOM: Final = (*_WRONG_FLOW, states.RETRYING, states.REVERT_FAILURE)


class LoggingListener(base.DumpingListener):
    """Logs every change of state at one level."""

    #: The logger, when the constructor is given none; None: that of this module.
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
        """
        :param log: a logger, or an adapter of one.
        :raises TypeError: `log` is none, or `level` is no number.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._logger = _pick(log, self._LOGGER)
        self._level = _level("level", level)

    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        self._logger.log(self._level, message, *args, **kwargs)


class DynamicLoggingListener(base.Listener):
    """Logs every change of state, and what went wrong at a higher level.

    `failure_level` is for flows that end in FAILURE or REVERTED, and for atoms that fail, were
    reverted, could not be reverted, or are about to run again (RETRYING); `level` for all else.
    A failure comes with its traceback, and with what was done before it (`fail_formatter`).
    Results are shown only when `level` is enabled, and as far as they are not hidden or masked.
    """

    #: The logger, when the constructor is given none; None: that of this module.
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
        """
        :param hide_inputs_outputs_of: names of atoms whose arguments and results are not shown.
        :param fail_formatter: has a `format` as that of `formatters.FailureFormatter`, which is
            the default.
        :param mask_inputs_keys: arguments, and keys in them, whose values are not shown.
        :param mask_outputs_keys: the same for results, by the names they are provided under.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._failure_level = _level("failure_level", failure_level)
        self._level = _level("level", level)
        words = _names.words
        self._hide_inputs_outputs_of = words("hide_inputs_outputs_of", hide_inputs_outputs_of)
        self._mask_inputs_keys = words("mask_inputs_keys", mask_inputs_keys)
        self._mask_outputs_keys = words("mask_outputs_keys", mask_outputs_keys)
        self._logger = _pick(log, self._LOGGER)
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
        wrong = _WRONG_FLOW if kind == "flow" else _WRONG_ATOM
        level = self._failure_level if state in wrong else self._level
        message = f"{kind.capitalize()} '%s' (%s) transitioned into state '%s' from state '%s'"
        who: tuple[Any, ...] = (name, details[f"{kind}_uuid"], state, details.get("old_state"))
        if "result" not in details or state not in base.FINISH_STATES:
            self._logger.log(level, message, *who)
            return
        result = details["result"]
        if isinstance(result, ft.Failure):
            exc_info, text = self._fail_formatter.format(result, formatters.NamedAtom(name))
            if text:
                message, who = f"{message}%s%s", (*who, os.linesep, text)
            self._logger.log(self._failure_level, message, *who, exc_info=exc_info)
        elif self._shows(name):
            shown = self._masked(name, state, result)
            self._logger.log(level, f"{message} with result '%s'", *who, shown)
        else:
            self._logger.log(level, message, *who)

    def _shows(self, name: str) -> bool:
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
        return plan.items[plan.by_name[name]].save_as


def _pick(*loggers: Any) -> Any:
    found = next((logger for logger in loggers if logger is not None), LOG)
    if not hasattr(found, "log"):
        raise TypeError(f"log must be a logger, or an adapter of one, not {found!r}")
    return found


def _level(name: str, value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be a number, as logging.INFO is, not {value!r}")
    return value
