"""Common parts of simulated engines and workers: clock, connection and faults."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.broker import Message
from tests.simulation.ledgers import Line
from wbengine import exceptions as exc
from wbengine._concurrency.clocks import Clock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Seconds before a retry if the ledger is unreachable.
PAUSE = 0.25

#: Maximum number of letters that are published together.
MOST: Final = 64


class Hands(Clock):
    """The clock of one process, with its own offset."""

    __slots__ = ("_ahead", "_world")

    def __init__(self, world: World, ahead: float) -> None:
        self._world = world
        self._ahead = ahead

    def monotonic(self) -> float:  # type: ignore[override]
        return self._world.now + self._ahead

    def time(self) -> float:  # type: ignore[override]
        return self._world.now + self._ahead


class Letter:
    """A message to publish after `steps`; a step that returns False cancels it."""

    __slots__ = (
        "after",
        "done",
        "envelope",
        "steps",
        "uncertain",
        "unrouted",
        "withdrawn",
        "write",
    )

    def __init__(
        self,
        envelope: env.Envelope,
        *steps: Callable[[], bool],
        after: Callable[[], None] | None = None,
        unrouted: Callable[[], None] | None = None,
        uncertain: Callable[[], None] | None = None,
        write: Callable[[], bool | None] | None = None,
    ) -> None:
        #: Publishes the message instead of the process; returns None if no answer arrived.
        self.write = write
        self.envelope = envelope
        self.steps = steps
        self.after = after
        self.unrouted = unrouted
        self.uncertain = uncertain
        #: `withdrawn`: the message is not needed; `done`: it was published.
        self.withdrawn = self.done = False


class Batch:
    """Letters that are published together.

    All letters take their first step, then their second and so on; then they are published one by
    one, and the callbacks follow.  The process can be frozen or killed between these.
    """

    __slots__ = ("letters", "level", "out", "place")

    def __init__(self, letters: list[Letter]) -> None:
        self.letters = letters
        self.level = self.place = 0
        #: Published letters whose callbacks have not run.
        self.out: list[Letter] = []

    @property
    def ready(self) -> bool:
        return self.level >= max((len(letter.steps) for letter in self.letters), default=0)

    def prepare(self) -> None:
        """Take one step."""
        if self.place >= len(self.letters):
            self.letters = [letter for letter in self.letters if not letter.withdrawn]
            self.level, self.place = self.level + 1, 0
            return
        letter = self.letters[self.place]
        if self.level < len(letter.steps) and not letter.steps[self.level]():
            letter.withdrawn = True
        self.place += 1


class Process:
    """A process with queues of work.  A frozen process does nothing; a dead one is deleted.

    After `fuse` steps, `fate` happens to it.
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
        #: Until this time no message is published.
        self.slow_until = 0.0
        self.todo: deque[Any] = deque()
        self.performing = False
        self.inbox: deque[Message] = deque()
        self.first: deque[Letter] = deque()
        self.letters: deque[Letter] = deque()
        self.batch: Batch | None = None
        self.chores: deque[tuple[Callable[[Any], None], Any]] = deque()
        #: Received messages that are not acknowledged.
        self.unacked: dict[Message, None] = {}
        #: Messages of a closed connection, which occupy slots until their work is done.
        self.stale: dict[Message, None] = {}
        self.line = Line(world.ledger) if world.ledger is not None else None
        #: Fault of the next published request: "kept" or "lost"; both are not confirmed.
        self.doubtful = ""
        #: Last time at which others could consider the process lost.
        self.blemish = world.now
        self.goes_on = 0.0

    # Queues of work.

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    @property
    def awake(self) -> bool:
        return not (self.dead or self.frozen)

    def has_work(self) -> bool:
        """Return True if any queue of work is non-empty."""
        publishes = self.batch is not None or self.first or self.letters or self.chores
        return bool(self.todo or self.inbox or publishes)

    def work(self) -> bool:
        """Do all pending work; return True if there was any."""
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
        """Do one step of other work; return True if there was any."""
        return False

    def do(self, effects: Any) -> None:
        """Add effects: those of a running effect come first, others last."""
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
        """Do one step of publishing; return True if there was one."""
        world = self.world
        if not (self.connected and world.broker.up):
            return self.put_down()
        if world.now < self.slow_until or world.now < self.goes_on:
            return False
        batch = self.batch
        if batch is None:
            return self._pick_up() or self._do_chore()
        if not batch.ready:
            try:
                batch.prepare()
            except exc.LedgerFailure:
                self.put_down()
                self.goes_on = world.now + PAUSE
        elif batch.place < len(batch.letters):
            self._publish(batch, batch.letters[batch.place])
        else:
            self.put_down()
        return True

    def _pick_up(self) -> bool:
        """Create a batch of letters that are published together."""
        lane = self.first or self.letters
        if not lane:
            return False
        waiting = (x for x in lane if not (x.withdrawn or x.done))
        self.batch = Batch(list(itertools.islice(waiting, MOST)))
        return True

    def put_down(self) -> bool:
        """Run the callbacks of published letters; the others are retried from their first step."""
        batch, self.batch = self.batch, None
        if batch is None:
            return False
        for lane in (self.first, self.letters):
            while lane and (lane[0].done or lane[0].withdrawn):
                lane.popleft()
        for letter in batch.out:
            if letter.after is not None:
                letter.after()
        return True

    def _publish(self, batch: Batch, letter: Letter) -> None:
        envelope, world = letter.envelope, self.world
        if letter.write is not None:
            routed = letter.write()
            if routed is None:
                return
        elif self.doubtful and envelope.type == pr.REQUEST:
            self._lose_connection(batch)
            return
        else:
            routed = world.broker.publish(envelope, world.now)
        batch.place += 1
        letter.done = True
        world.judge.on_published(self, envelope)
        if not routed and letter.unrouted is not None and world.broker.model.mandatory:
            letter.unrouted()
        else:
            batch.out.append(letter)

    def _lose_connection(self, batch: Batch) -> None:
        """Fail letters in flight as unconfirmed; letters without a handler are published again."""
        how, self.doubtful = self.doubtful, ""
        most = len(batch.letters) if self.world.broker.model.mandatory else batch.place + 1
        for letter in batch.letters[batch.place : most]:
            if how == "kept":
                self.world.broker.publish(letter.envelope, self.world.now)
            if letter.uncertain is not None:
                letter.done = True
                letter.uncertain()
        self.put_down()

    def later(self, chore: Callable[[Any], None], thing: Any) -> None:
        """Do a chore when no letter is pending and the broker is reachable."""
        self.chores.append((chore, thing))

    def _do_chore(self) -> bool:
        if not self.chores:
            return False
        chore, thing = self.chores.popleft()
        chore(thing)
        return True

    def do_chores(self) -> None:
        """Do the remaining chores at the end of the process."""
        while self._do_chore():
            pass

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
        """Return True if the process can receive another message of a queue."""
        raise NotImplementedError

    def take(self, message: Message) -> None:
        message.taker = self
        self.unacked[message] = None
        self.inbox.append(message)

    def due(self) -> float | None:
        """Return the world's time at which the process has timed work."""
        raise NotImplementedError

    def on_time(self) -> None:
        raise NotImplementedError

    def declare(self) -> None:
        """Declare its queues and consume them."""
        raise NotImplementedError

    def blemished(self) -> None:
        self.blemish = max(self.blemish, self.world.now)
