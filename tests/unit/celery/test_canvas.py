"""What is sent after a task has ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from wbengine import limits
from wbengine.interop.celery.canvas import sequel
from wbengine.interop.celery.canvas.signature import Signature
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.interop.celery.protocol.message import Malformed, TaskMessage
from wbengine.interop.celery.protocol.steps import CountChord, Following, Missed, SaveGroup, Send

A, B, C = (Signature(name, (name,)) for name in "abc")
NOW = 1_600_000_000.0


def ids() -> Callable[[], str]:
    numbers = iter(range(1_000_000))
    return lambda: f"new-{next(numbers)}"


def written(*signatures: Signature) -> list[dict[str, Any]]:
    return [one.written() for one in signatures]


def parent(**fields: Any) -> TaskMessage:
    return TaskMessage("p", "parent", root_id="root", reply_to="answers", **fields)


def after(message: TaskMessage, result: Any = "r", **options: Any) -> Following:
    return sequel.next_of(message, result, new_id=ids(), now=NOW, **options)


def sent(following: Following) -> list[TaskMessage]:
    return [step.message for step in following.steps if isinstance(step, Send)]


# Links. ------------------------------------------------------------------------------------------


def test_nothing_follows_nothing() -> None:
    assert after(parent()) == Following()
    assert sequel.errbacks_of(parent(), new_id=ids(), now=NOW) == Following()
    assert sequel.never_run(parent()) == []


def test_a_callback_is_called_with_the_result() -> None:
    found = after(parent(callbacks=written(A)), origin="me@here")
    assert found.children == [(("new-0", None), None)]
    assert found.steps == [
        Send(
            TaskMessage(
                "a", "new-0", ("r", "a"), root_id="root", parent_id="parent", reply_to="answers",
                origin="me@here",
            )
        )
    ]  # fmt: skip


def test_an_immutable_callback_is_called_as_it_is() -> None:
    [message] = sent(after(parent(callbacks=[Signature("a", (1,), immutable=True).written()])))
    assert message.args == (1,)


def test_several_callbacks_are_a_group() -> None:
    group = Signature.group([A, B])
    found = after(parent(callbacks=written(A, group, B)))
    messages = sent(found)
    assert [one.task for one in messages] == ["a", "b", "a", "b"]
    assert {one.group for one in messages[:2]} == {"new-0"}
    assert {one.group for one in messages[2:]} == {"new-3"}
    assert [one.group_index for one in messages] == [0, 1, 0, 1]
    assert found.children == [
        (("new-0", None), [(("new-1", None), None), (("new-2", None), None)]),
        (("new-3", None), [(("new-4", None), None), (("new-5", None), None)]),
    ]


def test_options_become_fields() -> None:
    stamped = {"stamped_headers": ["who"], "who": "me"}
    options = {
        "task_id": "mine", "queue": "q", "exchange": "e", "routing_key": "k", "countdown": 10,
        "expires": 60, "time_limit": 9, "soft_time_limit": 3, "priority": 5, "shadow": "s",
        "reply_to": "elsewhere", "retries": 1, "ignore_result": True, "serializer": "yaml",
        "link": {"task": "l"}, "link_error": [{"task": "e"}], "headers": {"x": 1, "task": "no"},
        "root_id": "other", "replaced_task_nesting": 1, "add_to_parent": False, **stamped,
    }  # fmt: skip
    [step] = after(parent(callbacks=written(A.having(**options)))).steps
    start = datetime.fromtimestamp(NOW, timezone.utc)
    message = TaskMessage(
        "a", "mine", ("r", "a"), root_id="other", parent_id="parent", reply_to="elsewhere",
        eta=start + timedelta(seconds=10), expires=start + timedelta(seconds=60),
        timelimit=limits.TimeLimit(3, 9), priority=5, shadow="s", retries=1, ignore_result=True,
        content_type="application/x-yaml", callbacks=({"task": "l"},), errbacks=({"task": "e"},),
        extra={"x": 1}, stamped_headers=("who",), stamps={"who": "me"}, replaced_task_nesting=1,
    )  # fmt: skip
    assert step == Send(message, "q", "e", "k")


def test_times_of_options() -> None:
    plain = {"eta": "2020-01-01T00:00:00", "expires": datetime(2020, 1, 2)}
    [message] = sent(after(parent(callbacks=written(A.having(**plain, countdown=0)))))
    assert message.eta == datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert message.expires == datetime(2020, 1, 2, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 1e300}, {"expires": "soon"}, {"eta": 7}, {"task_id": 7}, {"time_limit": "1"},
        {"queue": 7}, {"link": 7}, {"chord": {}}, {"retries": -1}, {"reply_to": [1]},
    ],
)  # fmt: skip
def test_options_that_are_wrong_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        after(parent(callbacks=written(A.having(**options))))


def test_priorities_are_handed_on_if_asked_for() -> None:
    message = parent(callbacks=written(A, B.having(priority=1)), priority=7)
    assert [one.priority for one in sent(after(message))] == [None, 1]
    assert [one.priority for one in sent(after(message, inherit_priority=True))] == [7, 1]


def test_what_follows_is_sent_in_the_same_serializer() -> None:
    message = parent(callbacks=written(A), content_type="application/x-msgpack")
    assert sent(after(message))[0].content_type == "application/x-msgpack"


# Chains. -----------------------------------------------------------------------------------------


def test_a_chain_is_popped_from_its_end() -> None:
    found = after(parent(chain=written(C, B, A.having(task_id="id-a")), callbacks=written(C)))
    callback, message = sent(found)
    assert (callback.task, callback.chain) == ("c", ())
    assert (message.task, message.id, message.args) == ("a", "id-a", ("r", "a"))
    assert list(message.chain) == written(C, B)
    assert [id for (id, _), _ in found.children] == ["new-0", "id-a"]


def test_a_chain_of_ten_thousand_is_walked_step_by_step() -> None:
    accepted = serializers.Accepted()
    message = parent(chain=written(*[A] * 10_000))
    for left in (9_999, 9_998):
        [message] = sent(after(message, 1))
        message = codec.decode(codec.encode(message), accepted)
        assert len(message.chain) == left
    [message] = sent(after(parent(callbacks=written(Signature.chain([A] * 10_000)))))
    assert len(message.chain) == 9_999
    assert len(sequel.never_run(message)) == 9_999


def test_a_chain_as_a_callback() -> None:
    chain = Signature.chain(
        [A, B, C], link={"task": "l"}, link_error={"task": "e"}, queue="q", task_id="end"
    )
    [step] = after(parent(callbacks=written(chain))).steps
    assert isinstance(step, Send)
    message = step.message
    assert (step.queue, message.task, message.args) == ("q", "a", ("r", "a"))
    last, middle = (Signature.read(one) for one in message.chain)
    assert (last.task, last.options["task_id"]) == ("c", "end")
    assert last.options["link"] == [{"task": "l"}]
    assert "link" not in middle.options and "queue" not in middle.options
    assert message.callbacks == ()
    for one in (last, middle):
        assert one.options["link_error"] == [{"task": "e"}]
        assert (one.options["reply_to"], one.options["root_id"]) == ("answers", "root")
    assert message.errbacks == ({"task": "e"},)


def test_a_chain_within_a_chain_comes_before_the_rest() -> None:
    [message] = sent(after(parent(chain=written(C, Signature.chain([A, B])))))
    assert message.task == "a"
    assert [one["task"] for one in message.chain] == ["c", "b"]


# Chords. -----------------------------------------------------------------------------------------


def test_a_chord_counts_its_parts_before_it_sends_them() -> None:
    chord = Signature.chord([A, Signature.chain([A, B])], C, task_id="g")
    found = after(parent(chain=written(B, chord)))
    count, *sends = found.steps
    assert count == CountChord("g", 2)
    first, second = sent(found)
    assert len(sends) == 2
    assert (first.group, first.group_index, first.args) == ("g", 0, ("r", "a"))
    assert first.chord is not None
    body = Signature.read(first.chord)
    assert body.task == "c" and body.options["chain"] == written(B)
    # What counts for the chord is the last of the chain.
    assert (second.group, second.chord) == (None, None)
    [last] = second.chain
    assert (last["options"]["group_id"], last["options"]["group_index"]) == ("g", 1)
    assert last["options"]["chord"] == first.chord
    results = [(("new-0", None), None), ((last["options"]["task_id"], None), None)]
    assert found.children[0][0] == ("g", None) and len(found.children[0][1]) == len(results)


def test_a_chord_in_a_chord() -> None:
    inner = Signature.chord([A, B], C)
    found = after(parent(callbacks=written(Signature.chord([inner, A], B))))
    outer, within, *_ = found.steps
    assert isinstance(outer, CountChord) and isinstance(within, CountChord)
    assert (outer.size, within.size) == (2, 2)
    first = sent(found)[0]
    assert first.group == within.group and first.chord is not None
    body = Signature.read(first.chord)
    assert (body.task, body.options["group_id"]) == ("c", outer.group)
    assert body.options["chord"]["task"] == "b"


def test_a_group_at_the_end_of_a_part_is_told_to_the_backend() -> None:
    part = Signature.chain([A, Signature.group([B, C])])
    found = after(parent(callbacks=written(Signature.chord([part], A))))
    save, count, *_ = found.steps
    assert isinstance(save, SaveGroup) and isinstance(count, CountChord)
    assert (save.group, count.size) == (count.group, 2)
    (_, none), [(_, members)] = save.result
    assert none is None and len(members) == 2


def test_an_empty_chord_calls_its_body() -> None:
    [message] = sent(after(parent(callbacks=written(Signature.chord([], C)))))
    assert (message.task, message.args) == ("c", ([], "c"))


def test_a_chord_delays_its_header_and_links_its_body() -> None:
    options = {"countdown": 5, "link": {"task": "l"}, "link_error": {"task": "e"}}
    found = after(parent(callbacks=written(Signature.chord([A], C, **options))))
    [message] = sent(found)
    assert message.eta is not None and message.callbacks == message.errbacks == ()
    assert message.chord is not None
    body = message.chord["options"]
    assert (body["link"], body["link_error"]) == ([{"task": "l"}], [{"task": "e"}])
    assert "countdown" not in body


def test_the_body_is_called_with_the_results() -> None:
    body = C.having(task_id="body", root_id="the-root")
    found = sequel.body_of(body.written(), (1, 2), parent(), new_id=ids(), now=NOW)
    [message] = sent(found)
    assert (message.id, message.args, message.parent_id) == ("body", ([1, 2], "c"), "parent")
    assert message.root_id == "the-root"
    group = Signature.group([A, B], task_id="g")
    found = sequel.body_of(group.written(), [1], parent(), new_id=ids(), now=NOW)
    assert [one.args for one in sent(found)] == [([1], "a"), ([1], "b")]


def test_members_of_a_group_may_be_the_parts_of_a_chord() -> None:
    """A chord whose header was sent as a group, by a sender of version 1."""
    body = {"task": "body"}
    parts = [A.having(chord=body), Signature.chain([B, C], chord=body)]
    group = Signature.group(parts, task_id="g")
    found = after(parent(callbacks=written(group)))
    assert found.steps[0] == CountChord("g", 2)
    named = Signature.group([A.having(chord=body, group_id="other")])
    assert not any(
        isinstance(step, CountChord) for step in after(parent(callbacks=written(named))).steps
    )


# Version 1. --------------------------------------------------------------------------------------


def test_what_follows_has_the_version_of_what_was_before() -> None:
    short, long = (Signature.chain([A] * count) for count in (251, 252))
    for protocol in (1, 2):
        message = parent(callbacks=written(short), protocol=protocol)
        assert [one.protocol for one in sent(after(message))] == [protocol]
    message = parent(callbacks=written(long), protocol=1)
    assert [one.protocol for one in sent(after(message))] == [2]


def test_a_call_that_is_linked_twice_is_one_call() -> None:
    first, second = A.having(task_id="x"), A.having(task_id="x", group_id="g")
    chord = Signature.chord([B], C.having(task_id="end"), task_id="one")
    again = Signature.chord([B], C.having(task_id="end"), task_id="other")
    message = parent(callbacks=written(first, second, chord, again, B, B))
    following = after(message)
    assert [one.task for one in sent(following)] == ["a", "b", "b", "b"]
    assert sent(following)[0].group == "g"
    assert CountChord("other", 1) in following.steps


def test_a_chain_that_is_linked_too_is_sent_once() -> None:
    last = C.having(task_id="c")
    middle = B.having(task_id="b", link=[last.written()])
    first = A.having(task_id="a", link=[middle.written(), {"task": "mine"}])
    chain = Signature.chain([first, middle, last])
    [message] = sent(after(parent(callbacks=written(chain))))
    assert message.callbacks == ({"task": "mine"},)
    assert [one["task"] for one in message.chain] == ["c", "b"]
    assert not message.chain[1]["options"]["link"]
    chord = Signature.chord([A], B.having(task_id="b", link=[last.written()]))
    message = sent(after(parent(callbacks=written(Signature.chain([chord, last])))))[0]
    assert message.chord is not None
    assert not message.chord["options"]["link"]
    assert [one["task"] for one in message.chord["options"]["chain"]] == ["c"]


def test_the_rest_of_a_chain_of_version_1_never_runs() -> None:
    last = B.having(task_id="last", group_id="g", chord={"task": "body"})
    link = A.having(task_id="next", link=written(last, last))
    message = parent(callbacks=written(link, link))
    assert sequel.never_run(message) == []
    message.protocol = 1
    missed = [Missed("next"), Missed("last", "g", None, {"task": "body"})]
    assert sequel.never_run(message) == missed
    for body in (link, Signature.chain([link, last])):
        _, broken = sequel.chord_broken(body.written(), message, new_id=ids(), now=NOW)
        assert broken == missed


# Failures. ---------------------------------------------------------------------------------------


def test_errbacks_are_called_with_the_id() -> None:
    errbacks = written(A, Signature("b", (1,), immutable=True))
    found = sequel.errbacks_of(parent(errbacks=errbacks), new_id=ids(), now=NOW, origin="me")
    first, second = sent(found)
    assert (first.args, second.args) == (("parent", "a"), (1,))
    assert (first.parent_id, first.root_id, first.origin) == ("parent", "root", "me")


def test_what_never_runs() -> None:
    end = C.having(task_id="body", chain=written(A.having(task_id="z")))
    chord = Signature.chord([A], end, task_id="of the header")
    members = [A.having(task_id="m1"), B.having(task_id="m2")]
    group = Signature.group(members, task_id="of the group")
    part = {"task": "body-of-outer"}
    last = A.having(task_id="last", group_id="g", group_index=3, chord=part)
    message = parent(chain=written(last, group, chord, B, A.having(task_id="next")))
    assert sequel.never_run(message) == [
        Missed("next"), Missed("body"), Missed("z"), Missed("m1"), Missed("m2"),
        Missed("last", "g", 3, part),
    ]  # fmt: skip


def test_a_broken_chord_tells_its_errbacks_and_all_that_would_follow() -> None:
    rest = written(B.having(task_id="end"))
    body = C.having(task_id="body", link_error={"task": "e"}, chain=rest)
    found, missed = sequel.chord_broken(body.written(), parent(), new_id=ids(), now=NOW)
    [message] = sent(found)
    assert (message.task, message.args) == ("e", ("body",))
    assert missed == [Missed("body"), Missed("end")]


def test_a_broken_chord_with_a_group_tells_each_member() -> None:
    group = Signature.group(
        [A.having(task_id="m1", link_error=[{"task": "e1"}]), B.having(task_id="m2")],
        link_error={"task": "e2"},
    )
    found, missed = sequel.chord_broken(group.written(), parent(), new_id=ids(), now=NOW)
    assert [(one.task, one.args) for one in sent(found)] == [
        ("e1", ("m1",)), ("e2", ("m1",)), ("e2", ("m2",)),
    ]  # fmt: skip
    assert [one.id for one in missed] == ["m1", "m2"]


def test_a_broken_chord_in_a_chord_counts_as_a_failed_part() -> None:
    outer = {"task": "outer"}
    body = C.having(task_id="body", group_id="g", group_index=1, chord=outer)
    _, missed = sequel.chord_broken(body.written(), parent(), new_id=ids(), now=NOW)
    assert missed == [Missed("body", "g", 1, outer)]
