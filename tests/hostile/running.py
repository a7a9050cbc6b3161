"""Hostile messages for a worker and an engine, which must survive and count each message."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.hostile import gates, inputs, senders, victims
from wbengine import engines
from wbengine.patterns import unordered_flow

#: Maximum number of seconds for a batch.
PATIENCE = 60.0
#: Maximum growth of the process in megabytes: it stores replies and workers.
MOST_GROWTH = 100.0


@dataclass
class Report:
    transport: str
    inputs: int = 0
    seconds: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    #: Growth of the process in megabytes since the first batch.
    growth: float = 0.0


def memory() -> float:
    """Return the current memory of this process in megabytes."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(
    kind: str, folder: Path, count: int, seed: int, batch: int = 500, where: str | None = None
) -> Report:
    """Send half of `count` messages to a worker, half to an engine, and some more that loop.

    :param where: URL of the broker, or None for a private one.
    """
    with senders.sender(kind, folder, where) as sender, victims.listening() as ear:
        attack = Attack(Report(kind), sender, ear, seed, batch)
        began = time.monotonic()
        attack.all(count)
        report = attack.report
        report.seconds = time.monotonic() - began
    report.lines = ear.lines
    report.problems += [f"logs say {n} times: {text}" for text, n in ear.problems.most_common(20)]
    if report.growth > MOST_GROWTH:
        report.problems.append(f"the process grew by {report.growth:.0f} MB")
    return report


