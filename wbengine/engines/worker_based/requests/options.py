"""What an engine's requests are sent under: its options, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from wbengine import _names, _options
from wbengine.concurrency import limits
from wbengine.engines.worker_based.ledger.base import STALE_AFTER
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["FAIL", "MOST_RESENDS", "NAMES", "RESEND", "RequestOptions"]

#: What becomes of a task whose worker was lost, and that does not say whether it may run twice.
OnLost = Literal["fail", "resend"]
FAIL: Final = "fail"
RESEND: Final = "resend"

#: A run of a flow has so many epochs for each request, less those it may need for other reasons.
MOST_RESENDS: Final = 500


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options of an executor that concern each of its requests.

    - `on_worker_lost`: `'resend'`, or `'fail'`, what holds for tasks whose `idempotent` is None.
    - `max_resends`: how often one request is sent again because its worker was lost.
    - `timelimit`: `(soft, hard)` of the tasks that have none of their own.
    - `max_message_size`: the bytes of an encoded message, above which it is not sent.
    - `broker_persistent`: whether requests survive the broker's end (None: where no ledger is).
    - `result_ttl`: seconds for which the ledger keeps what nobody comes back for (0: not at all,
      None: for ever).
    - `trace_arguments`: whether messages show their arguments, masked and cut.

    :raises TypeError, ValueError: an option is none of these; it says which.
    """

    on_worker_lost: OnLost = FAIL
    max_resends: int = 3
    timelimit: Any = None
    max_message_size: int = env.MAX_MESSAGE_SIZE
    broker_persistent: bool | None = None
    result_ttl: float | None = STALE_AFTER
    trace_arguments: bool = False

    def __post_init__(self) -> None:
        _options.choice("on_worker_lost", self.on_worker_lost, (FAIL, RESEND))
        read: dict[str, Any] = {
            "max_resends": _options.whole("max_resends", self.max_resends),
            "max_message_size": _options.whole("max_message_size", self.max_message_size, 1),
            "timelimit": limits.read(self.timelimit),
        }
        if self.result_ttl is not None:
            read["result_ttl"] = _options.number("result_ttl", self.result_ttl)
        if read["max_resends"] > MOST_RESENDS:
            raise ValueError(f"max_resends must be {MOST_RESENDS} at most, not {self.max_resends}")
        if not (self.broker_persistent is None or isinstance(self.broker_persistent, bool)):
            raise TypeError(
                f"broker_persistent must be True, False or None, not {self.broker_persistent!r}"
            )
        if not isinstance(self.trace_arguments, bool):
            raise TypeError(f"trace_arguments must be True or False, not {self.trace_arguments!r}")
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RequestOptions:
        """The options that were given, by name.

        :raises TypeError: there is no such option, or a value is of the wrong kind.
        :raises ValueError: a value makes no sense.
        """
        for name in given:
            if name not in NAMES:
                hint = _names.hint(name, NAMES)
                raise TypeError(f"a WorkerTaskExecutor has no option {name!r}{hint}")
        return cls(**given)

    def repeats(self, task: Any) -> bool:
        """Whether a task may be sent again when nobody can tell whether it was run."""
        if task.idempotent is None:
            return self.on_worker_lost == RESEND
        return bool(task.idempotent)


#: The names of the options.
NAMES: Final = frozenset(RequestOptions.__dataclass_fields__)
