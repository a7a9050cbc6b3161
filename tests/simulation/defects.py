"""Defects that a simulation has to find: each is put into the real classes, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.seams import ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import server, types
from wbengine.engines.worker_based.discovery import hearing
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import book, entries, resending, terms
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.worker_side import deeds


@dataclass(frozen=True)
class Defect:
    """`patches` are `(class, name, made)`: `made(before)` takes the place of what was there.

    `kind` is the kind of schedules that show it: "ledger", "none" or "any".
    """

    text: str
    kind: str
    patches: tuple[tuple[Any, str, Callable[[Any], Any]], ...]


@contextmanager
def planted(name: str) -> Iterator[Defect]:
    """A defect is there."""
    defect = DEFECTS[name]
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, what, made in defect.patches:
            base = next(cls for cls in owner.__mro__ if what in cls.__dict__)
            before.append((base, what, base.__dict__[what]))
            setattr(base, what, made(base.__dict__[what]))
        yield defect
    finally:
        for base, what, old in before:
            setattr(base, what, old)


def _no_epoch_check(before: Any) -> Any:
    def refusal(self: Any, answer: env.Envelope) -> Any:
        reason = before(self, answer)
        return None if reason == "old_epoch" else reason

    return refusal


def _run_on_missing_row(before: Any) -> Any:
    def on_claim(self: Any, job: Any, claim: ledgers.Claim) -> Any:
        if claim.verdict == ledgers.MISSING:
            claim = ledgers.Claim(ledgers.GRANTED, job.epoch, None, self.identity)
        return before(self, job, claim)

    return on_claim


def _running_after_success(before: Any) -> Any:
    def on_response(self: Any, answer: Any, receipt: Any, now: float) -> Any:
        entry = self._entries.get(answer.correlation_id)
        late = entry is not None and entry.state in pr.STOP_STATES
        if late and answer.body["state"] == pr.RUNNING:
            entry.request.current_state = pr.RUNNING
        return before(self, answer, receipt, now)

    return on_response


def _time_alone(before: Any) -> Any:
    """What was not heard of for a while is sent again."""

    def review(self: Any, now: float) -> Any:
        effects = before(self, now)
        for entry in list(self._entries.values()):
            late = entry.sent_at is not None and now - entry.sent_at > 10.0
            if late and entry.shelf is self._sent:
                if self.ledger is None:
                    entry.next_epoch(entry.next_number)
                effects += self._publish_again(entry, now)
        return effects

    return review


def _same_epoch(before: Any) -> Any:
    def next_number(self: Any) -> int:
        epoch: int = self.epoch
        return epoch

    return property(next_number)


def _ack_first(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *rest: Any, **options: Any) -> Any:
        return [deeds.Acknowledge(receipt), *before(self, request, receipt, *rest, **options)]

    return on_request


def _once_idle(before: Any) -> Any:
    """One report of a free slot is enough."""

    def idle(self: Any, entry: Any) -> bool:
        return entry.sent_at is not None

    return idle


def _believe_lost(before: Any) -> Any:
    def given_twice(self: Any, entry: Any, now: float) -> Any:
        return self._started(entry, None, now) + self._settle(entry, entry.unknown(), now=now)

    return given_twice


def _no_most(before: Any) -> Any:
    def lose(self: Any, entry: Any, *rest: Any, **more: Any) -> Any:
        entry.resends = 0
        return before(self, entry, *rest, **more)

    return lose


def _anything_twice(before: Any) -> Any:
    return lambda self, task: True


def _redelivered_runs(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *rest: Any, **options: Any) -> Any:
        request.redelivered = False
        return before(self, request, receipt, *rest, **options)

    return on_request


def _twice_claimed(before: Any) -> Any:
    def claim(self: Any, id: str, epoch: int, holder: str) -> ledgers.Claim:
        found: ledgers.Claim = before(self, id, epoch, holder)
        if found.verdict == ledgers.HELD:
            return ledgers.Claim(ledgers.GRANTED, epoch, None, holder)
        return found

    return claim


def _claims_any_epoch(before: Any) -> Any:
    def claim(self: Any, id: str, epoch: int, holder: str) -> ledgers.Claim:
        row = self._rows.get(id)
        return before(self, id, epoch if row is None else row.epoch, holder)  # type: ignore[no-any-return]

    return claim


def _no_drop(before: Any) -> Any:
    def retired(self: Any, calls: Any) -> Any:
        return [each for each in before(self, calls) if not isinstance(each, fx.Drop)]

    return retired


def _deaf(before: Any) -> Any:
    return lambda self, now, patience: False


def _no_grace(before: Any) -> Any:
    return lambda self, now: None


def _never_asks(before: Any) -> Any:
    def ask(self: Any) -> Any:
        self.unasked.clear()
        return []

    return ask


def _no_refill(before: Any) -> Any:
    return lambda self, queue, now: []


def _revoke_is_enough(before: Any) -> Any:
    """What cannot be revoked is over as well."""

    def on_revoked(self: Any, entry: Any, revoked: bool, now: float) -> Any:
        return before(self, entry, True, now)

    return on_revoked


def _late_failure(before: Any) -> Any:
    """Each end counts, whatever came before."""

    def refusal(self: Any, answer: env.Envelope) -> Any:
        reason = before(self, answer)
        if reason == "late" and answer.body["state"] in pr.STOP_STATES:
            self.request.current_state = pr.RUNNING
            return None
        return reason

    return refusal


DEFECTS: Final[dict[str, Defect]] = {
    # The four that have to be found.
    "epoch-check": Defect(
        "answers of any epoch count", "none", ((entries.Entry, "refusal", _no_epoch_check),)
    ),
    "missing-row": Defect(
        "a request without a row is run",
        "ledger",
        ((server.Server, "on_claim", _run_on_missing_row),),
    ),
    "running-after-success": Defect(
        "RUNNING is taken after the end",
        "any",
        ((book.RequestBook, "on_response", _running_after_success),),
    ),
    "time-alone": Defect(
        "what is not heard of is sent again in time",
        "any",
        ((resending.Resending, "review", _time_alone),),
    ),
    # And others.
    "same-epoch": Defect(
        "what is sent again keeps its number",
        "none",
        ((entries.Entry, "next_number", _same_epoch),),
    ),
    "ack-first": Defect(
        "requests are acknowledged before they are claimed",
        "any",
        ((server.Server, "on_request", _ack_first),),
    ),
    "once-idle": Defect(
        "nobody need have reported a free slot",
        "any",
        ((resending.Resending, "_idle", _once_idle),),
    ),
    "believe-lost": Defect(
        "LOST is believed at once",
        "none",
        ((resending.Resending, "_on_given_twice", _believe_lost),),
    ),
    "no-most": Defect(
        "a request is sent again without end", "any", ((resending.Resending, "_lose", _no_most),)
    ),
    "anything-twice": Defect(
        "any task may be run twice", "ledger", ((terms.Terms, "repeats", _anything_twice),)
    ),
    "redelivered-runs": Defect(
        "what was given to another is run",
        "none",
        ((server.Server, "on_request", _redelivered_runs),),
    ),
    "twice-claimed": Defect(
        "a claimed row is claimed again",
        "ledger",
        ((ledgers.InMemory, "claim", _twice_claimed),),
    ),
    "claims-any-epoch": Defect(
        "a claim of an old epoch is granted",
        "ledger",
        ((ledgers.InMemory, "claim", _claims_any_epoch),),
    ),
    "no-drop": Defect("rows are not removed", "ledger", ((book.RequestBook, "retired", _no_drop),)),
    "no-refill": Defect(
        "the backlog waits for ever", "any", ((book.RequestBook, "_refill", _no_refill),)
    ),
    "never-asks": Defect("nobody is asked", "none", ((book.RequestBook, "ask", _never_asks),)),
    "revoke-is-enough": Defect(
        "what is claimed times out",
        "ledger",
        ((book.RequestBook, "on_revoked", _revoke_is_enough),),
    ),
    "every-end-counts": Defect(
        "a second end changes the first", "any", ((entries.Entry, "refusal", _late_failure),)
    ),
    "silence-counts-always": Defect(
        "an engine that slept, or hears nothing, takes workers for lost",
        "any",
        (
            (types.ProxyWorkerFinder, "_forgive", _no_grace),
            (hearing.Hearing, "is_deaf", _deaf),
        ),
    ),
}
FOUR: Final = ("epoch-check", "missing-row", "running-after-success", "time-alone")
