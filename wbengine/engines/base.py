"""What every engine can do, and how its options are read."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from wbengine import states
from wbengine import storage as storage_module
from wbengine.engines import differences
from wbengine.engines import options as options_module
from wbengine.persistence import base as persistence
from wbengine.persistence import models
from wbengine.runtime import control
from wbengine.types import notifier as notifier_module

__all__ = ["Engine", "check_seconds"]


def check_seconds(name: str, value: Any) -> None:
    """Refuse what is no number of seconds, of none or more; None is one without end.

    :raises TypeError: when it is not a number.
    :raises ValueError: when it is negative or NaN.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"The {name} must be a number of seconds or None, not {value!r}")
    if not 0 <= value <= math.inf or (isinstance(value, int) and value >= 2**1024):
        raise ValueError(f"The {name} must be a number of seconds or None, not {value!r}")


class Engine(abc.ABC):
    """Runs one flow: `compile`, `prepare`, `validate`, then `run` (which does the former itself).

    `notifier` tells of the flow's changes of state, `atom_notifier` of those of its tasks and
    retries.  Listeners are called in the thread that runs the engine, SUSPENDING in the one that
    suspends it; what they raise is logged, except interruptions, which end the run.

    One thread at a time may run the engine; `suspend`, `cancel` and the properties are for any
    thread.

    With a backend the flow is run by one engine at a time, wherever the others are: `run`,
    `run_iter`, `arun`, `prepare` and `reset` take the flow's lease, and give it back when they are
    over, however they end; compiling and reading work without.  Somebody else's run is an error
    (`on_busy='fail'`) or is waited for ('wait').  A change through `storage` outside of a run takes
    the lease too, and never waits.  The lease of an owner that died ends after 15
    seconds, or at once when its process is known to be dead: that of this host.  What somebody else
    changed meanwhile is read again first.  Who lost the lease, because it gave no sign of life for
    that long, writes, starts and tells nothing more.

    `durability` says what may be ahead of the store, and so what the end of this process, or of its
    host, can cost:

    - 'each' (the default): nothing is started, told to listeners, or forgotten by who ran it before
      the change that led to it is written; what happens in one turn of the loop is one write.  What
      was running runs again, or is asked for where it ran.
    - 'batch': one write at the end of each turn, after its tasks were started and its news told;
      where the tasks of a turn run in this thread, once a second too.  Lost can be the results of
      one turn; its tasks run again, maybe under a number of attempt that was used before.
    - 'end': one write when the run is suspended, ends or fails.  Lost can be all of the run.

    In all three the records of the atoms are written before anything starts, and whoever ran a task
    (a worker, its ledger) keeps the outcome until that is written: so a worker-based engine with a
    ledger runs nothing twice, whatever is lost.  Injections, metadata and progress are written with
    the next write of the run, and at once while nothing runs.

    A write that fails is tried three times, 5 seconds apart; then the run ends with
    `StorageFailure`, and the flow is in FAILURE here.  What runs in this process ends, and one more
    write is tried; what runs on workers goes on.  The next `run` of this engine, or of another one,
    goes on from there.
    """

    #: The options that a kind of engine takes.
    OPTIONS: ClassVar[Mapping[str, options_module.Option]] = {}

    #: For conductors: suspend the flow where nothing of it runs, and nothing is due for so many
    #: seconds.  None: it is waited for.
    park_after: float | None = None

    @property
    def parked(self) -> control.Parked | None:
        """Until when the latest run was suspended for `park_after`; None: it was not."""
        return None

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._flow = flow
        self._flow_detail = flow_detail
        self._backend = backend
        self._options = dict(options or {})
        #: The values of all options of the kind.
        self._settings = options_module.read(type(self).__name__, self.OPTIONS, self._options)
        # Either knows all states: listeners are often told one list for flows and atoms.
        known = {*states.FLOW_STATES, *states.ATOM_STATES}
        self._notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(known)
        self._atom_notifier: notifier_module.Notifier = notifier_module.RestrictedNotifier(
            known.union(states.INCIDENTS)
        )

    @classmethod
    def known_options(cls) -> frozenset[str]:
        """The names of all options this kind of engine understands."""
        return frozenset(cls.OPTIONS)

    @property
    def flow(self) -> Any:
        return self._flow

    @property
    def options(self) -> Mapping[str, Any]:
        """The options the engine was made with."""
        return self._options

    @property
    def notifier(self) -> notifier_module.Notifier:
        """Tells of the flow's changes of state."""
        return self._notifier

    @property
    def atom_notifier(self) -> notifier_module.Notifier:
        """Tells of the atoms' changes of state; and those who register for just that, of what else
        happens to them (`states.INCIDENTS`).
        """
        return self._atom_notifier

    @property
    @abc.abstractmethod
    def storage(self) -> storage_module.Storage:
        """What is known of this run: results, failures, states, histories."""

    @property
    @abc.abstractmethod
    def difference(self) -> differences.Difference | None:
        """What the flow and the records of an earlier run did not agree on; None: on everything.

        Known from `compile` on; `prepare` acts on it.
        """

    @property
    @abc.abstractmethod
    def statistics(self) -> dict[str, Any]:
        """Figures of the current or latest run; empty before the first, or when not gathered.

        - `active_for`: seconds from the first state of the loop to the last, or until now;
        - `seconds_per_state`: how they divide into `resuming`, `scheduling`, `waiting`,
          `analyzing`;
        - `completed`: how many executions and reversions came to an end;
        - `incomplete`: how many are under way, `awaiting`: how many are ready to be begun;
        - `withdrawn`: how many were begun, and taken back before they started;
        - `discarded_failures`: how many failed when the run was over already.
        """

    def _provide(self, values: Mapping[str, Any]) -> None:
        """Inject what `load` was given for a flow that was kept already."""
        self.storage.inject(values)

    @abc.abstractmethod
    def compile(self) -> None:
        """Turn the flow into what the engine runs; does nothing the second time.

        :raises CompilationFailure: the flow makes no sense (`Duplicate` names, ...).
        """

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make sure that every atom has its record; a flow that was reverted starts anew.

        The second time it does only the latter.

        What differs between the flow and the records of an earlier run is logged, and told to the
        option `migrate`, before anything is written.

        :raises IncompatibleVersion: an atom was recorded under a version whose first number is
            another one, and `migrate` does not say what to do with that.
        :raises Duplicate: an atom was recorded as one of the other kind (task or retry).
        :raises InvalidState: before `compile`.
        :raises FlowBusy: another engine runs the flow.  With `on_busy='wait'` it is waited for,
            until `suspend` ends that.
        :raises StorageFailure: the records cannot be written.
        """

    @abc.abstractmethod
    def validate(self) -> None:
        """Check that everything atoms need is provided; changes nothing.

        :raises MissingDependencies: an atom needs what nothing provides.
        :raises InvalidState: before `prepare`.
        """

    @abc.abstractmethod
    def run(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Run the flow to an end state (SUCCESS, FAILURE, REVERTED), or to SUSPENDED.

        Goes on from where an earlier run, here or elsewhere, was suspended or died.  A flow in
        SUCCESS runs only after `reset`; one that was reverted starts anew; one in FAILURE goes on,
        with `never_resolve` it stays there (see `reset`).

        :param timeout: bounds each single wait of the loop; it is no limit for the run.
        :param deadline: seconds from this call.  When they are over, nothing more starts, what
            waits to be started is withdrawn, what runs finishes, and everything is reverted (with
            `never_resolve` nothing is).  What is being reverted as a whole anyway, or has ended
            when the time is looked at, is not touched.
        :raises DeadlineExceeded: time was up; its `cause` is what failed besides.
        :raises Cancelled: somebody called `cancel`; its `cause` is what failed besides.
        :raises ExecutionFailure: the engine is running already.
        :raises FlowBusy: another engine runs the flow; the text says which process on which host.
            Nothing was changed.  With `on_busy='wait'` it is waited for, as long as `deadline`
            allows, and `suspend` ends that.
        :raises LeaseLost: another engine took the flow over during the run, or it was removed.
        :raises StorageFailure: the store could not be written; see the class.
        :raises TypeError: `timeout` or `deadline` is no number.
        :raises ValueError: one of them is negative or NaN.
        :raises Exception: what the flow failed with: a single failure as itself, several as one
            `WrappedFailure`; besides what `compile`, `prepare` and `validate` raise.  After a
            suspension nothing is raised.

        `KeyboardInterrupt`, `SystemExit`, and what else is no `Exception`, suspend the flow and
        leave `run`, once what runs elsewhere has ended: in this thread, in a retry controller, and
        in a task that runs on this host (of a process of its own: the first two).  What is
        `detached`, and `async`, is left to the next run.  The task or retry that was interrupted
        stays RUNNING or REVERTING, no retry is asked, nothing is reverted, and the next run runs it
        again.  On a worker they are the failure of the task.
        """

    @abc.abstractmethod
    def run_iter(
        self, timeout: float | None = None, *, deadline: float | None = None
    ) -> Iterator[str]:
        """Run the flow as `run` does, and yield each state of the run loop, the end state last.

        Nothing runs, and no other run is refused, before the first state is asked for.
        `send(True)` suspends.  `close()`, and giving the iterator up, suspends and waits for what
        runs; it raises no failure of the flow.  An exception thrown in ends the run with FAILURE
        and passes through; the next run goes on.

        :raises Exception: as `run`; about `timeout` and `deadline` when called, the rest while
            iterating.
        """

    @abc.abstractmethod
    async def arun(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """`run`, awaited: in a thread of its own, while other coroutines go on.

        Works in any running event loop; many engines may be awaited at once.  Cancelling it
        suspends the flow, waits for what runs, and only then raises `CancelledError`; the flow is
        SUSPENDED, and the next `run` or `arun` goes on.  Listeners are called in that thread.

        :raises BaseException: what `run` raises.
        """

    @abc.abstractmethod
    def suspend(self) -> None:
        """Let nothing more start; what runs finishes, then the flow is SUSPENDED.

        From any thread, from listeners and tasks, from signal handlers; any number of times.  Does
        not wait.  While `run` gets ready it is kept, and nothing starts.  Does nothing while the
        flow does not run.  A flow that comes to its end all the same is not SUSPENDED.

        :raises InvalidState: before `compile`, where `run` was not called.
        """

    @abc.abstractmethod
    def cancel(self, *atoms: Any, reason: str | None = None) -> bool:
        """End the run, or some of it: nothing more starts, and everything is reverted.

        Without `atoms` all that runs is told to end; with some of them (tasks, or flows and retries
        with all inside, or names) only those are, what else runs finishes, and nothing happens if
        all of them have ended already.  What has not started never will.  What runs is told by
        `task.cancelled`; where it runs in a process of its own, that is killed after
        `cancel_grace` seconds.  What ends because of that fails with `Cancelled`, which no retry is
        asked about; what ends well all the same is reverted like all the rest.  What is being
        reverted goes on, what could not be reverted in an earlier run is reverted again, a flow
        that comes to its end all the same is left alone, and with `never_resolve` nothing is
        reverted.

        `run` raises `Cancelled`, with the `reason`.  That is kept: a run that dies, or is
        suspended, while it reverts is gone on with there, whoever goes on with it.

        From any thread, from listeners and tasks, from signal handlers; any number of times.  Does
        not wait.

        :returns: False when no run is going on: then nothing is done.  (A flow that is suspended is
            reverted by `run(deadline=0)`.)
        :raises InvalidState: before `compile`.
        :raises NotFound: there is no such task, retry or flow in this one.
        :raises TypeError: an atom is none of these, or the reason is no text.
        """

    @abc.abstractmethod
    def signal(self, name: str, value: Any = None) -> None:
        """Give the flow a signal, for the tasks that wait for it (`task.WaitFor`), now or later.

        From any thread, whether the flow runs or not; once under each name.  With a backend it is
        kept with the flow.

        :raises NotFound: no task of the flow waits for such a signal; the text names the nearest.
        :raises InvalidState: the flow has ended.
        :raises Duplicate: it was given this signal before.
        :raises NotEncodable: the value cannot be sent, or is too long.
        :raises TypeError, ValueError: the name can be none.
        :raises CompilationFailure: the flow makes no sense.
        """

    @abc.abstractmethod
    def reset(self, *, failed_only: bool = False) -> None:
        """Forget all results and failures, so that the next run starts anew.

        From SUCCESS, FAILURE, REVERTED and SUSPENDED; nothing is reverted.  Attempt numbers go on.

        :param failed_only: forget only what failed, so that the next run executes that again, and
            then what comes after it; the way on from what `never_resolve` kept.
        :raises InvalidState: before `prepare`, while the flow runs, or, with `failed_only`, when
            part of the flow was or is to be reverted.  Then nothing is changed.
        :raises FlowBusy: another engine runs the flow (see `prepare`).
        """
