"""Whether a life that an engine led is one that the oracle allows."""

from __future__ import annotations

from collections import defaultdict, deque

from tests.property.oracle import Oracle, Ready, Spec

#: `(what, name)`: a state that an atom entered, or `answer -> target` of a decider that was asked.
Event = tuple[str, str]

YES, NO, RAISED = "yes", "no", "raised"

#: These begin something: whoever waited for nobody's answer was let in, or left out, before.
_BEGINNINGS = frozenset({"RUNNING", "REVERTING", "RETRYING", "IGNORE"})


class Replay:
    """Goes through the events of a life that was not suspended.

    `answers`: what each retry said when it was asked, one after the other.
    """

    def __init__(self, spec: Spec, answers: dict[str, list[str]], defer: bool) -> None:
        self.oracle = Oracle(spec)
        self.said = {name: deque(said) for name, said in answers.items()}
        self.defer = defer
        self.reset: set[str] = set()
        self.votes: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)

    def run(self, events: list[Event]) -> None:
        for place, (what, name) in enumerate(events):
            try:
                self._event(what, name)
            except Exception as error:
                past = " ".join(f"{name}:{what}" for what, name in events[: place + 1])
                raise AssertionError(
                    f"the oracle does not allow it: {error!r} after {past}"
                ) from error
        self._decide(True)

    def _event(self, what: str, name: str) -> None:
        oracle = self.oracle
        if what in (YES, NO, RAISED):
            end, _, target = name.partition(" -> ")
            self.votes[end, target].append(what)
            return
        self._decide(what in _BEGINNINGS)
        state = oracle.state[name]
        if what == "RUNNING":
            ready = oracle.ready()
            assert name in ready.execute | ready.retry, "not ready"
            if name in ready.retry:
                oracle.hand_out(Ready(retry={name}))
                changed = oracle.reset(name)
                assert changed <= self.reset, f"{changed - self.reset} are not pending"
                self.reset -= changed | oracle.retry_scope[name]
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
        elif what == "IGNORE":
            assert oracle.ignored(name), "not ignored"
        elif what == "PENDING":
            assert state != "RUNNING", "given back"
            self.reset.add(name)

    def _resolve(self, name: str) -> None:
        said: dict[str, str] = {}

        def answer(retry: str, failed: str) -> str:
            if retry not in said:
                said[retry] = self.said[retry].popleft()
            return said[retry]

        intention, retry = self.oracle.resolve(name, answer, self.defer)
        self.oracle.apply(intention, retry)

    def _decide(self, by_rule: bool) -> None:
        """Let in, or leave out, whoever all answers are known of; those without, if `by_rule`."""
        oracle = self.oracle
        while True:
            decided = False
            for name in sorted(oracle.ready().votes):
                arrows = oracle.asks(name)
                said = {a: self.votes[a.end, name] for a in arrows if self.votes[a.end, name]}
                if not said and (arrows or not by_rule):
                    continue  # it was not asked yet
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
        """All that was asked was answered, and all ended as the oracle says."""
        oracle = self.oracle
        assert not self.reset, f"{self.reset} became pending by themselves"
        assert not any(self.said.values()) and not any(self.votes.values()), "asked too often"
        expected = {
            name: "IGNORE" if state == "PENDING" and oracle.ignored(name) else state
            for name, state in oracle.state.items()
        }
        assert states == expected, f"{states} should be {expected}"
        assert oracle.verdict() == verdict, f"{verdict} should be {oracle.verdict()}"
        assert verdict == "FAILURE" or oracle.idle(), "it ended too early"
