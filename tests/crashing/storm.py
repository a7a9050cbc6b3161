"""The storm: random kills of engine processes until all flows have ended."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crashing import children, engines, judging, stores, workers
from tests.seams.stores import left_in

#: Kinds of the engine processes that run at the same time.
GROUPS = (*["worker-based"] * 3, *["serial"] * 3, *["parallel"] * 3)
WORKERS = 2
#: Minimum duration of a task in seconds.
NAP = 0.002


@dataclass
class Group:
    """Flows that one engine process after another runs."""

    work: engines.Work
    kind: str
    store: str
    #: Number of remaining kills.
    kills: int
    pid: int | None = None
    lives: int = 0
    killed: int = 0
    #: Time of the kill: the number of effects, then the time by the monotonic clock.
    effects: int = 0
    moment: float = 0.0
    cuts: list[dict[str, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the size of the audit in bytes: a cheap measure of progress that only grows."""
        return sum(
            path.stat().st_size for path in self.work.folder.glob("audit-*") if path.exists()
        )


class Storm:
    """Flows and kills over all stores and kinds of engines."""

    def __init__(
        self, names: Sequence[str], kills: int, kinds: Sequence[str], seed: int, folder: Path
    ) -> None:
        self._names = names
        self._kills = kills
        self._kinds = kinds
        self._chance = random.Random(seed)
        self._folder = folder
        self._expected: Mapping[str, judging.FlowHistory] = {}
        self.problems: list[str] = []

    def run(self) -> int:
        """Run the storm, print the progress and a table, and return the number of problems."""
        began = time.monotonic()
        engines.preload(self._kinds)
        self._expected = engines.expected(self._folder / "expected", self._names)
        broker = self._folder / "broker"
        with stores.databases(self._kinds, 1) as (databases,):
            groups = list(self._groups(databases, broker))
            url = f"filesystem://{broker}"
            logs = [self._folder / f"worker-{number}.log" for number in range(WORKERS)]
            hired = [workers.start(url, log) for log in logs]
            try:
                self._blow(groups)
            finally:
                codes = [children.stop(pid) for pid in hired]
            self.problems += [f"a worker ended with {code}" for code in codes if code]
            for group in groups:
                self._judge(group)
            for conf in {str(group.work.conf): group.work.conf for group in groups}.values():
                self.problems += [f"{conf} still has {left}" for left in left_in(conf)]
        self.problems += [f"the broker still has {left}" for left in workers.left_in(broker)]
        self.problems += [f"there is still {queue}" for queue in workers.reply_queues(broker)]
        self.problems += children.Clean.problems({log.name: log for log in logs})
        self._print(groups, time.monotonic() - began)
        return len(self.problems)

    def _groups(self, databases: dict[str, str], broker: Path) -> Iterator[Group]:
        count = min(len(GROUPS), len(self._names))
        for number in range(count):
            store, kind = self._kinds[number % len(self._kinds)], GROUPS[number]
            folder = self._folder / f"group-{number}"
            folder.mkdir()
            places = stores.Stores(folder, databases)
            work = engines.Work(
                folder,
                places.conf(store, "records"),
                engines.options(kind, broker),
                tuple(self._names[number::count]),
                nap=NAP,
                threads=4,
            )
            share = self._kills // count + (number < self._kills % count)
            yield Group(work, kind, store, share)

    # -- kills ----------------------------------------------------------------------------------

    def _blow(self, groups: Sequence[Group]) -> None:
        reported_at = time.monotonic()
        living = list(groups)
        try:
            for group in living:
                self._begin(group)
            while living:
                time.sleep(0.003)
                living = [group for group in living if self._goes_on(group)]
                self._hand_on(groups, living)
                if time.monotonic() - reported_at > 10:
                    reported_at = time.monotonic()
                    killed = sum(group.killed for group in groups)
                    print(f"{killed} of {self._kills} kills, {len(living)} processes", flush=True)
        finally:
            for group in groups:
                if group.pid is not None:
                    children.kill(group.pid)

    def _hand_on(self, groups: Sequence[Group], living: Sequence[Group]) -> None:
        """Transfer the remaining kills of finished groups to other groups."""
        for group in groups:
            if living and group.kills and group.pid is None:
                self._chance.choice(living).kills += group.kills
                group.kills = 0

    def _begin(self, group: Group) -> None:
        wanted = sum(self._bytes_of(flow) for flow in group.work.flows)
        size = group.size
        left = max(0, wanted - size)
        group.pid = engines.live(group.work, group.lives)
        group.lives += 1
        # Spread the remaining kills over the remaining work, so that all happen before the end.
        mean = left // (group.kills + 1) if group.kills else 0
        group.effects = size + self._chance.randint(0, mean)
        delay = self._chance.choice([0.0, 0.02, 0.1]) if mean > 300 else 0.01
        group.moment = time.monotonic() + self._chance.random() * delay

    def _goes_on(self, group: Group) -> bool:
        assert group.pid is not None
        code = children.ended(group.pid, 0)
        if code is not None:
            group.pid = None
            if code:
                self.problems.append(f"a process of {group.work.folder} ended with {code}")
            return False
        if group.kills and group.size >= group.effects and time.monotonic() >= group.moment:
            os.kill(group.pid, signal.SIGKILL)
            children.wait(group.pid)
            group.kills -= 1
            group.killed += 1
            group.cuts.append({flow: len(group.work.effects(flow)) for flow in group.work.flows})
            self._begin(group)
        return True

    def _bytes_of(self, flow: str) -> int:
        pid = 1 + len(str(os.getpid())) + 1
        return sum(len(effect) + pid for effect in self._expected[flow].effects)

    # -- checks ---------------------------------------------------------------------------------

    def _judge(self, group: Group) -> None:
        ends: dict[str, Any] = engines.end(group.work) or {}
        seen = [engines.cuts(group.work, n, counts) for n, counts in enumerate(group.cuts, 1)]
        rules = judging.Rules(once=group.kind == "worker-based")
        for flow in group.work.flows:
            cuts = [cut[flow] for cut in seen]
            history = judging.FlowHistory(flow, group.work.effects(flow), ends.get(flow), cuts)
            self.problems += [
                f"{group.store} x {group.kind}: {problem} (in {group.work.folder})"
                for problem in judging.problems(history, self._expected[flow], rules)
            ]
        logs = {path.name: path for path in group.work.folder.glob("*.log")}
        self.problems += children.Clean.problems(logs)

    def _print(self, groups: Sequence[Group], seconds: float) -> None:
        for problem in self.problems:
            print(f"PROBLEM {problem}")
        print(f"{'store':<12}{'engine':<14}{'flows':>6}{'kills':>6}{'runs':>7}{'again':>7}")
        total: Counter[str] = Counter()
        for group in groups:
            effects = {flow: group.work.effects(flow) for flow in group.work.flows}
            runs = sum(map(len, effects.values()))
            again = runs - sum(len(set(done)) for done in effects.values())
            total.update(kills=group.killed, runs=runs, again=again, flows=len(effects))
            print(
                f"{group.store:<12}{group.kind:<14}{len(effects):>6}{group.killed:>6}"
                f"{runs:>7}{again:>7}"
            )
        print(
            f"{total['flows']} flows, {total['kills']} kills, {total['runs']} runs,"
            f" {total['again']} of them again, {seconds:.0f} s, {len(self.problems)} problems"
        )