class Attack:
    """One run."""

    def __init__(
        self, report: Report, sender: senders.Sender, ear: victims.Ear, seed: int, batch: int
    ) -> None:
        self.report = report
        self._sender = sender
        self._ear = ear
        self._seed = seed
        self._batch = batch

    def all(self, count: int) -> None:
        url = self._sender.url
        with victims.worker(url) as target:
            self._flood(target, count // 2)
            self._loops(target, max(20, count // 100))
            self._stale(max(20, count // 20))
            if not victims.settled(lambda: not target.busy, PATIENCE):
                self._blame("the worker still has something to do")
        with victims.engine(url) as other:
            self._flood(other, count - count // 2)

    def _blame(self, problem: str) -> None:
        self.report.problems.append(problem)

    def _flood(self, target: victims.Target, count: int) -> None:
        """Check that each message is counted and logged once, and that a flow runs after each
        batch.
        """
        messages = inputs.inputs(self._seed, target.victim, self._sender.raw)
        start = 0.0
        for done in range(0, count, self._batch):
            few = min(self._batch, count - done)
            if not self._send(target, messages, few):
                return
            self.report.inputs += few
            if isinstance(target, victims.EngineTarget):
                with victims.worker(self._sender.url) as helper:
                    victims.work(self._sender.url, target.executor)
                left = helper.worker.identity
                if not victims.settled(lambda left=left: not target.knows(left), PATIENCE):
                    self._blame("the engine does not hear that a worker left")
            else:
                victims.work(self._sender.url)
            start = start or memory()
        self.report.growth += memory() - start

    def _send(self, target: victims.Target, messages: inputs.Inputs, few: int) -> bool:
        _quiet(target, 0.05)  # the messages of a flow are counted
        before, began = target.counted(), time.monotonic()
        ends, lines = target.ends(), Counter(self._ear.lines)
        sent: list[inputs.Input] = []
        while len(sent) < few:
            one = next(messages)
            if self._sender.send(target.queues[len(sent) % len(target.queues)], one):
                sent.append(one)
        wanted = sum(before.values()) + few
        victims.settled(lambda: target.seen() >= wanted and not target.busy, PATIENCE)
        time.sleep(0.02)  # time for a second count, which would be an error

        def unlike() -> list[str]:
            gained, log_lines = target.counted() - before, self._ear.lines - lines
            return _unlike(target, gained, target.ends() - ends, log_lines)

        # the log follows the counter after a moment
        victims.settled(lambda: not unlike(), PATIENCE)
        gained = target.counted() - before
        self.report.counted.update({f"{target.name} {what}": n for what, n in gained.items()})
        self.report.problems += unlike()
        # An engine sends messages to itself from time to time.
        own = int((time.monotonic() - began) / 5) + 1 if target.name == "engine" else 0
        if few <= sum(gained.values()) <= few + own:
            return True
        kinds = dict(Counter(one.kind for one in sent)) if few > 3 else sent
        self._blame(f"{target.name}: {few} messages were counted as {dict(gained)}: {kinds}")
        return False

    def _loops(self, target: victims.WorkerTarget, count: int) -> None:
        """Send messages whose replies return to the target or go to all: they must not loop."""
        before = target.seen()
        places = (*target.queues, inputs.ALL_WORKERS, "wbe.engines")
        messages = inputs.sound(self._seed, target.victim, ("REQUEST", "NOTIFY", "wbe-ask"))
        for sent in range(count):
            one = next(messages)
            one.properties["reply_to"] = places[sent % len(places)]
            self._sender.send(target.queues[0], one)
        victims.settled(lambda: target.seen() - before >= count, PATIENCE)
        last = _quiet(target, 0.2)
        if not count <= last - before <= 11 * count:  # a message can contain up to nine requests
            self._blame(f"{count} messages that come back were counted {last - before} times")
        self.report.inputs += count
        victims.work(self._sender.url)

    def _stale(self, count: int) -> None:
        """Send replies with a wrong epoch for running requests: they must have no effect."""
        gates.OPEN.clear()
        with victims.engine(self._sender.url) as target:
            executor = target.executor
            flow = unordered_flow.Flow("gated").add(
                gates.Gated(name="a"), gates.Gated(name="b", provides="other")
            )
            loaded = engines.load(flow, engine="worker-based", executor=executor)
            thread = threading.Thread(target=loaded.run, daemon=True)
            thread.start()

            def started() -> list[str]:
                return [one.id for one in executor.requests("started")]

            if not victims.settled(lambda: len(started()) == 2, PATIENCE):
                self._blame("a flow does not start")
            ids, before = started(), target.ends()
            messages = inputs.sound(self._seed, target.victim, ("RESPONSE",))
            for number in range(count):
                one = next(messages)
                for name in ("wbe-ask", "wbe-lost"):
                    one.headers.pop(name, None)
                one.properties["correlation_id"] = ids[number % 2]
                one.headers["wbe-epoch"] = (0, 2, 3, 2**53)[number % 4]
                self._sender.send(target.queues[0], one)
            if not victims.settled(lambda: target.ends() - before == count, PATIENCE):
                self._blame(f"{count} stale answers: {target.ends() - before} were ignored")
            gates.OPEN.set()
            thread.join(PATIENCE)
            results = loaded.storage.fetch_all()
            if results != {"gated": "done", "other": "done"}:
                self._blame(f"stale answers changed what came of a flow: {results}")
        self.report.inputs += count


def _quiet(target: victims.Target, seconds: float) -> int:
    """Wait until no more messages arrive, and return their number."""
    last = -1
    while target.seen() != last:
        last = target.seen()
        time.sleep(seconds)
    return last


def _unlike(
    target: victims.Target, gained: Counter[str], ends: int, log_lines: Counter[str]
) -> list[str]:
    """Return the differences between counters and logs."""
    problems = []
    refused = sum(n for what, n in gained.items() if what.startswith("refused "))
    refused -= gained["refused unreadable"]  # transports limit the log lines about these
    refusals = sum(n for what, n in log_lines.items() if "refused message" in what)
    if refusals != refused:
        problems.append(f"{target.name}: {refused} were refused, {refusals} lines say so")
    kind = "RESPONSE" if target.name == "engine" else "REQUEST"
    came = gained[f"handled {kind}"]
    came += sum(n for what, n in log_lines.items() if "refused a query" in what)
    if ends != came:
        problems.append(f"{target.name}: of {came} messages, {ends} came to an end")
    return problems
