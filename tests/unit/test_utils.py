"""Small helpers that users of TaskFlow import."""

from __future__ import annotations

import copy
import logging
import pickle
import threading

import pytest

import wbengine
from tests.support.workers import until
from wbengine import logging as our_logging
from wbengine import version
from wbengine._concurrency import manual_clock
from wbengine.persistence.backends import _memory
from wbengine.types import graph, latch, sets, timing, tree
from wbengine.utils import async_utils, misc, persistence_utils, threading_utils

# Utilities.


def test_capture_failure_keeps_the_active_exception():
    try:
        raise OSError("broken")
    except OSError:
        with misc.capture_failure() as failure:
            try:
                raise ValueError("of the cleaning up")
            except ValueError:
                pass
    assert failure.check(OSError) and failure.exception_str == "broken"
    with pytest.raises(RuntimeError, match="No active exception"), misc.capture_failure():
        pass


def test_make_completed_future_has_its_result():
    future = async_utils.make_completed_future(5)
    assert future.done() and future.result(0) == 5


def test_temporary_flow_detail_is_saved_with_its_book():
    backend = _memory.MemoryBackend()
    book, detail = persistence_utils.temporary_flow_detail(backend, meta={"a": 1})
    assert book.find(detail.uuid) is detail and detail.meta == {"a": 1}
    with backend.get_connection() as connection:
        assert connection.get_flow_details(detail.uuid).meta == {"a": 1}
        assert connection.get_logbook(book.uuid).name == book.name


