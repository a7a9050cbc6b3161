"""Notifiers: order of callbacks, filters, errors and concurrent changes."""

from __future__ import annotations

import copy
import logging
import sys
import threading

import pytest

from tests.support.threads import call_in_threads
from wbengine.types import notifier as nt


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, event, *args, details, **kwargs):
        self.calls.append((event, args, details, kwargs))

    @property
    def events(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def heard() -> Recorder:
    return Recorder()


@pytest.fixture
def notifier() -> nt.Notifier:
    return nt.Notifier()


def test_callback_receives_event_arguments_and_details(heard, notifier):
    notifier.register("e", heard, args=(1, 2), kwargs={"k": 3})
    notifier.notify("e", {"a": 1})
    notifier.notify("e")
    notifier.notify("other", {})
    assert heard.calls == [("e", (1, 2), {"a": 1}, {"k": 3}), ("e", (1, 2), {}, {"k": 3})]


def test_any_event_callbacks_run_first_in_order_of_registration():
    notifier, order = nt.Notifier(), []
    for name, event in [("s1", "e"), ("a1", "*"), ("s2", "e"), ("a2", nt.Notifier.ANY)]:
        notifier.register(event, lambda event, details, name=name: order.append(name))
    notifier.notify("e", {})
    assert order == ["a1", "a2", "s1", "s2"]


def test_each_callback_receives_its_own_copy_of_details():
    notifier, seen = nt.Notifier(), []

    def spoil(event, details):
        seen.append(dict(details))
        details.clear()

    notifier.register("e", spoil)
    notifier.register("e", lambda event, details: spoil(event, details))
    details = {"a": 1}
    notifier.notify("e", details)
    assert seen == [{"a": 1}, {"a": 1}] and details == {"a": 1}


def test_errors_of_callbacks_are_logged_and_not_raised(heard, caplog, notifier):

    def broken(event, details):
        raise RuntimeError("listener broke")

    notifier.register("e", broken)
    notifier.register("e", lambda **_: None)  # accepts no positional event: TypeError
    notifier.register("e", heard)
    with caplog.at_level(logging.WARNING):
        notifier.notify("e", {})
    assert heard.events == ["e"]
    assert "listener broke" in caplog.text and "broken" in caplog.text


def test_details_filter_is_evaluated_for_each_event(heard, caplog, notifier):
    notifier.register("e", heard, details_filter=lambda details: details["n"] > 1)
    for n in range(4):
        notifier.notify("e", {"n": n})
    notifier.notify("e", {})  # the filter raises KeyError, which is logged
    assert [call[2]["n"] for call in heard.calls] == [2, 3]
    assert "KeyError" in caplog.text


def test_duplicate_registration_is_rejected(heard, notifier):

    def only(details):
        return True

    notifier.register("e", heard)
    notifier.register("e", heard, details_filter=only)
    notifier.register("f", heard)
    assert len(notifier) == 3
    for details_filter in (None, only):
        with pytest.raises(ValueError, match="already registered"):
            notifier.register("e", heard, details_filter=details_filter)
    assert notifier.is_registered("e", heard, only)
    assert not notifier.is_registered("g", heard)


def test_bound_methods_of_one_object_are_the_same_callback():
    class Listener:
        def told(self, event, details): ...

    listener = Listener()
    notifier = nt.Notifier()
    notifier.register("e", listener.told)
    assert notifier.is_registered("e", listener.told)
    assert not notifier.is_registered("e", Listener().told)
    assert notifier.deregister("e", listener.told)


def test_deregister_removes_only_the_given_callback(heard, notifier):
    notifier.register("e", heard)
    notifier.register("e", print)
    notifier.register("f", heard)
    assert notifier.deregister("e", heard) is True
    assert notifier.deregister("e", heard) is False
    assert notifier.deregister("nothing", heard) is False
    assert notifier.deregister_event("e") == 1
    assert notifier.deregister_event("e") == 0
    assert [event for event, _ in notifier.listeners_iter()] == ["f"]
    notifier.reset()
    assert len(notifier) == 0 and bool(notifier)


def test_callback_can_change_callbacks_during_notify(heard, notifier):

    def once(event, details):
        notifier.deregister("e", once)
        notifier.register("e", heard)

    notifier.register("e", once)
    notifier.notify("e", {})
    assert heard.calls == []  # only callbacks registered before `notify` are called
    notifier.notify("e", {})
    assert heard.events == ["e"]


def test_threads_can_change_callbacks_during_notify(notifier):
    stop = threading.Event()
    errors: list[BaseException] = []

    def churn() -> None:
        try:
            while not stop.is_set():
                recorder = Recorder()
                notifier.register("e", recorder)
                len(notifier)
                list(notifier.listeners_iter())
                notifier.deregister("e", recorder)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=churn)
    thread.start()
    for _ in range(2_000):
        notifier.notify("e", {})
    stop.set()
    thread.join()
    assert not errors


def test_concurrent_registrations_and_removals_are_all_applied(notifier):
    recorders = [[Recorder() for _ in range(100)] for _ in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for change in (notifier.register, notifier.deregister):
            gate = threading.Barrier(len(recorders))

            def churn(mine, change=change, gate=gate):
                gate.wait(30)
                for recorder in mine:
                    change("e", recorder)

            call_in_threads(churn, recorders)
            assert len(notifier) == (800 if change == notifier.register else 0)
    finally:
        sys.setswitchinterval(before)


def test_any_cannot_be_notified_as_event(heard, notifier):
    notifier.register(nt.Notifier.ANY, heard)
    notifier.notify(nt.Notifier.ANY, {})
    assert heard.calls == []
    assert not notifier.can_trigger_notification("*") and notifier.can_be_registered("*")


@pytest.mark.parametrize("make", [nt.Notifier, lambda: nt.RestrictedNotifier(["e"])])
def test_copied_notifier_is_independent(make, heard):
    notifier = make()
    notifier.register("e", heard)
    for other in (notifier.copy(), copy.copy(notifier)):
        assert type(other) is type(notifier)
        other.deregister("e", heard)
        assert len(notifier) == 1 and len(other) == 0


def test_restricted_notifier_rejects_unknown_events(heard):
    notifier = nt.RestrictedNotifier(["started", "ended"])
    assert set(notifier.events_iter()) == {"started", "ended"}
    with pytest.raises(ValueError, match=r"'startd'.*did you mean 'started'.*ended, started"):
        notifier.register("startd", heard)
    notifier.register("*", heard)
    notifier.notify("startd", {})
    notifier.notify("ended", {})
    assert heard.events == ["startd", "ended"]
    with pytest.raises(ValueError, match=r"'\*'"):
        nt.RestrictedNotifier(["e"], allow_any=False).register("*", heard)


def test_register_deregister_removes_callback_after_exception(heard, notifier):
    with pytest.raises(RuntimeError), nt.register_deregister(notifier, "e", heard):
        notifier.notify("e", {})
        raise RuntimeError
    notifier.notify("e", {})
    assert heard.events == ["e"]
    with nt.register_deregister(notifier, "e"):
        assert len(notifier) == 0


def test_listener_attributes_are_readable_and_protected(heard):
    listener = nt.Notifier().register("e", heard, args=[1], kwargs={"k": 2})
    assert (listener.callback, listener.args, listener.kwargs) == (heard, (1,), {"k": 2})
    assert listener.details_filter is None
    listener.kwargs["k"] = 3
    assert listener.kwargs == {"k": 2}
