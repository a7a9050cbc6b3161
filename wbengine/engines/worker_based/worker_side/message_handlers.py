"""What a worker is asked and told, besides requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from wbengine.engines.worker_based import dispatcher
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side import beating, task_runner

__all__ = ["MessageHandlers"]

LOG = logging.getLogger(__name__)


class MessageHandlers:
    """Hand messages on to a server, and obey `orders`, by their names."""

    def __init__(
        self,
        runner: task_runner.TaskRunner,
        beats: beating.Beats,
        orders: Mapping[str, Callable[[], None]],
    ) -> None:
        self._runner = runner
        self._server = runner.server
        self._beats = beats
        self._orders = orders

    def handlers(self) -> dict[str, dispatcher.Handler]:
        """The handler of each type of message."""
        made = dispatcher.Handler
        known = {
            pr.NOTIFY: made(self._on_notify, pr.Notify.validate),
            pr.REQUEST: made(self._runner.take, pr.Request.validate, owns_ack=True),
        }
        ours = (
            (commands.ASK, self._on_ask),
            (commands.CANCEL, self._on_cancel),
            (commands.CONTROL, self._on_control),
        )
        return known | {kind: made(does, commands.SCHEMAS[kind].check) for kind, does in ours}

    def _on_notify(self, data: Any, message: Any) -> None:
        question = env.received(data, message)
        self._beats.obey(question)
        with self._runner.lock:
            effects = self._server.on_notify(question, self._beats.period)
        self._runner.apply(effects)

    def _on_ask(self, data: Any, message: Any) -> None:
        question = env.received(data, message)
        in_person = env.WBE_ASK in question.headers
        with self._runner.lock:
            effects = self._server.on_ask(commands.named(data), question.reply_to, in_person)
        self._runner.apply(effects)

    def _on_cancel(self, data: Any, message: Any) -> None:
        with self._runner.lock:
            effects = self._server.on_cancel(commands.named(data))
        self._runner.apply(effects)

    def _on_control(self, data: Any, message: Any) -> None:
        what = data["do"]
        LOG.info("told to %s", what)
        self._orders[what]()
