"""Who works, and who fell silent: the finder, on a clock that stands still until it is moved."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.unit.finding import Message, World
from wbengine import task
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based.discovery import finder
from wbengine.engines.worker_based.discovery import finder as finders
from wbengine.engines.worker_based.messages import envelope as env


class Resize(task.Task):
    def execute(self) -> None:
        return None


RESIZE = f"{__name__}.Resize"


# Counting ---------------------------------------------------------------------------------------


def test_many_workers_on_a_topic_are_many() -> None:
    world = World()
    for number in range(7):
        world.hear(f"w{number}")
    assert world.finder.total_workers == 7
    assert world.finder.slots("t.a") == 28
    assert world.finder.messages_processed == 7


def test_only_so_many_workers_are_known(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody who may publish can announce any number."""
    world = World()
    for number in range(20_002):
        world.hear(f"w{number}")
    assert world.finder.total_workers == 20_000
    (told,) = [record.getMessage() for record in caplog.records]
    assert "no room for <TopicWorker w20000 on 't', 1 tasks> beside the 20000 workers" in told
    world.hear("w7", state=env.STOPPED)
    world.hear("w20001")
    assert world.finder.total_workers == 20_000


def test_only_so_many_names_of_tasks_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """A quarter of all room each, and as much again of names that another worker told before."""
    world = World()
    name = "n" * 1_000_000
    many = [tuple(f"{number}{name}{n}" for n in range(16)) for number in range(5)]
    queues = [{env.WBE_QUEUE: f"q{number}"} for number in range(5)]
    for number in range(4):
        world.hear(f"w{number}", tasks=many[number], **queues[number])
        world.hear(f"v{number}", tasks=many[number], **queues[number])
    assert world.finder.total_workers == 8
    world.hear("w4", tasks=many[4], **queues[4])
    assert world.finder.total_workers == 8 and "no room for <TopicWorker w4" in caplog.text
    # Those that a worker told first stay with the other one.
    world.hear("w0", state=env.STOPPED)
    world.hear("w4", tasks=many[4], **queues[4])
    assert world.finder.total_workers == 7
    world.hear("v0", state=env.STOPPED)
    world.hear("w4", tasks=many[4], **queues[4])
    assert world.finder.total_workers == 7
    # What has no room keeps nobody from being known as before.
    world.hear("w1", tasks=(*many[1], *many[0]), **queues[1])
    assert world.finder.get_worker_for_task(many[1][0]) is not None
    assert world.finder.total_workers == 7


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


def test_no_worker_is_lost_before_the_first_echo() -> None:
    """That of another engine is none."""
    world = World(holders={"w1"})
    world.hear("w1")
    world.clock.advance(100.0)
    world.finder.process_response({}, Message({env.WBE_ECHO: "other"}))
    assert world.finder.clean() == 0
    world.echo()
    assert world.finder.clean() == 1


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
    world.live(3 * finders.MOST_PERIOD + 10)
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
    waiting = threading.Thread(target=lambda: missing.append(world.finder.wait_for_workers(2, 60)))
    waiting.start()
    world.hear("w2")
    waiting.join(60)
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


# Rounds ------------------------------------------------------------------------------------------


def test_rounds_are_of_all_workers_of_a_queue_and_apart() -> None:
    world = World()
    world.hear("w1")
    world.hear("w2")
    since = world.clock.monotonic()
    assert world.finder.idle_rounds("t.a", since) == world.finder.rounds("t.a", since) == 0
    world.clock.advance(5)
    world.hear("w1")
    world.clock.advance(0.1)
    world.hear("w1")  # the second within a moment is the same
    assert world.finder.idle_rounds("t.a", since) == 0
    world.hear("w2")
    assert world.finder.idle_rounds("t.a", since) == world.finder.rounds("t.a", since) == 1
    world.clock.advance(5)
    world.hear("w1")
    world.hear("w2", running=4)
    assert (world.finder.idle_rounds("t.a", since), world.finder.rounds("t.a", since)) == (0, 2)
    for _ in range(2):
        world.clock.advance(5)
        world.hear("w1")
        world.hear("w2")
    assert world.finder.idle_rounds("t.a", since) == 2
    assert world.finder.idle_rounds("t.a", world.clock.monotonic()) == 0
    assert world.finder.idle_rounds("nobody", since) == world.finder.rounds("nobody", since) == 0


