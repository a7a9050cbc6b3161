"""The options for the requests of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine._concurrency import time_limits
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._ledger import STALE_AFTER_SECONDS

__all__ = ["FAIL", "MAX_RESENDS", "NAMES", "RESEND", "RequestOptions"]

#: What to do with a task whose worker was lost, if its `idempotent` is None.
OnLost = Literal["fail", "resend"]
FAIL: Final = "fail"
RESEND: Final = "resend"

#: Maximum of `max_resends`. A run has a limited number of epochs for each request, and other causes
#: also need some.
MAX_RESENDS: Final = 500


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of an executor that apply to each of its requests.

    `WorkerBasedActionEngine` describes them.

    :raises TypeError, ValueError: if an option is not valid; the error names it.
    """

    on_worker_lost: OnLost = FAIL
    max_resends: int = 3
    timelimit: Any = None
    max_message_size: int = env.MAX_MESSAGE_SIZE
    broker_persistent: bool | None = None
    result_ttl: float | None = STALE_AFTER_SECONDS
    trace_arguments: bool = False

    def __post_init__(self) -> None:
        named_options.choice("on_worker_lost", self.on_worker_lost, (FAIL, RESEND))
        read: dict[str, Any] = {
            "max_resends": named_options.whole("max_resends", self.max_resends),
            "max_message_size": named_options.whole("max_message_size", self.max_message_size, 1),
            "timelimit": time_limits.read(self.timelimit),
        }
        if self.result_ttl is not None:
            read["result_ttl"] = named_options.number("result_ttl", self.result_ttl)
        if read["max_resends"] > MAX_RESENDS:
            raise ValueError(f"max_resends must be at most {MAX_RESENDS}, got {self.max_resends}")
        if not (self.broker_persistent is None or isinstance(self.broker_persistent, bool)):
            raise TypeError(
                f"broker_persistent must be True, False or None, got {self.broker_persistent!r}"
            )
        if not isinstance(self.trace_arguments, bool):
            raise TypeError(f"trace_arguments must be True or False, got {self.trace_arguments!r}")
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RequestOptions:
        """Return the options with these names and values.

        :raises TypeError: if an option is unknown, or a value has the wrong type.
        :raises ValueError: if a value is not valid.
        """
        for name in options:
            if name not in NAMES:
                hint = object_names.hint(name, NAMES)
                raise TypeError(f"WorkerTaskExecutor has no option {name!r}{hint}")
        return cls(**options)

    def repeats(self, task: Any) -> bool:
        """Return whether a task may be resent although it may have run."""
        if task.idempotent is None:
            return self.on_worker_lost == RESEND or task.transaction is not None
        return bool(task.idempotent)


#: Names of the options.
NAMES: Final = frozenset(RequestOptions.__dataclass_fields__)