class Bundled:
    """ThreadBundle with a log of the events of its threads."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.bundle = threading_utils.ThreadBundle()

    def bind(self, name: str) -> None:
        wake = threading.Event()

        def make() -> threading.Thread:
            wake.clear()
            return threading_utils.daemon_thread(wake.wait)

        def note(word: str, then=threading_utils.no_op):
            def told(thread: threading.Thread) -> None:
                self.log.append(f"{word} {name} {threading_utils.is_alive(thread)}")
                then()

            return told

        self.bundle.bind(
            make, note("starting"), note("started"), note("joining", wake.set), note("joined")
        )


def test_thread_bundle_stops_in_reverse_order():
    made = Bundled()
    made.bind("a")
    made.bind("b")
    assert len(made.bundle) == 2
    for _ in range(2):
        made.log.clear()
        assert (made.bundle.start(), made.bundle.start()) == (2, 0)
        assert (made.bundle.stop(), made.bundle.stop()) == (2, 0)
        assert made.log == [
            "starting a False", "started a True", "starting b False", "started b True",
            "joining b True", "joined b False", "joining a True", "joined a False",
        ]  # fmt: skip


def test_thread_bundle_can_be_stopped_after_a_callback_failed():
    bundle, wake = threading_utils.ThreadBundle(), threading.Event()

    def fail(thread: threading.Thread) -> None:
        raise ValueError("told")

    bundle.bind(
        lambda: threading_utils.daemon_thread(wake.wait),
        after_start=fail,
        before_join=lambda thread: wake.set(),
    )
    with pytest.raises(ValueError, match="told"):
        bundle.start()
    assert bundle.stop() == 1


@pytest.mark.parametrize("place", ["thread_factory", "before_start", "after_join"])
def test_thread_bundle_accepts_only_callables(place):
    with pytest.raises(ValueError, match=place):
        threading_utils.ThreadBundle().bind(**{"thread_factory": threading.Thread, place: 5})


def test_thread_helpers_return_ident_count_and_liveness():
    assert threading_utils.get_ident() == threading.get_ident()
    assert threading_utils.get_optimal_thread_count() >= 2
    for nothing in (None, False, 0, ""):
        assert threading_utils.is_alive(nothing) is False
    assert threading_utils.daemon_thread(print).daemon


# Types.


def test_ordered_set_keeps_order_in_all_operations():
    some = sets.OrderedSet("cabac")
    assert list(some) == ["c", "a", "b"] and len(some) == 3 and "a" in some
    assert some == {"a", "b", "c"} and hash(some) == hash(sets.OrderedSet("abc"))
    assert list(some.union("xa", "y")) == ["c", "a", "b", "x", "y"]
    assert list(some.intersection("ab", "bc")) == ["b"]
    assert list(some.difference("a", "z")) == ["c", "b"]
    assert some.issubset("abcd") and not some.issubset("ab")
    assert some.issuperset("ab") and not some.issuperset("ax")
    assert list(some & sets.OrderedSet("ba")) == ["b", "a"] and some >= {"a"}
    for other in (pickle.loads(pickle.dumps(some)), copy.copy(some), some.copy()):
        assert list(other) == list(some)
    assert repr(some) == "OrderedSet(['c', 'a', 'b'])"
    assert not sets.OrderedSet()


def test_latch_opens_after_all_countdowns():
    gate = latch.Latch(3)
    assert gate.needed == 3 and not gate.wait(0)
    opened: list[bool] = []
    threads = [threading_utils.daemon_thread(lambda: opened.append(gate.wait(60)))]
    threads[0].start()
    until(lambda: gate._condition._waiters)
    threads += [threading_utils.daemon_thread(gate.countdown) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    threads[0].join(60)
    assert opened == [True] and gate.needed == 0
    gate.countdown()
    assert gate.needed == 0 and gate.wait()
    for thread in threads:
        thread.join()
    with pytest.raises(ValueError, match="greater than zero"):
        latch.Latch(0)


def test_timeout_can_be_interrupted_reset_and_converted():
    wait = timing.Timeout(1000)
    assert wait.value == 1000 and not wait.is_stopped()
    wait.interrupt()
    wait.wait()
    assert wait.is_stopped()
    wait.reset()
    assert not wait.is_stopped()
    timing.Timeout(0).wait()
    assert timing.convert_to_timeout("1.5").value == 1.5
    assert timing.convert_to_timeout(None, 2).value == 2
    assert timing.convert_to_timeout(wait) is wait
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="0 or more"):
            timing.Timeout(wrong)
    with pytest.raises(ValueError, match="number of seconds"):
        timing.convert_to_timeout([])


def test_stop_watch_measures_elapsed_and_remaining_time():
    clock = manual_clock.ManualClock(100)
    watch = timing.StopWatch(3, clock=clock)
    for asks in (watch.elapsed, watch.stop, watch.leftover, watch.expired):
        with pytest.raises(RuntimeError):
            asks()
    with watch as running:
        assert running is watch and watch.has_started()
        clock.advance(2)
        watch.start()
        assert (watch.elapsed(), watch.leftover(), watch.expired()) == (2, 1, False)
        clock.advance(2)
        assert (watch.leftover(), watch.expired()) == (0, True)
    clock.advance(2)
    assert watch.has_stopped() and not watch.has_started() and watch.stop().elapsed() == 4
    with pytest.raises(RuntimeError, match="is not running"):
        watch.leftover()
    assert watch.restart().elapsed() == 0 and not watch.has_stopped()
    endless = timing.StopWatch(clock=clock).start()
    assert endless.leftover(return_none=True) is None and not endless.expired()
    with pytest.raises(RuntimeError, match="without a duration"):
        endless.leftover()
    with pytest.raises(ValueError, match="0 or more"):
        timing.StopWatch(-1)


def small_tree() -> tree.Node:
    root = tree.Node("root", kind="city")
    for name in ("a", "b"):
        root.add(tree.Node(name))
    root[0].add(tree.Node("a1"))
    root[0].add(tree.Node("a2"))
    root[0][0].add(tree.Node("deep"))
    return root


def test_tree_iterators_visit_nodes_in_order():
    root = small_tree()
    names = lambda nodes: [node.item for node in nodes]  # noqa: E731
    assert names(root.dfs_iter()) == ["a", "a1", "deep", "a2", "b"]
    assert names(root.dfs_iter(include_self=True, right_to_left=False)) == [
        "root", "b", "a", "a2", "a1", "deep",
    ]  # fmt: skip
    assert names(root.bfs_iter(include_self=True)) == ["root", "b", "a", "a2", "a1", "deep"]
    assert names(root.bfs_iter(right_to_left=True)) == ["a", "b", "a1", "a2", "deep"]
    assert names(root) == ["a", "b"] and names(root.reverse_iter()) == ["b", "a"]
    deep = root.find("deep")
    assert deep is not None and deep.empty() and not root.empty()
    assert names(deep.path_iter()) == ["deep", "a1", "a", "root"]
    assert names(deep.path_iter(include_self=False)) == ["a1", "a", "root"]
    assert "a2" in root and "x" not in root and root.index("b") == 1
    assert (root.child_count(), root.child_count(only_direct=False)) == (2, 5)
    assert root.find("deep", only_direct=True) is None
    assert root.find("root", include_self=False) is None
    assert root.find("root", only_direct=True) is root
    with pytest.raises(ValueError, match="is not the item of a child"):
        root.index("deep")


def test_frozen_tree_rejects_changes():
    root = small_tree()
    gone = root.remove("a1")
    assert gone.item == "a1" and gone.parent is None and "deep" not in root
    assert gone.disassociate() == 0
    with pytest.raises(ValueError, match="'a1'"):
        root.remove("a1")
    root.freeze()
    for change in (
        lambda: root.add(gone), lambda: root.remove("b"), root[0].disassociate,
    ):  # fmt: skip
        with pytest.raises(tree.FrozenNode):
            change()


def test_tree_is_formatted_and_converted_to_a_graph():
    text = small_tree().pformat(lambda node: node.item.upper(), "\n", starting_prefix="> ")
    assert text.splitlines() == [
        "> ROOT", "> |__A", "> |  |__A1", "> |  |  |__DEEP", "> |  |__A2", "> |__B",
    ]  # fmt: skip
    drawn = small_tree().to_digraph()
    assert next(drawn.topological_sort()) == "root" and drawn.nodes["root"] == {"kind": "city"}
    assert list(drawn.edges) == [("root", "a"), ("root", "b"), ("a", "a1"), ("a", "a2"),
                                 ("a1", "deep")]  # fmt: skip


def test_tree_of_depth_5000_needs_no_recursion():
    root = last = tree.Node(0)
    for number in range(1, 5000):
        last.add(tree.Node(number))
        last = last[0]
    root.freeze()
    assert root.child_count(only_direct=False) == 4999 and 4999 in root
    assert len(root.pformat(lambda node: "", "\n").splitlines()) == 5000


def test_graph_lists_formats_and_freezes_nodes_and_edges():
    made = graph.DiGraph(name="g")
    made.add_edge("a", "b", why="x")
    made.add_edge("b", v="c", attr_dict={"how": "y"})
    made.add_node("c", attr_dict={"kind": "last"})
    assert dict(made.nodes(data=True)) == {"a": {}, "b": {}, "c": {"kind": "last"}}
    assert list(made.edges(data=True)) == [("a", "b", {"why": "x"}), ("b", "c", {"how": "y"})]
    assert list(made.topological_sort()) == ["a", "b", "c"] and made.is_directed_acyclic()
    assert list(made.no_predecessors_iter()) == ["a"] and list(made.no_successors_iter()) == ["c"]
    assert list(made.bfs_predecessors_iter("c")) == ["b", "a"]
    made.add_edge("c", "a")
    *lines, cycle = made.pformat().splitlines()
    assert lines == [
        "Name: g", "Type: DiGraph", "Frozen: False", "Density: 0.500", "Nodes: 3", "  - a",
        "  - b", "  - c ({'kind': 'last'})", "Edges: 3", "  a -> b ({'why': 'x'})",
        "  b -> c ({'how': 'y'})", "  c -> a", "Cycles: 1",
    ]  # fmt: skip
    assert cycle.count(" --> ") == 3 and cycle.strip()[0] == cycle[-1]
    assert made.freeze() is made and made.frozen and made.freeze() is made
    with pytest.raises(Exception, match="Frozen"):
        made.add_edge("d", "a")
    assert type(made.fresh_copy()) is graph.DiGraph and not len(made.fresh_copy())
    both = graph.Graph(name="u")
    both.add_edge(1, 2)
    assert "  1 <-> 2" in both.pformat() and type(both.fresh_copy()) is graph.Graph


def test_merge_graphs_rejects_overlaps_unless_allowed():
    one, two = graph.OrderedDiGraph([(1, 2)], name="one"), graph.OrderedDiGraph([(3, 4)])
    merged = graph.merge_graphs(one, two)
    assert merged.name == "one" and set(merged) == {1, 2, 3, 4}
    assert graph.merge_graphs(one) is one
    overlapping = graph.DiGraph([(2, 3)])
    with pytest.raises(ValueError, match="share 1 nodes"):
        graph.merge_graphs(one, overlapping)
    assert set(graph.merge_graphs(one, overlapping, allow_overlaps=True)) == {1, 2, 3}
    with pytest.raises(ValueError, match="share 9 nodes"):
        graph.merge_graphs(one, two, overlap_detector=lambda to, of: 9)
    with pytest.raises(ValueError, match="callable"):
        graph.merge_graphs(one, overlap_detector=9)


# Logging and version.


def test_trace_level_is_below_debug(caplog):
    logger = our_logging.getLogger("wbengine.of.this.test", {"a": 1})
    caplog.set_level(our_logging.TRACE, "wbengine.of.this.test")
    logger.trace("quiet %s", 1)
    logger.warn("loud")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (5, "quiet 1"), (logging.WARNING, "loud"),
    ]  # fmt: skip
    assert our_logging.getLogger().logger.name == "wbengine"
    assert our_logging.BLATHER == our_logging.TRACE == 5 and our_logging.INFO == logging.INFO


def test_version_string_includes_the_package(monkeypatch):
    assert version.version_string() == wbengine.__version__
    assert version.version_string_with_package() == wbengine.__version__
    monkeypatch.setattr(version, "TASK_PACKAGE", "deb1")
    assert version.version_string_with_package() == f"{wbengine.__version__}-deb1"