def test_who_was_silent_for_long_has_no_free_slot() -> None:
    """Nobody knows yet that he is gone; others of his queue may well be busy."""
    world = World()
    world.finder.hurry = True
    world.hear("gone")
    world.hear("busy", running=4)
    assert world.finder.free("t.a") == 4
    world.clock.advance(15.1)
    world.hear("busy", running=4)
    assert (world.finder.slots("t.a"), world.finder.free("t.a")) == (8, 0)
    world.hear("gone")
    assert world.finder.free("t.a") == 4


@pytest.mark.parametrize("state", ["suspended", "draining", "started"])
def test_who_takes_nothing_has_no_free_slot(state: str) -> None:
    world = World()
    life: dict[str, Any] = {env.WBE_LIFE: {"state": state}}
    since = world.clock.monotonic()
    for _ in range(3):
        world.clock.advance(5)
        world.hear("w1", **life)
    assert (world.finder.free("t.a"), world.finder.idle_rounds("t.a", since)) == (0, 0)
    assert world.finder.rounds("t.a", since) == 2
    world.hear("w1", **{env.WBE_LIFE: {"state": "idle"}})
    assert world.finder.free("t.a") == 4


def test_plain_peers_never_count_as_idle() -> None:
    world = World()
    since = world.clock.monotonic()
    for _ in range(4):
        world.clock.advance(5)
        world.hear(None)
    assert world.finder.idle_rounds("t", since) == 0


# Asking rarely -----------------------------------------------------------------------------------


def test_as_long_as_nobody_needs_to_know_workers_are_asked_seldom_and_are_not_lost() -> None:
    world = World(holders=set())
    world.hear("w1")
    world.finder.hurry = False
    questions = 0
    for _ in range(60):
        world.echo()
        if world.finder.maybe_publish():
            questions += 1
            world.hear("w1")
        assert world.finder.clean() == 0
        world.clock.advance(5)
    assert questions == 10  # in 300 s


def test_who_was_not_asked_for_long_gets_time_to_answer() -> None:
    world = World(holders=set())
    world.finder.hurry = False
    world.finder.maybe_publish()
    world.hear("w1")
    world.live(25)
    world.finder.hurry = True
    world.live(10)
    assert world.names == {"w1"}
    world.live(5)
    assert world.names == set()


def test_worker_that_is_asked_now_and_then_is_lost_after_three_questions() -> None:
    """Questions count, however often it begins and ceases to matter what they answer."""
    world = World(holders=set())
    world.hear("w1")
    for turn in range(6):
        world.finder.hurry = turn % 2 == 0
        world.live(5)
    assert world.names == set()


def test_who_owes_an_answer_is_lost_after_three_periods_and_asked_before() -> None:
    world = World(holders={"w1"})
    world.hear("w1")
    world.hear("w2")
    world.finder.hurry = False
    world.finder.maybe_publish()
    world.echo()
    world.clock.advance(5)
    assert not world.finder.maybe_publish()
    world.clock.advance(1)
    assert world.finder.maybe_publish()  # he should have spoken
    world.live(15)
    assert world.names == {"w2"}


def test_who_answers_a_request_lives() -> None:
    world = World(holders={"w1"})
    world.hear("w1")
    world.live(14)
    world.finder.watch("w1")
    world.live(14)
    assert world.names == {"w1"}


def test_who_was_silent_in_his_ledger_is_lost_sooner() -> None:
    world = World()
    world.echo()
    world.finder.watch("w9", 12.0)
    world.clock.advance(4)
    world.echo()
    world.finder.clean()
    assert [worker.identity for worker in world.lost] == ["w9"]


def test_who_came_later_is_not_waited_for() -> None:
    """He may be gone again; what was to be had then, he cannot have had."""
    world = World()
    world.hear("w1")
    world.clock.advance(1)
    since = world.clock.monotonic()
    world.clock.advance(5)
    world.hear("w1")
    world.hear("w2")
    world.clock.advance(5)
    assert world.finder.rounds("t.a", since) == 1
    world.hear("w1")
    assert (world.finder.rounds("t.a", since), world.finder.idle_rounds("t.a", since)) == (2, 1)
    assert world.finder.rounds("t.a", world.clock.monotonic()) == 0


def test_a_new_worker_is_told_how_often_to_speak() -> None:
    world = World(expiry=2)
    world.hear("w1", period=5.0)
    (key, headers) = world.asked[-1]
    assert (key, headers[env.WBE_PERIOD]) == ("w1", 0.5)
    world.hear("w2", period=0.5)
    assert world.asked[-1][0] == "w1"


