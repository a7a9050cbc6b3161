"""A fork waits for the users of SQLite connections, which are then closed."""

import threading

from tests.support.waiting import until
from wbengine._sqlite import fork_gate


class Gate(fork_gate.ForkGate):
    """A gate without real forks, which records how often it closed the connections."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(fork_gate.os, "register_at_fork", lambda **handlers: None)
        self.closed = 0
        super().__init__(self._count)

    def _count(self):
        self.closed += 1


def test_fork_waits_until_no_other_thread_uses_connections(monkeypatch):
    gate, leave = Gate(monkeypatch), threading.Event()

    def use():
        with gate:
            with gate:
                pass
            leave.wait()
            with gate:  # This does not wait for the fork.
                pass

    user = threading.Thread(target=use)
    user.start()
    until(lambda: gate._users)
    fork = threading.Thread(target=gate._before_fork)
    fork.start()
    until(lambda: gate._is_closed)
    assert (gate.closed, fork.is_alive()) == (0, True)
    leave.set()
    fork.join()
    assert gate.closed == 1
    user.join()


def test_thread_that_enters_during_a_fork_waits_for_its_end(monkeypatch):
    gate, inside = Gate(monkeypatch), threading.Event()

    def use():
        with gate:
            inside.set()

    gate._before_fork()
    user = threading.Thread(target=use)
    user.start()
    until(lambda: gate._changed._waiters)
    assert not inside.is_set()
    gate._after_fork()
    user.join()
    assert inside.is_set()


def test_fork_inside_of_its_own_transaction_neither_waits_nor_closes(monkeypatch):
    gate = Gate(monkeypatch)
    with gate:
        gate._before_fork()
        gate._after_fork()
        gate._before_fork()
        gate._after_fork_in_child()
    assert gate.closed == 0


def test_finalizer_in_the_thread_that_forks_does_not_wait(monkeypatch):
    gate, used = Gate(monkeypatch), []

    def fork():
        gate._before_fork()
        with gate:  # The garbage collector can run here.
            used.append(gate.closed)
        gate._after_fork()
        with gate:
            used.append(gate.closed)

    thread = threading.Thread(target=fork, daemon=True)
    thread.start()
    thread.join(10)
    assert used == [1, 1]
