"""Worker finder on a manual clock."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.amounts import amount
from tests.unit.manual_finder import Message, World
from wbengine import task
from wbengine._text import data_formats
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._discovery import clock_differences, notify_schedule, roster
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices


class Resize(task.Task):
    def execute(self) -> None:
        return None


RESIZE = f"{__name__}.Resize"
HISTORIES = amount(30, 300, "WBENGINE_HISTORIES")


@pytest.fixture
def world() -> World:
    return World()


# Counting ---------------------------------------------------------------------------------------


def test_number_of_known_workers_is_limited(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Any client of the broker can announce any number of workers."""
    for number in range(20_002):
        world.hear(f"w{number}")
    assert world.finder.total_workers == 20_000
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "too many workers: <TopicWorker w20000 on 't', 1 tasks>" in warning
    world.hear("w7", state=notices.STOPPED)
    world.hear("w20001")
    assert world.finder.total_workers == 20_000


def test_total_length_of_task_names_is_limited(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each list takes a quarter of the limit; names that another worker announced are free."""
    name = "n" * 1_000_000
    many = [tuple(f"{number}{name}{n}" for n in range(16)) for number in range(5)]
    for number in range(4):
        world.hear(f"w{number}", tasks=many[number])
        world.hear(f"v{number}", tasks=many[number])
    assert world.finder.total_workers == 8
    world.hear("w4", tasks=many[4])
    assert world.finder.total_workers == 8 and "too many workers: <TopicWorker w4" in caplog.text
    # The names remain in use by the other worker of the queue.
    world.hear("w0", state=notices.STOPPED)
    world.hear("w4", tasks=many[4])
    assert world.finder.total_workers == 7
    world.hear("v0", state=notices.STOPPED)
    world.hear("w4", tasks=many[4])
    assert world.finder.total_workers == 7
    # If an announcement exceeds the limit, the previous one of this worker stays.
    world.hear("w1", tasks=(*many[1], *many[0]))
    assert world.finder.get_worker_for_task(many[1][0]) is not None
    assert world.finder.total_workers == 7


def test_taskflow_workers_of_a_topic_count_as_one() -> None:
    world = World(interop=True)
    world.hear(None)
    world.hear(None)
    assert world.finder.total_workers == 1
    assert world.finder.queue_for("a", lambda _: 0) == "t"
    assert not world.finder.uses_extended_protocol("t")
    since = world.clock.monotonic()
    for _ in range(4):
        world.clock.advance(5)
        world.hear(None)
    assert world.finder.free_slot_rounds("t", since) == 0
    world.hear(None, state=notices.STOPPED)
    assert world.lost == []


@pytest.mark.parametrize("readable", [[], [2], ["1"], "1", None])
def test_worker_with_other_formats_is_ignored_and_logged_once(
    world: World, readable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        world.hear("w1", **{hd.WBE_FORMATS: readable})
    assert world.finder.total_workers == 0
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "worker w1 (wbengine None) gets no requests: it reads message formats" in warning
    world.hear("w1", **{hd.WBE_FORMATS: [2, data_formats.MESSAGE.written]})
    assert world.finder.uses_extended_protocol("t.a")


def test_log_line_about_other_formats_is_short(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.hear("w1", **{hd.WBE_FORMATS: [10**4000] * 100})
    assert len(caplog.records[0].getMessage()) < 300


def test_queue_for_picks_queue_with_most_slots_per_request(world: World) -> None:
    world.hear("w1", tasks=("a",))
    world.hear("w2", tasks=("a", "b"))
    assert world.finder.queue_for("b", lambda _: 0) == "t.a-b"
    assert world.finder.queue_for("c", lambda _: 0) is None
    # The queue with the most slots for each waiting request is chosen.
    assert world.finder.queue_for("a", {"t.a": 10, "t.a-b": 0}.__getitem__) == "t.a-b"
    assert world.finder.queue_for("a", {"t.a": 0, "t.a-b": 10}.__getitem__) == "t.a"


@pytest.mark.parametrize("state", ["draining", "suspended"])
def test_queue_for_avoids_queue_whose_workers_accept_no_requests(world: World, state: str) -> None:
    """Old workers that finish long tasks get no requests that new workers can run."""
    world.hear("old", tasks=("a",), running=4, **{hd.WBE_LIFE: {"state": state}})
    assert world.finder.queue_for("a", lambda _: 0) == "t.a"
    world.hear("new", tasks=("a", "b"), slots=1, running=1)
    assert world.finder.queue_for("a", {"t.a": 0, "t.a-b": 99}.__getitem__) == "t.a-b"


def test_queue_for_prefers_first_topic_among_equals() -> None:
    world = World(topics=("z", "y"))
    world.hear("w1", "y")
    world.hear("w2", "z")
    assert world.finder.queue_for("a", lambda _: 0) == "z.a"


@pytest.mark.parametrize(
    "nonsense",
    [None, "4", -1, 0, True, 1.5, float("nan")],
    ids=["none", "str", "negative", "zero", "bool", "float", "nan"],
)
def test_invalid_number_of_slots_counts_as_one(world: World, nonsense: Any) -> None:
    world.hear("w1", slots=nonsense, running=nonsense, period=nonsense)
    assert world.finder.slots("t.a") == 1


@pytest.mark.parametrize(
    ("topic", "more"),
    [
        pytest.param("../up", {}, id="parent-path"),
        pytest.param("a b", {}, id="space"),
        pytest.param("x" * 200, {}, id="too-long"),
        pytest.param("*", {}, id="wildcard"),
    ],
)
def test_workers_with_invalid_names_are_ignored(
    world: World, topic: str, more: dict[str, Any]
) -> None:
    world.hear("w1", topic, **more)
    assert world.finder.total_workers == 0
    world.hear("new\nline")
    assert world.finder.total_workers == 0


def test_get_worker_for_task_returns_the_least_busy(world: World) -> None:
    world.hear("w1", tasks=(RESIZE,), running=3)
    world.hear("w2", tasks=(RESIZE,), running=1)
    for wanted in (RESIZE, Resize, Resize("x")):
        worker = world.finder.get_worker_for_task(wanted)
        assert worker is not None
        assert worker.identity == "w2"
        assert worker.performs(wanted)
    assert world.finder.get_worker_for_task("other") is None


# Topics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("video.hd", True), ("video.hd.x", False), ("video", False), ("audio", True)],
)
def test_wildcard_topics_are_matched(topic: str, wanted: bool) -> None:
    world = World(topics=("video.*", "audio"))
    world.hear("w1", topic)
    assert (world.finder.total_workers == 1) is wanted


def test_invalid_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="topic"):
        World(topics=("a b",))


# Silence ----------------------------------------------------------------------------------------


def test_taskflow_worker_is_lost_after_full_expiry() -> None:
    world = World(interop=True)
    world.hear(None)
    world.live(60.0)
    assert world.finder.total_workers == 1
    world.live(10.0)
    assert world.finder.total_workers == 0


@pytest.mark.parametrize("expiry", [None, 0, -1], ids=["none", "zero", "negative"])
def test_no_worker_is_lost_without_expiry(expiry: float | None) -> None:
    world = World(expiry=expiry)
    world.hear("w1")
    world.live(1000.0)
    assert world.names == {"w1"}


def test_announced_period_is_limited(world: World) -> None:
    world.hear("w1", period=1e9)
    world.live(3 * roster.MAX_PERIOD_SECONDS + 10)
    assert world.names == set()


def test_short_expiry_shortens_heartbeat_period() -> None:
    assert World(expiry=60).finder.period == 5.0
    assert World(expiry=8).finder.period == 2.0
    assert World(expiry=0.1).finder.period == notices.MIN_PERIOD_SECONDS


# Queries ------------------------------------------------------------------------------------------


def test_workers_are_queried_once_per_period(world: World) -> None:
    assert world.finder.maybe_publish() is True
    assert world.finder.maybe_publish() is False
    world.clock.advance(4.9)
    assert world.finder.maybe_publish() is False
    world.clock.advance(0.2)
    assert world.finder.maybe_publish() is True
    keys = [key for key, _ in world.asked]
    assert keys == [env.ALL_WORKERS, "me"] * 2
    assert world.asked[0][1][hd.WBE_PERIOD] == 5.0
    assert world.asked[1][1][hd.WBE_ECHO] == "me"


def test_wait_for_workers_returns_number_of_missing_workers(world: World) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        world.finder.wait_for_workers(0)
    world.hear("w1")
    assert world.finder.wait_for_workers(1, 0) == 0
    assert world.finder.wait_for_workers(3, 0) == 2
    missing: list[int] = []
    waiting = threading.Thread(target=lambda: missing.append(world.finder.wait_for_workers(2, 60)))
    waiting.start()
    world.hear("w2")
    waiting.join(60)
    assert missing == [0]


def test_reset_clears_all_state(world: World) -> None:
    world.hear("w1")
    world.finder.watch("w2")
    world.finder.maybe_publish()
    world.finder.reset()
    finder = world.finder
    assert (finder.total_workers, finder.messages_processed, finder.tasks()) == (0, 0, [])
    assert finder.slots("t.a") == 0
    assert finder.maybe_publish() is True
    world.live(60.0)
    assert world.lost == []


# Workers as values ------------------------------------------------------------------------------


def test_workers_are_equal_by_identity_and_topic() -> None:
    one = types.TopicWorker("t", ["a"], "w1")
    assert one == types.TopicWorker("t", ["b"], "w1")
    assert one != types.TopicWorker("u", ["a"], "w1")
    assert one != types.TopicWorker("t", ["a"], "w2")
    assert one == types.TopicWorker("t", ["a"])
    assert one != types.TopicWorker("t", ["b"])
    assert hash(one) == hash(types.TopicWorker("t", ["a"]))
    assert one != "w1"
    assert types.TopicWorker("t", [Resize]).performs(RESIZE)


# Rare queries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "needs_reports"), [(1, False), (64, False), (3000, True)])
def test_idle_workers_and_large_fleets_are_queried_rarely(
    workers: int, needs_reports: bool
) -> None:
    """20 idle engines and 64 workers exchange less than 90 messages per second."""
    world = World(holders=set())
    world.finder.schedule.needs_reports = needs_reports
    questions = 0
    for _ in range(20):  # 100 s
        world.echo()
        if world.finder.maybe_publish():
            questions += 1
            for number in range(workers):
                world.hear(f"w{number}")
        assert world.finder.clean() == 0
        world.clock.advance(5)
    assert questions == 4


def test_rarely_queried_worker_gets_time_to_reply() -> None:
    world = World(holders=set())
    world.finder.schedule.needs_reports = False
    world.finder.maybe_publish()
    world.hear("w1")
    world.live(25)
    world.finder.schedule.needs_reports = True
    world.live(10)
    assert world.names == {"w1"}
    world.live(5)
    assert world.names == set()


def test_worker_is_lost_after_three_unanswered_queries() -> None:
    """All queries count, even if `needs_reports` changes between them."""
    world = World(holders=set())
    world.hear("w1")
    for turn in range(6):
        world.finder.schedule.needs_reports = turn % 2 == 0
        world.live(5)
    assert world.names == set()


def test_silent_worker_with_requests_is_queried_early_and_lost() -> None:
    world = World(holders={"w1"})
    world.hear("w1")
    world.hear("w2")
    world.finder.schedule.needs_reports = False
    world.finder.maybe_publish()
    world.echo()
    world.clock.advance(5)
    assert not world.finder.maybe_publish()
    world.clock.advance(1)
    assert world.finder.maybe_publish()  # the heartbeat of w1 is overdue
    world.live(15)
    assert world.names == {"w2"}


def test_silent_worker_has_no_free_slot(world: World) -> None:
    """The worker may have stopped, and the others of its queue may be busy."""
    world.finder.schedule.needs_reports = True
    world.hear("gone")
    world.hear("busy", running=4)
    assert world.finder.free("t.a") == 4
    world.clock.advance(15.1)
    world.hear("busy", running=4)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (8, 0)
    world.hear("gone")
    assert world.finder.free("t.a") == 4


def test_worker_with_new_tasks_does_not_count_as_new(world: World) -> None:
    world.hear("w1")
    world.clock.advance(1)
    since = world.clock.monotonic()
    world.clock.advance(5)
    world.hear("w1", tasks=("a", "b"))
    assert world.finder.report_rounds("t.a-b", since) == 1


def test_new_worker_is_sent_the_heartbeat_period() -> None:
    world = World(expiry=2)
    world.hear("w1", period=5.0)
    (key, headers) = world.asked[-1]
    assert (key, headers[hd.WBE_PERIOD]) == ("w1", 0.5)
    world.hear("w2", period=0.5)
    assert world.asked[-1][0] == "w1"


def test_new_worker_without_reply_is_lost_after_grace() -> None:
    world = World(expiry=2, holders={"w1", "w2"})
    world.echo()
    world.hear("w1", period=5.0)
    world.hear("w2", period=5.0)
    lost = {}
    for tenths in range(1, 40):
        world.clock.advance(0.1)
        world.echo()
        if tenths == 15:
            world.hear("w2", period=0.5, state=None)
        world.finder.clean()
        for worker in world.lost:
            lost.setdefault(worker.identity, tenths)
    # A worker that confirmed the period has 1.5 s; a new worker has 1 s more.
    assert lost["w1"] in (25, 26) and lost["w2"] in (30, 31)


# Outages ------------------------------------------------------------------------------------------


def test_workers_get_full_grace_after_a_reported_outage(world: World) -> None:
    world.hear("w1")
    world.live(15.0)
    world.finder.record_outage(world.clock.monotonic())
    world.live(10.0)
    assert world.names == {"w1"}


def test_workers_are_not_lost_after_loop_was_frozen(world: World) -> None:
    world.echo()
    world.hear("w1")
    world.iterate(world.clock.monotonic())
    since = world.clock.monotonic()
    world.clock.advance(60)
    world.iterate(world.clock.monotonic())
    world.echo()
    assert world.finder.clean() == 0 and world.names == {"w1"}
    assert world.finder.outage_seconds(since, world.clock.monotonic()) == 60.0
    world.live(20)
    assert world.names == set()


def test_silence_during_pause_shorter_than_echo_gap_does_not_count(world: World) -> None:
    """A missing echo shows an outage after two periods, a late iteration after one."""
    world.echo()
    world.hear("w1")
    start = world.clock.monotonic()
    world.iterate(start)
    for seconds in (4, 4, 4, 6):
        world.clock.advance(seconds)
        world.iterate(world.clock.monotonic())
        world.echo()
    assert world.finder.outage_seconds(start, world.clock.monotonic()) == 6.0
    world.finder.clean()
    assert world.names == {"w1"}
    world.live(20)
    assert world.names == set()


def test_short_broker_outage_is_detected_by_new_channel(world: World) -> None:
    world.echo()
    world.hear("w1")
    start = world.clock.monotonic()
    world.iterate(start, "one channel")
    world.clock.advance(1)
    world.iterate(start + 1, "one channel")
    assert world.finder.outage_seconds(start, start + 1) == 0.0
    world.clock.advance(2)
    world.iterate(start + 3, "another")
    assert world.finder.outage_seconds(start, start + 3) == 2.0
    # After an outage, the engine needs the state of all requests.
    world.finder.maybe_publish()
    world.clock.advance(notify_schedule.URGENT_SECONDS)
    assert world.finder.maybe_publish() and world.finder.next_due() == start + 5


def test_workers_are_queried_often_while_searching(world: World) -> None:
    world.hear("w1")
    world.finder.maybe_publish()
    world.clock.advance(notify_schedule.URGENT_SECONDS)
    assert not world.finder.maybe_publish()
    world.finder.schedule.is_searching = True
    assert world.finder.maybe_publish()
    assert world.finder.next_due() == world.clock.monotonic() + notify_schedule.URGENT_SECONDS


# Reports of workers -------------------------------------------------------------------------------


def test_ids_of_running_requests_are_passed_on(world: World) -> None:
    world.hear("w1", state=notices.BEAT, **{hd.WBE_IDS: ["x", "y", 3]})
    assert world.named == [("w1", {"x", "y"})]
    for ids in (None, "x", {"x": 1}, 7):
        world.hear("w1", state=notices.BEAT, **{hd.WBE_IDS: ids})
    world.hear("w1", state=notices.BEAT)
    world.hear(None, **{hd.WBE_IDS: ["x"]})
    assert len(world.named) == 1


def test_clock_difference_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    now = world.clock.time()
    world.hear("w1", **{hd.WBE_TIME: now + 1000})
    assert not caplog.records  # with a ledger, clocks are not compared
    world.finder.clocks = clock_differences.Clocks(world.finder.outage_seconds)
    world.echo()
    world.hear("w1", **{hd.WBE_TIME: now + clock_differences.MAX_CLOCK_DIFFERENCE_SECONDS})
    world.hear("w2", **{hd.WBE_TIME: "noon"})
    assert not caplog.records
    for _ in range(2):
        world.hear("w1", **{hd.WBE_TIME: now + 100})
    (record,) = caplog.records
    assert "w1" in record.getMessage() and "100 s ahead" in record.getMessage()


def test_delayed_message_is_not_taken_for_a_clock_difference(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world.finder.clocks = clock_differences.Clocks(world.finder.outage_seconds)
    world.echo()
    written = world.clock.time()
    world.clock.advance(60)
    world.echo()
    world.hear("w1", **{hd.WBE_TIME: written})
    assert not caplog.records


# Random histories --------------------------------------------------------------------------------

NAMES = st.sampled_from(["w1", "w2", "w3"])
TOPICS = st.sampled_from(["t", "u"])
TASKS = st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "c", "c")])
SLOTS = st.integers(1, 4)
STATES = st.sampled_from(["idle", "busy", "suspended", "draining", "started"])


@dataclass
class Known:
    """Expected record of a worker on a topic."""

    tasks: tuple[str, ...]
    queue: str
    joined: float
    slots: int = 1
    running: int = 0
    state: str = ""
    seen: float = 0.0
    reply: float = 0.0
    #: Times of reports, and of the last reports with a free slot.
    reports: set[float] = field(default_factory=set)
    free_reports: set[float] = field(default_factory=set)

    def report(self, now: float, running: int) -> None:
        self.running, self.seen = running, now
        self.reports.add(now)
        if self.free:
            self.free_reports.add(now)
        else:
            self.free_reports.clear()

    @property
    def rests(self) -> bool:
        return self.state not in ("idle", "busy")

    @property
    def free(self) -> int:
        return 0 if self.rests else max(0, self.slots - self.running)


class History(RuleBasedStateMachine):
    """Reports, ends, silence and outages of workers that have requests, next to a simple model."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(holders={"w1", "w2", "w3"})
        self.world.finder.schedule.needs_reports = True
        self.known: dict[tuple[str, str], Known] = {}
        self.watched: dict[str, float] = {}
        self.gained: list[set[str]] = []
        self.lost: list[tuple[str, str, bool]] = []
        self.messages = 0
        self.has_echo = False

    @property
    def now(self) -> float:
        return self.world.clock.monotonic()

    def of(self, name: str) -> list[Known]:
        return [known for key, known in self.known.items() if key[0] == name]

    def hear(self, *report: Any, **options: Any) -> None:
        self.messages += 1
        self.world.hear(*report, **options)

    def lose(self, name: str, *, ended: bool = False) -> None:
        self.lost += [(name, topic, ended) for key, topic in self.known if key == name]
        self.known = {key: known for key, known in self.known.items() if key[0] != name}
        if self.watched.pop(name, None) is not None:
            self.lost.append((name, "", ended))

    def restart_grace(self) -> None:
        for known in self.known.values():
            known.seen = self.now
        self.watched = dict.fromkeys(self.watched, self.now)

    @rule(name=NAMES, topic=TOPICS, tasks=TASKS, slots=SLOTS, running=SLOTS, state=STATES)
    def announce(
        self, name: str, topic: str, tasks: Any, slots: int, running: int, state: str
    ) -> None:
        life = {hd.WBE_LIFE: {"state": state}}
        self.hear(name, topic, tasks, slots=slots, running=running, **life)
        known, unique = self.known.get((name, topic)), tuple(dict.fromkeys(tasks))
        if known is None or known.tasks != unique:
            self.gained.append(set(tasks))
            joined = known.joined if known is not None else self.now
            known = Known(unique, f"{topic}.{'-'.join(tasks)}", joined)
        known.slots, known.state = slots, state
        known.report(self.now, running)
        self.known[name, topic] = known
        self.watched.pop(name, None)

    @rule(name=NAMES, topic=TOPICS, running=SLOTS)
    def beat(self, name: str, topic: str, running: int) -> None:
        self.record_beat(name, topic, running)

    def record_beat(self, name: str, topic: str, running: int) -> None:
        self.hear(name, topic, (), notices.BEAT, slots=None, running=running)
        if (known := self.known.get((name, topic))) is not None:
            known.report(self.now, running)
        elif name in self.watched:
            self.watched[name] = self.now

    @rule(name=NAMES)
    def stop(self, name: str) -> None:
        self.hear(name, tasks=(), state=notices.STOPPED)
        self.lose(name, ended=True)

    @rule(name=NAMES, silence=st.sampled_from([0.0, 12.0]))
    def reply(self, name: str, silence: float) -> None:
        self.record_reply(name, silence)

    def record_reply(self, name: str, silence: float) -> None:
        """A reply about a request, or a heartbeat in its ledger, counts as a message."""
        self.world.finder.watch(name, silence)
        for known in self.of(name):
            known.reply = self.now - silence
        if not self.of(name):
            self.watched[name] = self.now - silence

    @rule(periods=st.integers(1, 8), name=NAMES, how=st.sampled_from(["reply", "beat", ""]))
    def live(self, periods: int, name: str, how: str) -> None:
        """Let time pass, in which one worker at most is heard, just before it would be lost."""
        for period in range(periods):
            self.world.clock.advance(5.0)
            if how == "reply" and period % 4 == 0:
                self.record_reply(name, 0.0)
            elif how == "beat" and period % 4 == 0:
                self.record_beat(name, "t", 1)
            self.world.finder.maybe_publish()
            self.world.echo()
            self.has_echo = True
            limit = self.now - 15.0
            silent = {
                key[0] for key, each in self.known.items() if max(each.seen, each.reply) < limit
            }
            assert self.world.finder.clean() == len(silent)
            for lost in silent | {each for each, seen in self.watched.items() if seen < limit}:
                self.lose(lost)

    @rule(seconds=st.sampled_from([11.0, 60.0]))
    def outage(self, seconds: float) -> None:
        """No worker is lost without an echo, and each has its full grace afterwards."""
        self.world.clock.advance(seconds)
        for foreign in ({hd.WBE_ECHO: "other"}, {hd.WBE_VERSION: "1"}):
            self.world.finder.process_response({}, Message(foreign))
        assert self.world.finder.clean() == 0
        self.world.echo()
        if self.has_echo:
            self.restart_grace()
        self.has_echo = True

    @rule()
    def reported_outage(self) -> None:
        self.world.finder.record_outage(self.now)
        self.restart_grace()

    @invariant()
    def finder_matches_the_model(self) -> None:
        finder, known = self.world.finder, self.known
        workers = {(w.identity, w.topic): w.life and w.life.state for w in finder.workers()}
        assert workers == {key: each.state for key, each in known.items()}
        assert finder.total_workers == len({name for name, _ in known})
        assert finder.messages_processed == self.messages
        assert finder.topics() == sorted({topic for _, topic in known})
        assert finder.tasks() == sorted({task for each in known.values() for task in each.tasks})
        assert self.world.gained == self.gained
        lost = [(w.identity, w.topic, w.announced_end) for w in self.world.lost]
        assert sorted(lost) == sorted(self.lost)
        for queue in {each.queue for each in known.values()} | {"t.a"}:
            members = [each for each in known.values() if each.queue == queue]
            assert finder.slots(queue) == sum(each.slots for each in members)
            assert finder.rests(queue) == (bool(members) and all(each.rests for each in members))
            heard = [each for each in members if each.seen >= self.now - 15.0]
            assert finder.free(queue) == sum(each.free for each in heard)
            for since in (self.now, self.now - 7.0, self.now - 70.0):
                older = [each for each in members if each.joined <= since]
                counts = [sum(time > since for time in each.reports) for each in older]
                rounds = min(counts, default=2 if members else 0)
                assert finder.report_rounds(queue, since) == min(2, rounds)
                counts = [sum(time > since for time in each.free_reports) for each in members]
                assert finder.free_slot_rounds(queue, since) == min(2, *counts, 2 if counts else 0)
        for task_cls in ("a", "b", "c"):
            able = [each for each in known.values() if task_cls in each.tasks]
            assert set(finder.queues(task_cls)) == {each.queue for each in able}
            accepting = any(not each.rests for each in able)
            for queue in finder.queues(task_cls):
                assert finder.is_avoided(queue, task_cls) == (finder.rests(queue) and accepting)
            scores = Counter[str]()
            for each in able:
                slots = 0 if each.rests else each.slots
                scores[each.queue] += (slots + each.free) * 12 // (1 + len(each.queue) % 3)
            chosen = finder.queue_for(task_cls, lambda name: len(name) % 3)
            assert scores[chosen or ""] == max(scores.values(), default=0)
            worker = finder.get_worker_for_task(task_cls)
            assert (worker is None) == (not able)
            if worker is not None:
                assert worker.free == max(each.free for each in able)


def test_random_history_of_workers_matches_the_model() -> None:
    run_state_machine_as_test(
        History, settings=settings(max_examples=HISTORIES, stateful_step_count=25, deadline=None)
    )
