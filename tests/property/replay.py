"""Check that the oracle allows the events of a run."""

from __future__ import annotations

from collections import defaultdict, deque

from tests.property.oracle import Oracle, Ready, Spec

#: `(kind, name)`: a state of an atom, an answer of a decider (of the link `source -> target`) or of
#: a retry controller, or an event of the run.
Event = tuple[str, str]

YES, NO, RAISED = "yes", "no", "raised"
#: Prefix of a retry controller's answer.
SAID = "said "

#: The run is suspended; started atoms may be given back, as after a failed revert.
SUSPENDED = "suspended"
#: From now on the run cannot write to the store.
LOST = "lost"
#: Another run resumes from the store.
RESUMED = "resumed"

#: Events that start something: nodes without deciders were approved or ignored before.
_BEGINNINGS = frozenset({"RUNNING", "REVERTING", "RETRYING", "IGNORE"})

#: State transitions of started atoms that are given back.
_GIVEN_BACK = frozenset(
    {
        ("RUNNING", "PENDING"),
        ("RUNNING", "RETRYING"),
        ("REVERTING", "SUCCESS"),
        ("REVERTING", "FAILURE"),
    }
)


class Replay:
    """Replays the events of a flow, possibly of several runs.

    It stops at the end of a run whose saved state is not fully known.
    """

    def __init__(self, spec: Spec, defer: bool) -> None:
        self.oracle = Oracle(spec)
        self.said: defaultdict[str, deque[str]] = defaultdict(deque)
        self.votes: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)
        self.defer = defer
        self.reset: set[str] = set()
        self._suspended = self._lost = False
        #: True if all events were replayed.
        self.complete = True

    def run(self, events: list[Event]) -> None:
        for place, (what, name) in enumerate(events):
            try:
                if what == RESUMED and not self._resume():
                    self.complete = False
                    return
                self._event(what, name)
            except Exception as error:
                past = " ".join(f"{name}:{what}" for what, name in events[: place + 1])
                raise AssertionError(
                    f"the oracle does not allow it: {error!r} after {past}"
                ) from error
        self._decide(True)

    def _resume(self) -> bool:
        if not self._lost:
            self._decide(False)
        # No event reported starts after the suspension.
        if not self.oracle.remembers() or (self._lost and self._suspended):
            return False
        assert self._lost or not any(self.said.values()), "asked in vain"
        self._give_back_retries()
        self.oracle.end()
        self.said.clear()
        self.votes.clear()
        self._suspended = self._lost = False
        return True

    def _event(self, what: str, name: str) -> None:
        if what == SUSPENDED:
            self._suspended = True
        elif what == LOST:
            self._decide(False)
            self._lost = True
        elif what in (YES, NO, RAISED):
            end, _, target = name.partition(" -> ")
            if not self._lost:
                self.votes[end, target].append(what)
        elif what.startswith(SAID):
            if not self._lost:
                self.said[name].append(what.removeprefix(SAID))
        elif what != RESUMED:
            if self._suspended and what != "PENDING":
                self._give_back_retries()
            self._decide(what in _BEGINNINGS)
            self._change(what, name)

    def _change(self, what: str, name: str) -> None:
        oracle = self.oracle
        state = oracle.state[name]
        if (state, what) in _GIVEN_BACK:
            assert self._suspended, "given back"
            oracle.give_back(name, what == "RETRYING")
            if what == "FAILURE":
                oracle.state[name] = what
        elif what == "RUNNING":
            ready = oracle.ready()
            assert name in ready.execute | ready.retry, "not ready"
            if name in ready.retry:
                oracle.hand_out(Ready(retry={name}))
                self._reset(name)
            else:
                oracle.hand_out(Ready(execute={name}))
        elif what == "REVERTING":
            assert name in oracle.ready().revert, "not to be reverted"
            oracle.hand_out(Ready(revert={name}))
        elif what == "SUCCESS":
            assert state == "RUNNING", state
            oracle.succeed(name)
        elif what == "FAILURE":
            assert state == "RUNNING", state
            oracle.fail(name)
            self._resolve(name)
        elif what in ("REVERTED", "REVERT_FAILURE"):
            assert state == "REVERTING", state
            oracle.revert(name, what)
            self._suspended |= what == "REVERT_FAILURE"
        elif what == "IGNORE":
            assert oracle.ignored(name), "not ignored"
        elif what == "PENDING":
            self.reset.add(name)

    def _reset(self, retry: str) -> None:
        changed = self.oracle.reset(retry)
        assert changed <= self.reset, f"{changed - self.reset} are not pending"
        self.reset -= changed | self.oracle.retry_scope[retry]

    def _give_back_retries(self) -> None:
        """Give back retry controllers that reset their flows, but were not reported to start."""
        for name in self.oracle.ready().retry:
            if self.reset & self.oracle.retry_scope[name]:
                self._reset(name)
                self.oracle.again.add(name)
        assert not self.reset, f"{self.reset} became pending by themselves"

    def _resolve(self, name: str) -> None:
        said: dict[str, str] = {}

        def answer(retry: str, failed: str) -> str:
            if retry not in said:
                said[retry] = self.said[retry].popleft()
            return said[retry]

        intention, retry = self.oracle.resolve(name, answer, self.defer)
        self.oracle.apply(intention, retry)

    def _decide(self, by_rule: bool) -> None:
        """Decide about nodes whose answers are known, and nodes without deciders if `by_rule`."""
        oracle = self.oracle
        while True:
            decided = False
            for name in sorted(oracle.ready().votes):
                arrows = oracle.asks(name)
                said = {a: self.votes[a.end, name] for a in arrows if self.votes[a.end, name]}
                if not said and (arrows or not by_rule):
                    continue  # the deciders were not called yet
                oracle.hand_out(Ready(votes={name}))
                decided = True
                answers = {arrow: known.popleft() for arrow, known in said.items()}
                if RAISED not in answers.values():
                    assert len(answers) == len(arrows), f"not all deciders of {name} were asked"
                    depth = oracle.refused(name, [a for a in arrows if answers[a] == NO])
                    if depth is not None:
                        oracle.ignore(name, depth)
                        continue
                oracle.approve(name)
            if not decided:
                return

    def check(self, states: dict[str, str], verdict: str) -> None:
        """Check that all answers were used and that the final states are those of the oracle."""
        oracle = self.oracle
        assert not self.reset, f"{self.reset} became pending by themselves"
        assert not any(self.said.values()) and not any(self.votes.values()), "asked too often"
        # A postponed retry controller has succeeded.
        states = {n: "SUCCESS" if state == "RETRYING" else state for n, state in states.items()}
        expected = {
            name: "IGNORE" if state == "PENDING" and oracle.ignored(name) else state
            for name, state in oracle.state.items()
        }
        assert states == expected, f"{states} should be {expected}"
        assert oracle.verdict() == verdict, f"{verdict} should be {oracle.verdict()}"
        assert verdict == "FAILURE" or oracle.idle(), "it ended too early"
