"""What a worker remembers of the requests that no ledger knows of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["REMEMBERED", "REMEMBERED_BYTES", "Recent"]

#: How many requests without a ledger a worker remembers, so that repeats of them are not run, and
#: how many bytes of their answers, so that repeats of those are answered.
REMEMBERED: Final = 10_000
REMEMBERED_BYTES: Final = 64 * 1024 * 1024


class Recent:
    """The newest epoch seen of the last requests, and their answers while there is room.  O(1).

    And up to which epoch requests are to be refused that did not come yet.
    """

    def __init__(self) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._answers: OrderedDict[str, env.Envelope] = OrderedDict()
        self._refused: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def epoch(self, request_id: str) -> int:
        """The newest epoch of a request that was seen; 0 for one that was not."""
        return self._epochs.get(request_id, 0)

    def answer(self, request_id: str) -> env.Envelope | None:
        return self._answers.get(request_id)

    def note(self, request_id: str, epoch: int) -> None:
        """Remember that a request was taken, instead of what is known of older epochs."""
        self._drop(request_id)
        self._epochs[request_id] = epoch
        while len(self._epochs) > REMEMBERED:
            self._drop(next(iter(self._epochs)))

    def keep(self, request_id: str, epoch: int, answer: env.Envelope) -> None:
        """Remember how it ended, unless a newer epoch of it was taken since."""
        if self._epochs.get(request_id) == epoch and len(answer.encoded) <= REMEMBERED_BYTES:
            self._answers[request_id] = answer
            self._bytes += len(answer.encoded)
            while self._bytes > REMEMBERED_BYTES:
                self._bytes -= len(self._answers.popitem(last=False)[1].encoded)

    def forget(self, request_id: str, epoch: int) -> None:
        """A request was not run after all: it may come again under the same epoch."""
        if self._epochs.get(request_id) == epoch:
            self._drop(request_id)

    def refuse(self, request_id: str, epoch: int) -> None:
        """Nobody has a use for a request any more, up to this epoch."""
        newest = max(epoch, self._refused.pop(request_id, 0))
        self._refused[request_id] = newest
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def refused(self, request_id: str) -> int:
        """The newest epoch of a request that is to be refused; 0 for none."""
        return self._refused.get(request_id, 0)

    def _drop(self, request_id: str) -> None:
        self._epochs.pop(request_id, None)
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._bytes -= len(answer.encoded)
