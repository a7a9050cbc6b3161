"""A guest of a worker that brings it the tasks of Celery's clients."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import kombu

from wbengine import pools, running
from wbengine.engines.worker_based.worker_side import guests, reporting
from wbengine.interop.celery import brokers, clock, retrying
from wbengine.interop.celery.monitoring import publisher
from wbengine.interop.celery.protocol import serializers
from wbengine.interop.celery.protocol.wire import Wire, is_celery
from wbengine.interop.celery.worker import (
    backends,
    consumer,
    control,
    deeds,
    doubting,
    inquiring,
    lines,
    mapping,
    posting,
    sender,
    service,
)
from wbengine.interop.celery.worker.jobs import MODULES, Job
from wbengine.types import failure as ft

__all__ = ["Guest"]

LOG = logging.getLogger("wbengine.celery")

#: So many names of tasks are in the banner.
_SHOWN: Final = 5

#: Characters of a name that others are told.
_LONGEST: Final = 200

#: Seconds in which nothing comes any more that was asked for before.
_QUIET: Final = 3.0


class Guest:
    """Take task messages of Celery from `queues` of a broker, and run them in the worker's pool.

    `node` is its name for monitors and remote control, `told` publishes events if there is one, and
    is started and stopped here.  Without queues it only answers remote control.  Follow-up tasks
    that do not say where they go are sent to `default_queue`.  `extended`: results also tell what
    their task was called with, and where it ran.  `patience`: how long other workers are waited for
    that may have begun what came.
    """

    def __init__(
        self,
        broker: brokers.Broker,
        queues: Iterable[str],
        tasks: mapping.Tasks,
        *,
        node: str,
        backend: backends.Backend | None = None,
        accepted: serializers.Accepted | None = None,
        langs: Mapping[str, str] | None = None,
        told: publisher.EventPublisher | None = None,
        ticks: clock.Clock | None = None,
        default_queue: str = brokers.DEFAULT_QUEUE,
        extended: bool = False,
        patience: doubting.Patience | None = None,
    ) -> None:
        self.node = node
        self._broker = broker
        self._tasks = tasks
        self._accepted = accepted or serializers.Accepted()
        self._langs = dict(langs or {})
        self._publisher = told
        self._default_queue = default_queue
        self._extended = extended
        self._patience = patience
        self._backend = backend or backends.Rpc()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stopping = threading.Event()
        #: When the last message came, on the monotonic clock.
        self.taken = -math.inf
        #: Messages that are none of Celery's.
        self.strangers = 0
        self._consumer = consumer.Consumer(broker, queues, self)
        self._sender = sender.Sender(
            posting.Post(broker, self._stopping),
            self._backend,
            self._consumer.settle,
            default_queue,
        )
        self._inquirer = inquiring.Inquirer(broker, self._on_answers)
        self._panel = control.Panel(self, told, ticks or clock.Clock())
        self._host: guests.Host
        self._service: service.Service

    def __str__(self) -> str:
        return f"the guest of Celery's broker {self._broker.shown}"

    # For its worker.

    def attach(self, host: guests.Host) -> None:
        self._host = host
        if isinstance(host.pool, pools.ProcessPool):
            host.pool.preload(MODULES | self._tasks.modules)
        self._service = service.Service(
            self._tasks,
            host.slots,
            accepted=self._accepted,
            worker=self.node,
            langs=self._langs,
            max_hold=self._broker.longest_hold,
            telling=self._publisher is not None,
            admit=host.admit,
            nonce=uuid.uuid4().hex[:16],
            extended=self._extended,
            patience=self._patience,
        )

    def start(self) -> None:
        """
        :raises TransportFailure: its broker cannot be reached.
        """
        self._consumer.start()
        self._sender.start()
        if self._publisher is not None:
            self._publisher.start()

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self._consumer.wait_ready(timeout)

    @property
    def description(self) -> Sequence[tuple[str, str]]:
        found = [("celery", f"{', '.join(self.queues) or 'no queues'} at {self._broker.shown}")]
        if self.queues:
            found.append(("results", str(self._backend)))
            if self._default_queue not in self.queues:
                found.append(("sends to", f"{self._default_queue}, what does not say where"))
            if named := self._tasks.mapped:
                shown = ", ".join(named[:_SHOWN])
                more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
                found.append(("known as", shown + more))
        found.append(("node", self.node))
        return found

    @property
    def busy(self) -> bool:
        return self._service.busy or self._sender.busy or not self._consumer.connected

    @property
    def running(self) -> int:
        return self._service.running

    @property
    def current(self) -> list[tuple[str, str, float]]:
        begun = list(self._service.jobs.begun.values())
        return [(job.id, job.name[:_LONGEST], job.started or 0.0) for job in begun]

    @property
    def began(self) -> int:
        """How many tasks began."""
        return self._service.began

    def suspend(self) -> None:
        self._consumer.pause()
        self._do(self._service.suspend)

    def resume(self) -> None:
        self._do(self._service.resume)
        self._consumer.resume()

    def drain(self) -> None:
        self._consumer.pause()
        self._do(self._service.drain)

    def give_up(self) -> None:
        self._consumer.pause()
        self._do(self._service.abandon)

    def wait_idle(self, timeout: float | None = None) -> bool:
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._consumer.wait_quiet(min(_QUIET, _left(until) or _QUIET))
        with self._lock:
            if not self._changed.wait_for(lambda: not self._service.busy, _left(until)):
                return False
        return self._sender.flush(_left(until))

    def close(self, timeout: float = 5.0) -> None:
        until = time.monotonic() + timeout
        self._sender.close(timeout)
        with self._lock:  # what was done is to be settled, too
            self._changed.wait_for(lambda: not self._service.busy, until - time.monotonic())
        self._stopping.set()
        self._inquirer.close(max(0.1, until - time.monotonic()))
        self._consumer.close(max(0.5, until - time.monotonic()))
        if self._publisher is not None:
            self._publisher.stop(min(2.0, max(0.2, until - time.monotonic())))

    # For its consumer.

    @property
    def prefetch(self) -> int:
        """How many messages may be unsettled: others may be taken for those that have ended."""
        return self._service.prefetch + min(len(self._service.jobs.leaving), self._service.slots)

    def on_message(self, message: Any, receipt: lines.Receipt) -> None:
        self.taken = time.monotonic()
        try:
            if not is_celery(message.headers or {}, message.properties or {}):
                self._refuse(message, receipt)
                return
            wire = receipt.wire = message if isinstance(message, Wire) else Wire.of(message)
            self._do(
                lambda now: self._service.on_message(
                    wire, receipt, receipt.queue, receipt.past, now, receipt.note
                )
            )
        except Exception:  # whatever it holds
            LOG.exception("a message from queue %r cannot be taken", receipt.queue)
            self._consumer.settle((receipt,))

    def _refuse(self, message: Any, receipt: lines.Receipt) -> None:
        self.strangers += 1
        LOG.warning(
            "a message from queue %r is one of wbengine's own, and not of Celery: it is rejected",
            receipt.queue,
        )
        self._consumer.settle((receipt,), False)

    def on_settled(self, receipts: Sequence[lines.Receipt]) -> None:
        effects: list[deeds.Effect] = []
        with self._lock:
            for receipt in receipts:
                job, receipt.job = receipt.job, None
                if job is not None:
                    effects += self._service.on_done(job, receipt)
            if not self._service.busy:
                self._changed.notify_all()
        self._apply(effects)

    def on_marked(self, receipts: Sequence[lines.Receipt], noted: bool) -> None:
        jobs = [job for receipt in receipts if (job := receipt.job) is not None]
        for receipt in receipts:
            receipt.job = None
        heard = self._service.on_marked if noted else self._service.on_refused
        self._do(functools.partial(heard, jobs))

    def on_lost(self) -> None:
        with self._lock:
            self._service.on_disconnected()
            if not self._service.busy:
                self._changed.notify_all()

    def on_connected(self, connection: kombu.Connection) -> None:
        self._do(self._service.on_connected)
        self._panel.listen(connection)
        LOG.info(
            "serving Celery's queues %s at %s",
            ", ".join(self.queues) or "(none)", self._broker.shown,
        )  # fmt: skip

    def on_time(self, now: float) -> float | None:
        due = self._service.next_due()
        if due is None or due > now:
            return due
        with self._lock:
            effects = self._service.on_due(now)
            due = self._service.next_due()
        self._apply(effects)
        return due

    def _on_answers(self, fates: doubting.Fates) -> None:
        self._do(functools.partial(self._service.on_answers, fates))
        self._consumer.ring()  # for the next question

    # For its panel.

    @property
    def queues(self) -> list[str]:
        return self._consumer.queues

    def revoke(self, ids: Iterable[Any], terminate: bool) -> None:
        self._do(functools.partial(self._service.revoke, list(ids), terminate))

    def revoke_by_stamps(self, stamps: Mapping[str, Any], terminate: bool) -> None:
        self._do(functools.partial(self._service.revoke_by_stamps, stamps, terminate))

    def known(self, what: str, *args: Any) -> Any:
        with self._lock:
            found = getattr(self._service, what)
            return found(*args) if callable(found) else found

    def stats(self) -> dict[str, Any]:
        return {
            "pool": {"implementation": "wbengine", "max-concurrency": self._host.slots},
            "prefetch_count": self.prefetch,
            "broker": self._broker.facts,
            "wbengine": {"identity": self._host.identity, "messages": self.known("counts")},
        }

    def settings(self) -> dict[str, Any]:
        return {
            "accept_content": list(self._accepted.names),
            "broker_url": self._broker.shown,
            "result_backend": str(self._backend),
            "worker_concurrency": self._host.slots,
            "worker_send_task_events": self._publisher is not None and self._publisher.enabled,
        }

    def add_queue(self, name: str) -> None:
        self._consumer.add(name)

    def cancel_queue(self, name: str) -> None:
        self._consumer.cancel(name)

    def shut_down(self) -> None:
        self._host.stop()

    # What is to be done.

    def _do(self, change: Callable[[float], list[deeds.Effect]]) -> None:
        with self._lock:
            effects = change(time.time())
        self._apply(effects)

    def _apply(self, effects: Iterable[deeds.Effect]) -> None:
        for effect in effects:
            match effect:
                case deeds.Run(job):
                    self._run(job)
                case deeds.Mark(job):
                    receipt = job.receipt
                    receipt.note, receipt.job = job.note, job
                    self._consumer.mark(receipt)
                case deeds.Cancel(job):
                    self._cancel(job)
                case deeds.Acknowledge(receipt):
                    self._consumer.settle((receipt,))
                case deeds.Reject(receipt):
                    self._consumer.settle((receipt,), False)
                case deeds.Requeue(receipt):
                    receipt.back = True
                    self._consumer.settle((receipt,), False)
                case deeds.Inquire(ids):
                    self._inquirer.ask(ids)
                case deeds.GiveBack(job) if job.receipt.line.copies:
                    receipt = job.receipt
                    receipt.job, receipt.copy = job, job.wire.unmarked()
                    self._consumer.settle((receipt,))
                case deeds.Tell(kind, fields):
                    if self._publisher is not None:
                        self._publisher.tell(kind, **fields)
                case _:
                    self._sender.put(effect)

    def _run(self, job: Job) -> None:
        for onlooker in self._host.reports.onlookers:
            job.handed_on = {**job.handed_on, **onlooker.guest_began(job, self._broker.system)}
        try:
            call = job.call(self._host.loop)
            if running.sending is not None and self._host.loop is None:  # it goes into a child
                call = running.sending(job.key, call)
            job.ticket = self._host.pool.submit(
                *call,
                functools.partial(self._ran, job),
                functools.partial(self._told, job),
                job.limit,
                job.name,
                lazily=True,
            )
        except Exception as error:
            self._ran(job, ft.Failure.from_exception(error))
        if job.cancelled:  # meanwhile
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        if job.ticket is not None:
            job.ticket.cancel(0)  # Celery's workers kill a process at once, too

    def _told(self, job: Job, event_type: str, details: dict[str, Any]) -> None:
        self._do(functools.partial(self._service.on_event, job, event_type, details))

    def _ran(self, job: Job, value: Any) -> None:
        self._do(functools.partial(self._service.on_finished, job, value))
        ended = job.outcome
        if ended is None:
            return  # it was given up
        for onlooker in self._host.reports.onlookers:
            well = not (ended.failed or isinstance(ended.value, retrying.Again))
            onlooker.guest_ended(job, ended, well)
        if ended.failed:
            self._host.pool.call_others()  # whoever is told may take his time
            self._host.reports.ended(job, ended)
        elif reporting.LOG.isEnabledFor(logging.INFO):
            self._host.reports.ended(job, ended)


def _left(until: float) -> float | None:
    return None if until == math.inf else max(0.0, until - time.monotonic())
