"""Who works, and who fell silent: the finder, on a clock that stands still until it is moved."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from wbengine import task
from wbengine._clock import ManualClock
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import types


class Resize(task.Task):
    def execute(self) -> None:
        return None


RESIZE = f"{__name__}.Resize"


@dataclass
class Message:
    headers: dict[str, Any]


@dataclass
class World:
    """A finder, and everything that it said and was told."""

    topics: tuple[str, ...] = ()
    expiry: float | None = 60
    periodicity: float = 5.0
    clock: ManualClock = field(default_factory=lambda: ManualClock(start=50.0))
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    gained: list[set[str]] = field(default_factory=list)
    lost: list[types.TopicWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.finder = types.ProxyWorkerFinder(
            "me",
            self,
            self.topics,
            self.periodicity,
            self.expiry,
            on_change=self.changed,
            clock=self.clock,
        )

    def publish(self, message: Any, key: str, reply_to: Any = None, **options: Any) -> None:
        self.asked.append((key, options["headers"]))

    def changed(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        if gained:
            self.gained.append(gained)
        self.lost += lost

    def hear(
        self,
        worker: str | None = "w1",
        topic: str = "t",
        tasks: tuple[str, ...] = ("a",),
        state: str | None = env.READY,
        period: float | None = 5.0,
        slots: Any = 4,
        running: Any = 0,
        **more: Any,
    ) -> None:
        headers: dict[str, Any] = dict(more)
        if worker is not None:
            headers |= {
                env.WBE_VERSION: env.VERSION,
                env.WBE_WORKER: worker,
                env.WBE_STATE: state,
                env.WBE_SLOTS: slots,
                env.WBE_RUNNING: running,
            }
            if period is not None:
                headers[env.WBE_PERIOD] = period
            headers.setdefault(env.WBE_QUEUE, f"{topic}.{'-'.join(tasks) or 'a'}")
        self.finder.process_response({"topic": topic, "tasks": list(tasks)}, Message(headers))

    def echo(self) -> None:
        self.finder.process_response({}, Message({env.WBE_ECHO: "me"}))

    def live(self, seconds: float, *alive: str) -> None:
        """Time passes, with an echo and a beat of the living ones in each period."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.echo()
            for worker in alive:
                self.hear(worker, state=env.BEAT, tasks=())
            self.finder.clean()
            self.clock.advance(self.finder.period)
        self.echo()
        self.finder.clean()

    @property
    def names(self) -> set[Any]:
        return {worker.identity for worker in self.finder.workers()}


# Counting ---------------------------------------------------------------------------------------


def test_many_workers_on_a_topic_are_many() -> None:
    world = World()
    for number in range(7):
        world.hear(f"w{number}")
    assert world.finder.total_workers == 7
    assert world.finder.slots("t.a") == 28
    assert world.finder.messages_processed == 7


def test_a_worker_on_two_topics_is_one() -> None:
    world = World()
    world.hear("w1", "t")
    world.hear("w1", "u")
    assert world.finder.total_workers == 1
    assert world.finder.topics() == ["t", "u"]
    world.hear("w1", "t", state=env.STOPPED, tasks=())
    assert world.finder.total_workers == 0
    assert {worker.topic for worker in world.lost} == {"t", "u"}


def test_plain_peers_of_a_topic_look_like_one() -> None:
    world = World()
    world.hear(None)
    world.hear(None)
    assert world.finder.total_workers == 1
    assert world.finder.queue_for("a", lambda _: 0) == "t"
    assert not world.finder.speaks("t")
    world.hear("w1")
    assert world.finder.speaks("t.a")


def test_the_news_is_told_once() -> None:
    world = World()
    world.hear("w1", tasks=("a", "b"))
    world.hear("w1", tasks=("a", "b"))
    assert world.gained == [{"a", "b"}]


def test_another_list_of_tasks_replaces_the_first() -> None:
    world = World()
    world.hear("w1", tasks=("a", "b"))
    world.hear("w1", tasks=("b", "c", "c"))
    assert world.finder.tasks() == ["b", "c"]
    assert world.gained == [{"a", "b"}, {"b", "c"}]
    world.hear("w1", state=env.STOPPED)
    assert world.finder.tasks() == []


def test_mixed_lists_of_tasks_go_to_queues_of_their_own() -> None:
    world = World()
    world.hear("w1", tasks=("a",))
    world.hear("w2", tasks=("a", "b"))
    assert world.finder.queue_for("b", lambda _: 0) == "t.a-b"
    assert world.finder.queue_for("c", lambda _: 0) is None
    # Most slots for each waiting request.
    assert world.finder.queue_for("a", {"t.a": 10, "t.a-b": 0}.__getitem__) == "t.a-b"
    assert world.finder.queue_for("a", {"t.a": 0, "t.a-b": 10}.__getitem__) == "t.a"


