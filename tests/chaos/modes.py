"""The modes of fault injection: each receives the stage and returns at its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos import audit
from tests.chaos.crew import ManagedProcess
from tests.chaos.stage import Stage
from tests.support import brokers

#: Relative frequency of each fault. Some transports have only a part of them.
WEIGHTS = {
    "kill worker": 4,
    "stop worker": 3,
    "kill engine": 2,
    "stop engine": 1,
    "jump of a clock": 2,
    "kill broker": 1,
    "stop broker": 1,
    "stall": 2,
    "cut": 2,
    "refuse": 1,
    "slow": 1,
}
OF_BROKERS = ("kill broker", "stop broker", "stall", "cut", "refuse", "slow")
#: Range of seconds between two faults.
BETWEEN = (0.5, 4.0)


@dataclass
class Weather:
    """Faults of all kinds, one every few seconds, for this many minutes."""

    minutes: float

    def __call__(self, stage: Stage) -> None:
        ends = stage.began + self.minutes * 60
        kinds = [kind for kind in WEIGHTS if stage.medium.broker or kind not in OF_BROKERS]
        weights = [WEIGHTS[kind] for kind in kinds]
        storm = _Faults(stage)
        due = time.monotonic() + 1
        while time.monotonic() < ends:
            stage.tick()
            storm.poll()
            if time.monotonic() >= due:
                (kind,) = stage.chance.choices(kinds, weights)
                storm.happen(kind)
                due = time.monotonic() + stage.chance.uniform(*BETWEEN)
        storm.heal()


class _Faults:
    """The faults. `poll` ends those whose duration is over."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._over: list[tuple[float, Callable[[], None]]] = []

    def happen(self, kind: str) -> None:
        stage, chance, expiry = self._stage, self._stage.chance, self._stage.plan.expiry
        if kind == "kill worker":
            self._one("worker", lambda process: stage.crew.kill(process))
        elif kind == "stop worker":
            seconds = chance.uniform(0.3, 3) * expiry
            if len(stage.crew.living("worker")) > 1:
                self._one("worker", lambda process: stage.crew.stop(process, seconds))
        elif kind == "kill engine":
            back = chance.choice([0.0, 0.1, 1.0])
            self._one("engine", lambda process: stage.crew.kill(process, back))
        elif kind == "stop engine":
            seconds = chance.uniform(0.5, 2) * expiry
            self._one("engine", lambda process: stage.crew.stop(process, seconds))
        elif kind == "jump of a clock":
            number = chance.randrange(stage.plan.workers + stage.plan.engines)
            offset = chance.choice([-86_400.0, -3_600.0, -30.0, 0.0, 30.0, 3_600.0, 86_400.0])
            stage.clocks.jump(number, offset)
            stage.fault(f"{kind}")
        elif not self._over:  # one fault of the broker at a time
            self._hurt_broker(kind)

    def _hurt_broker(self, kind: str) -> None:
        stage, chance = self._stage, self._stage.chance
        broker, proxy = stage.medium.broker, stage.medium.proxy
        assert broker is not None and proxy is not None
        seconds = chance.uniform(0.2, 1.5) * stage.plan.expiry
        then: Callable[[], None] | None = None
        if kind == "kill broker":
            broker.kill()
            seconds, then = chance.uniform(0, 2), broker.start
        elif kind == "stop broker":
            broker.pause()
            then = broker.resume
        elif kind == "stall":
            proxy.stall()
            then = proxy.resume
        elif kind == "slow":
            proxy.slow(20_000)
            then = proxy.resume
        elif kind == "refuse":
            proxy.refuse()
            proxy.cut()
            then = proxy.accept
        else:
            proxy.cut()
            seconds = 0
        stage.fault(kind, time.monotonic() + seconds)
        if then is not None:
            self._over.append((time.monotonic() + seconds, then))

    def _one(self, kind: str, hurt: Callable[[ManagedProcess], object]) -> None:
        living = self._stage.crew.living(kind)
        if living:
            hurt(self._stage.chance.choice(living))

    def poll(self) -> None:
        now = time.monotonic()
        due = [then for at, then in self._over if at <= now]
        self._over = [(at, then) for at, then in self._over if at > now]
        for then in due:
            then()

    def heal(self) -> None:
        for number in range(self._stage.plan.workers + self._stage.plan.engines):
            self._stage.clocks.jump(number, 0)
        self._over.clear()


