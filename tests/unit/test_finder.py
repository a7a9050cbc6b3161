"""Worker finder on a manual clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.manual_finder import Message, World
from wbengine import task
from wbengine._text import data_formats
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._discovery import clocks, liveness, roster
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices


class Resize(task.Task):
    def execute(self) -> None:
        return None


RESIZE = f"{__name__}.Resize"


@pytest.fixture
def world() -> World:
    return World()


# Counting ---------------------------------------------------------------------------------------


def test_workers_of_one_topic_are_counted_separately(world: World) -> None:
    for number in range(7):
        world.hear(f"w{number}")
    assert world.finder.total_workers == 7
    assert world.finder.slots("t.a") == 28
    assert world.finder.messages_processed == 7


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


def test_worker_on_two_topics_counts_once(world: World) -> None:
    world.hear("w1", "t")
    world.hear("w1", "u")
    assert world.finder.total_workers == 1
    assert world.finder.topics() == ["t", "u"]
    world.hear("w1", "t", state=notices.STOPPED, tasks=())
    assert world.finder.total_workers == 0
    assert {worker.topic for worker in world.lost} == {"t", "u"}


def test_taskflow_workers_of_a_topic_count_as_one() -> None:
    world = World(interop=True)
    world.hear(None)
    world.hear(None)
    assert world.finder.total_workers == 1
    assert world.finder.queue_for("a", lambda _: 0) == "t"
    assert not world.finder.uses_extended_protocol("t")


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


def test_unchanged_announcement_is_notified_once(world: World) -> None:
    world.hear("w1", tasks=("a", "b"))
    world.hear("w1", tasks=("a", "b"))
    assert world.gained == [{"a", "b"}]


def test_new_task_list_replaces_the_old_one(world: World) -> None:
    world.hear("w1", tasks=("a", "b"))
    world.hear("w1", tasks=("b", "c", "c"))
    assert world.finder.tasks() == ["b", "c"]
    assert world.gained == [{"a", "b"}, {"b", "c"}]
    world.hear("w1", state=notices.STOPPED)
    assert world.finder.tasks() == []


def test_queue_for_picks_queue_with_most_slots_per_request(world: World) -> None:
    world.hear("w1", tasks=("a",))
    world.hear("w2", tasks=("a", "b"))
    assert world.finder.queue_for("b", lambda _: 0) == "t.a-b"
    assert world.finder.queue_for("c", lambda _: 0) is None
    # The queue with the most slots for each waiting request is chosen.
    assert world.finder.queue_for("a", {"t.a": 10, "t.a-b": 0}.__getitem__) == "t.a-b"
    assert world.finder.queue_for("a", {"t.a": 0, "t.a-b": 10}.__getitem__) == "t.a"


def test_queue_for_prefers_first_topic_among_equals() -> None:
    world = World(topics=("z", "y"))
    world.hear("w1", "y")
    world.hear("w2", "z")
    assert world.finder.queue_for("a", lambda _: 0) == "z.a"


def test_free_slots_follow_the_last_report(world: World) -> None:
    world.hear("w1", slots=4, running=1)
    world.hear("w2", slots=2, running=9)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (6, 3)
    world.hear("w1", state=notices.BEAT, slots=4, running=4, tasks=())
    assert world.finder.free("t.a") == 0
    world.hear("w1", state=notices.STOPPED)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (2, 0)
    world.hear("w2", state=notices.STOPPED)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (0, 0)


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


def test_finder_without_topics_accepts_any_topic(world: World) -> None:
    world.hear("w1", "anything.at.all")
    assert world.finder.topics() == ["anything.at.all"]


def test_invalid_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="topic"):
        World(topics=("a b",))


# Silence ----------------------------------------------------------------------------------------


def test_worker_silent_for_three_periods_is_lost(world: World) -> None:
    world.hear("w1")
    world.hear("w2")
    world.live(15.0, "w2")
    assert world.names == {"w1", "w2"}
    world.live(5.0, "w2")
    assert world.names == {"w2"}
    assert [worker.identity for worker in world.lost] == ["w1"]
    assert world.finder.slots("t.a") == 4


def test_no_worker_is_lost_while_engine_receives_no_echo(world: World) -> None:
    world.hear("w1")
    world.echo()
    for _ in range(100):
        world.clock.advance(5.0)
        assert world.finder.clean() == 0
    assert world.names == {"w1"}


def test_workers_get_full_grace_after_an_outage(world: World) -> None:
    world.hear("w1")
    world.echo()
    world.clock.advance(600.0)  # an outage, or this process was frozen
    world.echo()
    assert world.finder.clean() == 0
    world.live(15.0)
    assert world.names == {"w1"}
    world.live(10.0)
    assert world.names == set()


def test_workers_get_full_grace_after_a_reported_outage(world: World) -> None:
    world.hear("w1")
    world.live(15.0)
    world.finder.record_outage(world.clock.monotonic())
    world.live(10.0)
    assert world.names == {"w1"}


def test_no_worker_is_lost_before_the_first_echo() -> None:
    """The echo of another engine does not count."""
    world = World(holders={"w1"})
    world.hear("w1")
    world.clock.advance(100.0)
    world.finder.process_response({}, Message({hd.WBE_ECHO: "other"}))
    assert world.finder.clean() == 0
    world.echo()
    assert world.finder.clean() == 1


def test_heartbeat_of_unknown_worker_is_ignored(world: World) -> None:
    world.hear("w1", state=notices.BEAT, tasks=())
    assert world.finder.total_workers == 0


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


def test_large_fleet_is_queried_less_often_without_losing_workers(world: World) -> None:
    for number in range(3000):
        world.hear(f"w{number}")
    world.finder.maybe_publish()
    questions = 0
    for _ in range(20):  # 100 s; each worker is queried every 30 s, and replies
        world.clock.advance(5.0)
        world.echo()
        if world.finder.maybe_publish():
            questions += 1
            for number in range(3000):
                world.hear(f"w{number}")
        assert world.finder.clean() == 0
    assert questions == 3


def test_lost_worker_is_found_again(world: World) -> None:
    world.hear("w1")
    world.live(30.0)
    assert world.names == set()
    world.hear("w1")
    assert world.names == {"w1"}
    assert world.gained == [{"a"}, {"a"}]


def test_stop_message_of_unknown_worker_is_ignored(world: World) -> None:
    world.hear("w1", state=notices.STOPPED)
    world.hear(None)
    world.hear(None, state=notices.STOPPED)
    assert world.lost == []


# Watched unknown workers --------------------------------------------------------------------------


def test_watched_unknown_worker_is_lost_after_three_periods(world: World) -> None:
    world.echo()
    world.finder.watch("w9")
    world.live(15.0)
    assert world.lost == []
    world.live(5.0)
    assert [worker.identity for worker in world.lost] == ["w9"]
    assert world.finder.total_workers == 0
    world.live(30.0)
    assert len(world.lost) == 1


def test_heartbeats_keep_watched_unknown_worker_alive(world: World) -> None:
    world.finder.watch("w9")
    world.live(60.0, "w9")
    assert world.lost == []
    world.hear("w9")
    world.live(30.0)
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_watched_unknown_worker_that_stops_is_lost(world: World) -> None:
    world.finder.watch("w9")
    world.hear("w9", state=notices.STOPPED)
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_watched_unknown_worker_is_not_lost_in_an_outage(world: World) -> None:
    world.echo()
    world.finder.watch("w9")
    world.clock.advance(600.0)
    world.echo()
    world.finder.clean()
    assert world.lost == []


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


def test_queries_of_other_engines_are_ignored(world: World) -> None:
    world.finder.process_response({}, Message({hd.WBE_VERSION: "1"}))
    assert world.finder.messages_processed == 0


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


# Rounds ------------------------------------------------------------------------------------------


def rounds(world: World, queue: str, since: float) -> tuple[int, int]:
    """Return the rounds of reports, and of reports with a free slot."""
    finder = world.finder
    return finder.report_rounds(queue, since), finder.free_slot_rounds(queue, since)


def test_round_counts_when_all_workers_of_queue_have_reported(world: World) -> None:
    world.hear("w1")
    world.hear("w2")
    since = world.clock.monotonic()
    assert rounds(world, "t.a", since) == (0, 0)
    world.clock.advance(5)
    world.hear("w1")
    world.clock.advance(0.1)
    world.hear("w1")  # a second report at nearly the same time does not count
    assert world.finder.free_slot_rounds("t.a", since) == 0
    world.hear("w2")
    assert rounds(world, "t.a", since) == (1, 1)
    world.clock.advance(5)
    world.hear("w1")
    world.hear("w2", running=4)
    assert rounds(world, "t.a", since) == (2, 0)
    for _ in range(2):
        world.clock.advance(5)
        world.hear("w1")
        world.hear("w2")
    assert world.finder.free_slot_rounds("t.a", since) == 2
    assert world.finder.free_slot_rounds("t.a", world.clock.monotonic()) == 0
    assert rounds(world, "nobody", since) == (0, 0)


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


@pytest.mark.parametrize("state", ["suspended", "draining", "started"])
def test_worker_that_accepts_no_requests_has_no_free_slot(world: World, state: str) -> None:
    life: dict[str, Any] = {hd.WBE_LIFE: {"state": state}}
    since = world.clock.monotonic()
    for _ in range(3):
        world.clock.advance(5)
        world.hear("w1", **life)
    assert (world.finder.free("t.a"), world.finder.free_slot_rounds("t.a", since)) == (0, 0)
    assert world.finder.report_rounds("t.a", since) == 2
    world.hear("w1", **{hd.WBE_LIFE: {"state": "idle"}})
    assert world.finder.free("t.a") == 4


def test_taskflow_worker_never_counts_as_idle() -> None:
    world = World(interop=True)
    since = world.clock.monotonic()
    for _ in range(4):
        world.clock.advance(5)
        world.hear(None)
    assert world.finder.free_slot_rounds("t", since) == 0


# Rare queries -------------------------------------------------------------------------------------


def test_workers_are_queried_rarely_while_no_reports_are_needed() -> None:
    world = World(holders=set())
    world.hear("w1")
    world.finder.schedule.needs_reports = False
    questions = 0
    for _ in range(60):
        world.echo()
        if world.finder.maybe_publish():
            questions += 1
            world.hear("w1")
        assert world.finder.clean() == 0
        world.clock.advance(5)
    assert questions == 10  # in 300 s


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


def test_reply_to_a_request_counts_as_heartbeat() -> None:
    world = World(holders={"w1"})
    world.hear("w1")
    world.live(14)
    world.finder.watch("w1")
    world.live(14)
    assert world.names == {"w1"}


def test_silence_recorded_in_ledger_counts_toward_loss(world: World) -> None:
    world.echo()
    world.finder.watch("w9", 12.0)
    world.clock.advance(4)
    world.echo()
    world.finder.clean()
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_rounds_ignore_workers_that_appeared_later(world: World) -> None:
    """They may have stopped again, and cannot have received the request at that time."""
    world.hear("w1")
    world.clock.advance(1)
    since = world.clock.monotonic()
    world.clock.advance(5)
    world.hear("w1")
    world.hear("w2")
    world.clock.advance(5)
    assert world.finder.report_rounds("t.a", since) == 1
    world.hear("w1")
    assert rounds(world, "t.a", since) == (2, 1)
    assert world.finder.report_rounds("t.a", world.clock.monotonic()) == 0


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
    world.clock.advance(liveness.URGENT_SECONDS)
    assert world.finder.maybe_publish() and world.finder.next_due() == start + 5


def test_workers_are_queried_often_while_searching(world: World) -> None:
    world.hear("w1")
    world.finder.maybe_publish()
    world.clock.advance(liveness.URGENT_SECONDS)
    assert not world.finder.maybe_publish()
    world.finder.schedule.is_searching = True
    assert world.finder.maybe_publish()
    assert world.finder.next_due() == world.clock.monotonic() + liveness.URGENT_SECONDS


# Reports of workers -------------------------------------------------------------------------------


def test_ids_of_running_requests_are_passed_on(world: World) -> None:
    world.hear("w1", state=notices.BEAT, **{hd.WBE_IDS: ["x", "y", 3]})
    assert world.named == [("w1", {"x", "y"})]
    for ids in (None, "x", {"x": 1}, 7):
        world.hear("w1", state=notices.BEAT, **{hd.WBE_IDS: ids})
    world.hear("w1", state=notices.BEAT)
    world.hear(None, **{hd.WBE_IDS: ["x"]})
    assert len(world.named) == 1


def test_life_state_of_worker_is_recorded(world: World) -> None:
    world.hear("w1", **{hd.WBE_LIFE: {"state": "busy", "birth": 5.0}})
    world.hear("w1")
    (worker,) = world.finder.workers()
    assert worker.life is not None and worker.life.state == "busy"


def test_clock_difference_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    now = world.clock.time()
    world.hear("w1", **{hd.WBE_TIME: now + 1000})
    assert not caplog.records  # with a ledger, clocks are not compared
    world.finder.clocks = clocks.Clocks(world.finder.outage_seconds)
    world.echo()
    world.hear("w1", **{hd.WBE_TIME: now + clocks.MAX_CLOCK_DIFFERENCE_SECONDS})
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
    world.finder.clocks = clocks.Clocks(world.finder.outage_seconds)
    world.echo()
    written = world.clock.time()
    world.clock.advance(60)
    world.echo()
    world.hear("w1", **{hd.WBE_TIME: written})
    assert not caplog.records


# Cost of discovery --------------------------------------------------------------------------------


def test_idle_engines_and_workers_exchange_few_messages() -> None:
    """The limit is 90 delivered messages per second while no request is open."""
    worlds = [World(holders=set()) for _ in range(20)]
    workers = [f"w{number}" for number in range(64)]
    for world in worlds:
        world.finder.schedule.needs_reports = False
        for worker in workers:
            world.hear(worker)
    delivered = 0
    for _ in range(60):  # 300 s
        for world in worlds:
            world.echo()
            if world.finder.maybe_publish():
                delivered += 2 * len(workers)
                for worker in workers:
                    world.hear(worker)
            assert world.finder.clean() == 0
            world.clock.advance(5)
    assert delivered / 300 < 90