def test_among_equals_the_topic_named_first_wins() -> None:
    world = World(topics=("z", "y"))
    world.hear("w1", "y")
    world.hear("w2", "z")
    assert world.finder.queue_for("a", lambda _: 0) == "z.a"


def test_free_slots_are_as_last_told() -> None:
    world = World()
    world.hear("w1", slots=4, running=1)
    world.hear("w2", slots=2, running=9)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (6, 3)
    world.hear("w1", state=env.BEAT, slots=4, running=4, tasks=(), **{env.WBE_QUEUE: "t.a"})
    assert world.finder.free("t.a") == 0
    world.hear("w1", state=env.STOPPED)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (2, 0)
    world.hear("w2", state=env.STOPPED)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (0, 0)


@pytest.mark.parametrize("nonsense", [None, "4", -1, 0, True, 1.5, float("nan")])
def test_nonsense_in_numbers_is_one_slot(nonsense: Any) -> None:
    world = World()
    world.hear("w1", slots=nonsense, running=nonsense, period=nonsense)
    assert world.finder.slots("t.a") == 1


@pytest.mark.parametrize(
    ("topic", "more"),
    [
        ("../up", {}),
        ("a b", {}),
        ("x" * 200, {}),
        ("*", {}),
        ("t", {env.WBE_QUEUE: "../../etc"}),
        ("t", {env.WBE_QUEUE: "q.*"}),
        ("t", {env.WBE_QUEUE: 7}),
    ],
)
def test_names_that_are_no_names_are_ignored(topic: str, more: dict[str, Any]) -> None:
    world = World()
    world.hear("w1", topic, **more)
    assert world.finder.total_workers == 0
    world.hear("new\nline")
    assert world.finder.total_workers == 0


def test_get_worker_for_task_takes_the_least_busy() -> None:
    world = World()
    world.hear("w1", tasks=(RESIZE,), running=3)
    world.hear("w2", tasks=(RESIZE,), running=1)
    for wanted in (RESIZE, Resize, Resize("x")):
        found = world.finder.get_worker_for_task(wanted)
        assert found is not None
        assert found.identity == "w2"
        assert found.performs(wanted)
    assert world.finder.get_worker_for_task("other") is None


# Topics -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("video.hd", True), ("video.hd.x", False), ("video", False), ("audio", True)],
)
def test_wildcards_are_matched_here(topic: str, wanted: bool) -> None:
    world = World(topics=("video.*", "audio"))
    world.hear("w1", topic)
    assert (world.finder.total_workers == 1) is wanted


def test_without_topics_every_topic_will_do() -> None:
    world = World()
    world.hear("w1", "anything.at.all")
    assert world.finder.topics() == ["anything.at.all"]


def test_topics_that_can_not_be() -> None:
    with pytest.raises(ValueError, match="topic"):
        World(topics=("a b",))


# Silence ----------------------------------------------------------------------------------------


def test_silence_of_three_periods_is_loss() -> None:
    world = World()
    world.hear("w1")
    world.hear("w2")
    world.live(15.0, "w2")
    assert world.names == {"w1", "w2"}
    world.live(5.0, "w2")
    assert world.names == {"w2"}
    assert [worker.identity for worker in world.lost] == ["w1"]
    assert world.finder.slots("t.a") == 4


def test_no_silence_counts_while_the_engine_does_not_hear_itself() -> None:
    world = World()
    world.hear("w1")
    world.echo()
    for _ in range(100):
        world.clock.advance(5.0)
        assert world.finder.clean() == 0
    assert world.names == {"w1"}


def test_no_worker_is_lost_before_the_first_echo() -> None:
    world = World()
    world.hear("w1")
    world.clock.advance(1000.0)
    assert world.finder.clean() == 0


def test_after_a_gap_everybody_has_a_full_period_of_grace() -> None:
    world = World()
    world.hear("w1")
    world.echo()
    world.clock.advance(600.0)  # an outage, or this process was frozen
    world.echo()
    assert world.finder.clean() == 0
    world.live(15.0)
    assert world.names == {"w1"}
    world.live(10.0)
    assert world.names == set()


def test_a_foreign_echo_is_nothing() -> None:
    world = World()
    world.hear("w1")
    world.finder.process_response({}, Message({env.WBE_ECHO: "other"}))
    world.clock.advance(100.0)
    assert world.finder.clean() == 0