@dataclass
class Kills:
    """SIGKILL of workers at random times, spread over all tasks."""

    kills: int
    tasks: int

    def __call__(self, stage: Stage) -> None:
        chance = stage.chance
        moments = sorted(chance.random() * self.tasks for _ in range(self.kills))
        for count, moment in enumerate(moments):
            while stage.counts[audit.ENDED] < moment:
                stage.tick(0.002)
                if stage.stuck:
                    stage.notes["kills that came too late"] = self.kills - count
                    return
            time.sleep(chance.random() * 0.03)
            living = stage.crew.living("worker")
            stage.crew.kill(chance.choice(living))
            stage.tick(0)
        while stage.counts[audit.ENDED] < self.tasks and not stage.stuck:
            stage.tick()


@dataclass
class Stops:
    """SIGSTOP of workers, each for up to three leases."""

    stops: int

    def __call__(self, stage: Stage) -> None:
        chance, expiry = stage.chance, stage.plan.expiry
        for _ in range(self.stops):
            while len(living := stage.crew.living("worker")) < 2:
                stage.tick()
            stage.crew.stop(chance.choice(living), chance.uniform(0.2, 3) * expiry)
            stage.wait(chance.uniform(0.2, 1.0) * expiry)
        while any(process.stopped for process in stage.crew.workers):
            stage.tick()


@dataclass
class Frozen:
    """A stop of all engines for this many seconds, while tasks run."""

    seconds: float

    def __call__(self, stage: Stage) -> None:
        while stage.counts[audit.ENDED] < stage.plan.workers * stage.plan.slots:
            stage.tick()
        for process in stage.crew.living("engine"):
            stage.crew.stop(process, self.seconds)
        while any(process.stopped for process in stage.crew.engines):
            stage.tick()
        stage.wait(3 * stage.plan.expiry)
        for name, log in stage.crew.logs(stage.folder).items():
            text = log.read_text(encoding="utf-8", errors="replace")
            lost = [line for line in text.splitlines() if re.search("lost (<Topic|worker)", line)]
            if name.startswith("engine") and lost:
                stage.problems.append(f"{name} takes workers for lost: {lost[0][:300]}")


@dataclass
class Restarts:
    """Kills and restarts of the broker. The running flows must end soon afterwards."""

    restarts: int
    #: Seconds within which the flows that ran at the kill must end.
    limit: float = 30.0

    def __call__(self, stage: Stage) -> None:
        broker = stage.medium.broker
        assert isinstance(broker, brokers.Broker)
        slowest: list[tuple[float, str]] = []
        for _ in range(self.restarts):
            stage.wait(stage.chance.uniform(0.5, 2.0))
            while not (ran := stage.running):
                stage.tick()
            broker.kill()
            stage.fault("kill broker")
            stage.wait(stage.chance.uniform(0, 1.0))
            broker.start()
            back = time.monotonic()
            while left := ran & stage.running:
                ran = left
                stage.tick()
                if time.monotonic() - back > self.limit:
                    stage.problems.append(
                        f"{len(left)} flows do not end within {self.limit:.0f} s of the broker's"
                        f" return, {min(left)} for one"
                    )
                    return
            slowest.append((time.monotonic() - back, min(ran)))
        took = sorted(slowest)
        stage.notes["last flow after a return, s"] = [round(seconds, 1) for seconds, _ in took]
        stage.notes["the slowest"] = took[-1][1]


@dataclass
class Terminations:
    """Ends of random sessions of a PostgreSQL broker, `PER_MINUTE`."""

    terminations: int
    PER_MINUTE = 100.0

    def __call__(self, stage: Stage) -> None:
        broker = stage.medium.broker
        assert isinstance(broker, brokers.Database)
        for _ in range(self.terminations):
            stage.wait(stage.chance.uniform(0, 2) * 60 / self.PER_MINUTE)
            if stage.stuck:
                return
            broker.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                " backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " ORDER BY random() LIMIT 1"
            )
            stage.fault("terminate session")
