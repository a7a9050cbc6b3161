"""What engines and workers of the simulated world have in common: a clock, a connection, a fate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.broker import Message
from tests.simulation.ledgers import Line
from wbengine import exceptions as exc
from wbengine._clock import Clock
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Seconds before a parcel is tried again whose ledger could not be reached.
PAUSE = 0.25


class Hands(Clock):
    """The clock of one process: it began to count at another moment than those of others."""

    __slots__ = ("_ahead", "_world")

    def __init__(self, world: World, ahead: float) -> None:
        self._world = world
        self._ahead = ahead

    def monotonic(self) -> float:  # type: ignore[override]
        return self._world.now + self._ahead

    def time(self) -> float:  # type: ignore[override]
        return self._world.now + self._ahead


class Letter:
    """What a process publishes, in steps, between which it may be frozen or killed.

    Each of `before` may say False: it is not published.
    """

    __slots__ = ("after", "before", "envelope", "steps", "uncertain", "unrouted", "withdrawn")

    def __init__(
        self,
        envelope: env.Envelope,
        *before: Callable[[], bool],
        after: Callable[[], None] | None = None,
        unrouted: Callable[[], None] | None = None,
        uncertain: Callable[[], None] | None = None,
    ) -> None:
        self.envelope = envelope
        self.steps = before
        self.before = deque(before)
        self.after = after
        self.unrouted = unrouted
        self.uncertain = uncertain
        self.withdrawn = False


class Process:
    """One process.  What it has to do lies in lanes; a frozen one does nothing, a dead one is gone.

    `fuse` is the number of steps after which `fate` comes over it.
    """

    def __init__(self, world: World, name: str, ahead: float) -> None:
        self.world = world
        self.name = name
        self.clock = Hands(world, ahead)
        self.dead = False
        self.frozen = False
        self.connected = True
        self.fuse = -1
        self.fate = ""
        #: While it is slow, nothing of what it publishes goes out.
        self.slow_until = 0.0
        self.todo: deque[Any] = deque()
        self.performing = False
        self.inbox: deque[Message] = deque()
        self.first: deque[Letter] = deque()
        self.letters: deque[Letter] = deque()
        #: Messages that were taken and not acknowledged.
        self.unacked: dict[Message, None] = {}
        #: Those of a connection that is gone: they hold their slots until their work is done.
        self.stale: dict[Message, None] = {}
        self.line = Line(world.ledger) if world.ledger is not None else None
        #: What becomes of its next publication of a request: "kept", "lost" (and not confirmed).
        self.doubtful = ""
        #: When it was last in a condition in which others may well take it for lost.
        self.blemish = world.now
        self.goes_on = 0.0

    # Its lanes.

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def awake(self) -> bool:
        return not (self.dead or self.frozen)

    def has_work(self) -> bool:
        """Whether anything lies in its lanes."""
        return bool(self.todo or self.inbox or self.first or self.letters)

    def work(self) -> bool:
        """Do all there is to do now; whether it did something."""
        did = False
        while not (self.dead or self.frozen):
            if self.todo:
                self.performing = True
                self.perform(self.todo.popleft())
                self.performing = False
            elif self.inbox and self.connected:
                self.receive(self.inbox.popleft())
            elif not self.others() and not self.publish_next():
                break
            did = True
            self.world.count += 1
            if self.world.count > self.world.most_steps:
                self.world.judge.fail(f"{self.name} is never done: {self.todo}")
            if self.fuse >= 0:
                self.fuse -= 1
                if self.fuse < 0:
                    self.world.strike(self, self.fate)
        return did

    def others(self) -> bool:
        """Do something else that is to be done; whether there was something."""
        return False

    def do(self, effects: Any) -> None:
        """What an effect leads to comes before the rest; what other things lead to comes after."""
        if not effects:
            return
        if self.performing:
            self.todo.extendleft(reversed(effects))
        else:
            self.todo.extend(effects)

    def perform(self, effect: Any) -> None:
        raise NotImplementedError

    def receive(self, message: Message) -> None:
        raise NotImplementedError

    # Publishing.

    def post(self, letter: Letter, first: bool = False) -> None:
        (self.first if first else self.letters).append(letter)

    def publish_next(self) -> bool:
        """One step of what is to be published next; whether there was one."""
        lane = self.first or self.letters
        world = self.world
        if not lane or not (self.connected and world.broker.up):
            return False
        if world.now < self.slow_until or world.now < self.goes_on:
            return False
        letter = lane[0]
        if letter.withdrawn:
            lane.popleft()
        elif letter.before:
            try:
                wanted = letter.before[0]()
            except exc.LedgerFailure:
                letter.before = deque(letter.steps)
                self.goes_on = world.now + PAUSE
                return False
            if wanted:
                letter.before.popleft()
            else:
                lane.popleft()
        else:
            self._publish(lane, letter)
        return True

    def _publish(self, lane: deque[Letter], letter: Letter) -> None:
        envelope, world = letter.envelope, self.world
        if self.doubtful and envelope.type == pr.REQUEST:
            how, self.doubtful = self.doubtful, ""
            if how == "kept":
                world.broker.publish(envelope, world.now)
            if letter.uncertain is not None:
                lane.popleft()
                letter.uncertain()
            return  # else it is published again
        routed = world.broker.publish(envelope, world.now)
        lane.popleft()
        world.judge.on_published(self, envelope)
        if not routed and letter.unrouted is not None and world.broker.model.mandatory:
            letter.unrouted()
        elif letter.after is not None:
            letter.after()

    # Receiving.

    def acknowledge(self, message: Message | None) -> None:
        self.stale.pop(message, None)  # type: ignore[arg-type]
        if message is not None and message.taker is self:
            message.taker = None
            self.unacked.pop(message, None)

    def requeue(self, message: Message) -> None:
        self.stale.pop(message, None)
        if message.taker is self:
            self.unacked.pop(message, None)
            message.taker = message.claim = None
            self.world.broker.arrive(message)

    def takes(self, queue: str) -> bool:
        """Whether it can be given one more message of a queue."""
        raise NotImplementedError

    def take(self, message: Message) -> None:
        message.taker = self
        self.unacked[message] = None
        self.inbox.append(message)

    def due(self) -> float | None:
        """When its clock has something to say, in the world's time."""
        raise NotImplementedError

    def on_time(self) -> None:
        raise NotImplementedError

    def declare(self) -> None:
        """Have its queues, and take from them."""
        raise NotImplementedError

    def blemished(self) -> None:
        self.blemish = max(self.blemish, self.world.now)