def test_a_beat_alone_teaches_nothing() -> None:
    world = World()
    world.hear("w1", state=env.BEAT, tasks=())
    assert world.finder.total_workers == 0


def test_plain_peers_have_the_whole_expiry() -> None:
    world = World()
    world.hear(None)
    world.live(60.0)
    assert world.finder.total_workers == 1
    world.live(10.0)
    assert world.finder.total_workers == 0


@pytest.mark.parametrize("expiry", [None, 0, -1])
def test_without_expiry_nobody_is_lost(expiry: float | None) -> None:
    world = World(expiry=expiry)
    world.hear("w1")
    world.live(1000.0)
    assert world.names == {"w1"}


def test_nobody_can_ask_to_be_waited_for_forever() -> None:
    world = World()
    world.hear("w1", period=1e9)
    world.live(3 * types.MOST_PERIOD + 10)
    assert world.names == set()


def test_a_short_expiry_asks_for_quicker_beats() -> None:
    assert World(expiry=60).finder.period == 5.0
    assert World(expiry=8).finder.period == 2.0
    assert World(expiry=0.1).finder.period == env.LEAST_PERIOD


def test_a_large_fleet_is_asked_less_often_and_not_lost_for_it() -> None:
    world = World()
    for number in range(3000):
        world.hear(f"w{number}")
    world.finder.maybe_publish()
    questions = 0
    for _ in range(20):  # 100 s; each is asked every 30 s, and answers
        world.clock.advance(5.0)
        world.echo()
        if world.finder.maybe_publish():
            questions += 1
            for number in range(3000):
                world.hear(f"w{number}")
        assert world.finder.clean() == 0
    assert questions == 3


def test_who_was_lost_is_found_again() -> None:
    world = World()
    world.hear("w1")
    world.live(30.0)
    assert world.names == set()
    world.hear("w1")
    assert world.names == {"w1"}
    assert world.gained == [{"a"}, {"a"}]


def test_a_goodbye_of_nobody_is_nothing() -> None:
    world = World()
    world.hear("w1", state=env.STOPPED)
    world.hear(None)
    world.hear(None, state=env.STOPPED)
    assert world.lost == []


# Those that hold work and were never heard of ----------------------------------------------------


def test_a_watched_stranger_is_lost_like_anybody() -> None:
    world = World()
    world.echo()
    world.finder.watch("w9")
    world.live(15.0)
    assert world.lost == []
    world.live(5.0)
    assert [worker.identity for worker in world.lost] == ["w9"]
    assert world.finder.total_workers == 0
    world.live(30.0)
    assert len(world.lost) == 1


def test_beats_keep_a_stranger_and_its_announcement_makes_it_known() -> None:
    world = World()
    world.finder.watch("w9")
    world.live(60.0, "w9")
    assert world.lost == []
    world.hear("w9")
    world.live(30.0)
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_a_stranger_that_says_goodbye_is_gone() -> None:
    world = World()
    world.finder.watch("w9")
    world.hear("w9", state=env.STOPPED)
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_outages_are_no_silence_of_strangers_either() -> None:
    world = World()
    world.echo()
    world.finder.watch("w9")
    world.clock.advance(600.0)
    world.echo()
    world.finder.clean()
    assert world.lost == []


# Asking -----------------------------------------------------------------------------------------


def test_it_asks_once_a_period() -> None:
    world = World()
    assert world.finder.maybe_publish() is True
    assert world.finder.maybe_publish() is False
    world.clock.advance(4.9)
    assert world.finder.maybe_publish() is False
    world.clock.advance(0.2)
    assert world.finder.maybe_publish() is True
    keys = [key for key, _ in world.asked]
    assert keys == [env.ALL_WORKERS, "me"] * 2
    assert world.asked[0][1][env.WBE_PERIOD] == 5.0
    assert world.asked[1][1][env.WBE_ECHO] == "me"


def test_questions_of_others_are_not_answers() -> None:
    world = World()
    world.finder.process_response({}, Message({env.WBE_VERSION: "1"}))
    assert world.finder.messages_processed == 0


def test_waiting_for_workers() -> None:
    world = World()
    with pytest.raises(ValueError, match="one worker or more"):
        world.finder.wait_for_workers(0)
    world.hear("w1")
    assert world.finder.wait_for_workers(1, 0) == 0
    assert world.finder.wait_for_workers(3, 0) == 2
    missing: list[int] = []
    waiting = threading.Thread(target=lambda: missing.append(world.finder.wait_for_workers(2, 30)))
    waiting.start()
    world.hear("w2")
    waiting.join(30)
    assert missing == [0]


def test_reset_forgets_everything() -> None:
    world = World()
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