def test_a_new_worker_that_does_not_answer_is_lost_as_soon_as_others() -> None:
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
    # Whoever knows has 1.5 s; who may be about to begin, one more.
    assert lost["w1"] in (25, 26) and lost["w2"] in (30, 31)


# Hearing -----------------------------------------------------------------------------------------


def test_a_loop_that_stood_still_forgives_everybody() -> None:
    world = World()
    world.echo()
    world.hear("w1")
    world.finder.turn(world.clock.monotonic())
    since = world.clock.monotonic()
    world.clock.advance(60)
    world.finder.turn(world.clock.monotonic())
    world.echo()
    assert world.finder.clean() == 0 and world.names == {"w1"}
    assert world.finder.missed(since, world.clock.monotonic()) == 60.0
    world.live(20)
    assert world.names == set()


def test_a_broker_that_was_away_for_a_moment_is_noticed() -> None:
    world = World()
    world.echo()
    world.hear("w1")
    start = world.clock.monotonic()
    world.finder.turn(start, "one channel")
    world.clock.advance(1)
    world.finder.turn(start + 1, "one channel")
    assert world.finder.missed(start, start + 1) == 0.0
    world.clock.advance(2)
    world.finder.turn(start + 3, "another")
    assert world.finder.missed(start, start + 3) == 2.0
    # What became of everything is of interest now.
    world.finder.maybe_publish()
    world.clock.advance(finders.URGENT)
    assert world.finder.maybe_publish() and world.finder.next_due() == start + 5


def test_while_it_is_urgent_workers_are_asked_often() -> None:
    world = World()
    world.hear("w1")
    world.finder.maybe_publish()
    world.clock.advance(finders.URGENT)
    assert not world.finder.maybe_publish()
    world.finder.urgent = True
    assert world.finder.maybe_publish()
    assert world.finder.next_due() == world.clock.monotonic() + finders.URGENT


def test_what_was_missed_is_counted_once() -> None:
    world = World()
    world.echo()
    start = world.clock.monotonic()
    world.clock.advance(30)
    assert world.finder.missed(start + 10, start + 30) == 20.0  # and it goes on
    world.finder._turned = start
    world.finder.turn(start + 30)
    world.echo()
    assert world.finder.missed(start, start + 30) == 30.0
    assert world.finder.missed(start + 30, start + 35) == 0.0
    assert world.finder.missed(start + 25, start + 26) == 1.0


# What workers say of themselves ------------------------------------------------------------------


def test_what_a_worker_runs_is_passed_on() -> None:
    world = World()
    world.hear("w1", state=env.BEAT, **{env.WBE_IDS: ["x", "y", 3]})
    assert world.named == [("w1", {"x", "y"})]
    for ids in (None, "x", {"x": 1}, 7):
        world.hear("w1", state=env.BEAT, **{env.WBE_IDS: ids})
    world.hear("w1", state=env.BEAT)
    world.hear(None, **{env.WBE_IDS: ["x"]})
    assert len(world.named) == 1


def test_its_life_is_known() -> None:
    world = World()
    world.hear("w1", **{env.WBE_LIFE: {"state": "busy", "birth": 5.0}})
    world.hear("w1")
    (worker,) = world.finder.workers()
    assert worker.life is not None and worker.life.state == "busy"


def test_a_clock_that_differs_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    now = world.clock.time()
    world.hear("w1", **{env.WBE_TIME: now + 1000})
    assert not caplog.records  # where there is a ledger nobody looks
    world.finder.clocks = finder.Clocks(world.finder.missed)
    world.echo()
    world.hear("w1", **{env.WBE_TIME: now + finder.MOST_APART})
    world.hear("w2", **{env.WBE_TIME: "noon"})
    assert not caplog.records
    for _ in range(2):
        world.hear("w1", **{env.WBE_TIME: now + 100})
    (record,) = caplog.records
    assert "w1" in record.getMessage() and "100 s ahead" in record.getMessage()


def test_what_waited_while_nothing_was_heard_says_nothing_of_a_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.finder.clocks = finder.Clocks(world.finder.missed)
    world.echo()
    written = world.clock.time()
    world.clock.advance(60)
    world.echo()
    world.hear("w1", **{env.WBE_TIME: written})
    assert not caplog.records


# The cost of knowing -----------------------------------------------------------------------------


def test_twenty_engines_and_64_workers_say_little() -> None:
    """Messages that reach somebody, each second, while nothing stands still."""
    worlds = [World(holders=set()) for _ in range(20)]
    workers = [f"w{number}" for number in range(64)]
    for world in worlds:
        world.finder.hurry = False
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
