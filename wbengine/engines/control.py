"""A flow's state, and what any thread may do about a run of it: suspend it, or cancel it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from threading import RLock
from typing import Any, ClassVar, Final

from wbengine import _clock, _options, exceptions, states
from wbengine import storage as storage_module
from wbengine.engines import base, ownership, selection
from wbengine.engines import compilation as compilation_module
from wbengine.persistence import base as persistence
from wbengine.persistence import commands, leases, models
from wbengine.runtime import control, saving
from wbengine.runtime import run as run_module

__all__ = ["Controlled", "EarlyRequests"]

LOG: Final = logging.getLogger(__name__)

#: What is asked of a run that gets ready.
EarlyRequests = deque[control.CancelRequest | control.SuspendRequest]


class Controlled(base.Engine):
    """An engine as other threads see it: which flow it has, and in which state that is.

    With a backend (see `base.Engine`, which says what they mean) it knows the options `durability`
    ('each', 'batch' or 'end'), `on_busy` ('fail' or 'wait'), and `lease` (15 seconds: when the flow
    is free if this process stops giving signs of life; for tests).
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"durability", "on_busy", "lease"})

    def __init__(
        self,
        flow: Any,
        flow_detail: models.FlowDetail,
        backend: persistence.Backend | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(flow, flow_detail, backend, options)
        self._clock = _clock.SYSTEM
        self._storage = storage_module.Storage(self._flow_detail, self._backend)
        self._durability = self._choice("durability", saving.EACH, saving.LEVELS)
        self._ownership = ownership.Ownership(
            self._storage,
            self._clock,
            on_busy=self._choice("on_busy", ownership.FAIL, ownership.ON_BUSY),
            lasting=_options.number("lease", self._options.get("lease", leases.LEASE_SECONDS)),
        )
        self._compilation: compilation_module.Compilation | None = None
        # Again by the same thread, when a signal's handler suspends.
        self._state_lock = RLock()
        self._run: run_module.Run | None = None
        #: What is to be injected by the next run.
        self._inputs: Mapping[str, Any] = {}
        # What came before the run began, and is for it; None: no run gets ready.
        self._early: EarlyRequests | None = None

    def _provide(self, values: Mapping[str, Any]) -> None:
        try:
            super()._provide(values)
        except exceptions.FlowBusy:
            if not self._ownership.waits:
                raise
            self._inputs = values  # the run injects them, which waits for the flow

    def _flag(self, name: str, default: bool) -> bool:
        return _options.flag(name, self._options.get(name, default))

    def _choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        return _options.choice(name, self._options.get(name, default), known)

    @property
    def storage(self) -> storage_module.Storage:
        return self._storage

    @property
    def compilation(self) -> compilation_module.Compilation | None:
        """The compiled flow; None before `compile`."""
        return self._compilation

    def _compiled(self, what: str) -> compilation_module.Compilation:
        if self._compilation is None:
            raise exceptions.InvalidState(f"An engine must be compiled before it is {what}")
        return self._compilation

    def suspend(self) -> None:
        self._suspend()

    def _suspend(self, why: str | None = None) -> None:
        """`suspend`; `why` goes into the flow's history."""
        if self._keep(control.SuspendRequest(why)):
            return
        self._compiled("suspended")
        if self._ownership.wake():
            return  # it is waited for, to prepare it or to reset it, and will not be any more
        if self._backend is not None and self._storage.writer.lease is None:
            return  # what the records say of a run is about one that died
        with self._state_lock:
            # Of the same run as the state: a later one must not hear of it.
            run = self._run
            moved, old_state = self._storage.move_flow(states.SUSPENDING, self._clock.time(), why)
        if moved:
            self._tell_state(states.SUSPENDING, old_state)
            if run is not None:
                run.stop_signal.suspend()

    def cancel(self, *atoms: Any, reason: str | None = None) -> bool:
        plan = self._compiled("cancelled").plan
        if not isinstance(reason, str | None):
            raise TypeError(f"The reason is a text or None, not {reason!r:.80}")
        nodes = selection.nodes_of(plan, atoms) if atoms else None
        request = control.CancelRequest(nodes, reason)
        if self._keep(request):
            return True
        run = self._run
        return run is not None and run.stop_signal.cancel(request)

    def _keep(self, request: control.CancelRequest | control.SuspendRequest) -> bool:
        """Keep a request for the run that gets ready, which waits no longer; False: none does."""
        with self._state_lock:
            early = self._early
            if early is not None:
                early.append(request)
        if early is None:
            return False
        self._ownership.wake()
        return True

    def _obey(self, command: persistence.FlowCommand) -> None:
        """Obey a command that was left in the store."""
        LOG.info("Flow %r is to be %s", self._storage.flow_name, command.in_words())
        if command.what == commands.SUSPEND:
            self._suspend(command.in_words())
        else:
            self.cancel(reason=command.told)

    def _begin(self, run: run_module.Run) -> None:
        """From now on `run` is suspended and cancelled, also by what came before it began."""
        with self._state_lock:
            self._run = run
            early, self._early = self._early, None
        for request in early or ():
            if isinstance(request, control.CancelRequest):
                run.stop_signal.cancel(request)
            else:
                self._suspend(request.why)

    def _change_state(self, state: str, why: str | None = None, *, saved: bool = True) -> bool:
        """Enter `state` and tell of it: after it is `saved`, if that is what durability means.

        `why` goes into the flow's history.
        """
        with self._state_lock:
            moved, old_state = self._storage.move_flow(state, self._clock.time(), why)
        if moved:
            if saved and self._durability == saving.EACH and len(self._notifier):
                self._storage.writer.flush()
            self._tell_state(state, old_state)
        return moved

    def _tell_state(self, state: str, old_state: str) -> None:
        if len(self._notifier):
            self._notifier.notify(
                state,
                {
                    "engine": self,
                    "flow_name": self._storage.flow_name,
                    "flow_uuid": self._storage.flow_uuid,
                    "old_state": old_state,
                },
            )
