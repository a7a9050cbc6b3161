"""What is declared on the broker: an exchange, a queue of one's own, and queues that are shared."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import kombu

from wbengine import _names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.keys import NONE as NO_KEYS
from wbengine.transports.broker import Broker

LOG = logging.getLogger(__name__)

#: Interoperation with peers that run OpenStack TaskFlow.
TASKFLOW: Final = "taskflow"

#: Seconds after which a broker that can do so removes a queue nobody has touched.
QUEUE_EXPIRES: Final = 7 * 24 * 3600
BRIEF_EXPIRES: Final = 600

#: The highest priority of a request; a broker that keeps a queue for each has so many and one.
MOST_PRIORITY: Final = 9

_BROADCASTS: Final = (env.ALL_WORKERS, env.ALL_ENGINES)

#: Seconds for which one is sent what is for all, since one was heard of.
_FRESH: Final = 60.0

#: So many messages for all may wait for somebody to take them.
_CROWD: Final = 10

# Named, because the default of a virtual host may be another kind, which has neither.
_CLASSIC: Final = {"x-queue-type": "classic"}


def check_interop(interop: str | None) -> str | None:
    """`interop`, if it names a way to speak that this version knows."""
    if interop not in (None, TASKFLOW):
        raise ValueError(f"interop must be {TASKFLOW!r} or nothing, not {interop!r}")
    return interop


def check_plainly(interop: str | None, topics: Sequence[str], ledger: str | None) -> str | None:
    """`interop`, of an engine that also has these options.

    :raises ValueError: it is none, or an option is of no use with it.
    """
    if check_alone(interop, ledger) is None:
        return None
    if not topics:
        raise ValueError(
            f"interop={interop!r} needs topics: such workers do not announce themselves, each"
            f" topic has to be asked"
        )
    for topic in topics:
        try:
            _names.check_label("topic", topic)
        except ValueError as error:
            raise ValueError(f"interop={interop!r} takes no patterns: {error}") from None
    return interop


def check_alone(interop: str | None, ledger: str | None) -> str | None:
    """`interop`, which goes without a ledger.

    :raises ValueError: there is no such, or a ledger was given.
    """
    if check_interop(interop) is not None and ledger not in (None, "none"):
        raise ValueError(f"interop={interop!r} goes without a ledger: the others know of none")
    return interop


def check_unsigned(interop: str | None, keys: object) -> None:
    """
    :raises ValueError: keys were given for peers that cannot sign.
    """
    if interop and keys not in (None, NO_KEYS):
        raise ValueError(
            f"interop={interop!r} goes without keys: its peers sign nothing; whoever can write to"
            f" the queues of these topics says what is run"
        )


class Topology:
    """Durable queues on a topic exchange: one private queue, and shared ones for requests.

    RabbitMQ removes what nobody used for a week (the private queue of a worker: for ten minutes): a
    queue without consumers that nobody declared again; and the exchange with the last one.
    (Requests in such a queue are not lost: their engines find out that they are gone, as
    soon as somebody could take them, and send them again.)

    With `direct` there is no exchange: most of kombu's own transports keep bindings in the memory
    of the process that made them.  What is for all goes to everybody who was heard of lately, and
    to a queue that all of them share, for one of those who were not.

    With `interop='taskflow'` everything is declared as TaskFlow's peers declare it: a direct
    exchange, transient queues that vanish with their last consumer, one queue for each topic.
    """

    def __init__(
        self,
        exchange: str,
        topic: str,
        bindings: Sequence[str],
        interop: str | None,
        *,
        direct: bool = False,
    ) -> None:
        self.interop = check_interop(interop)
        self.direct = direct and not interop
        self._name = _names.check_label("exchange", exchange)
        self.topic = topic
        self._bindings = tuple(bindings)
        #: Whether nobody else will ever read the private queue: workers have no heirs.
        self.brief = False
        # Who was heard of, and when.
        self._known: dict[str, float] = {}
        if self.direct:
            self.exchange = kombu.Exchange("")
        elif interop:
            self.exchange = kombu.Exchange(exchange, durable=False, auto_delete=True)
        else:
            # It goes with the last queue, also with one that expires.
            self.exchange = kombu.Exchange(exchange, type="topic", durable=True, auto_delete=True)

    def declare_on(self, broker: Broker) -> str:
        """Declare the exchange at a broker of ours; its name."""
        broker.declare_exchange(self._name)
        return self._name

    def declare_queues_on(self, broker: Broker, shared: Iterable[str]) -> None:
        """Declare and bind this side's own queue, and shared ones, at a broker of ours."""
        self.declare_on(broker)
        broker.declare_queue(self.topic, owned=True)
        for key in (self.topic, *self._bindings):
            broker.bind(self._name, key, self.topic)
        for name in shared:
            broker.declare_queue(name)
            broker.bind(self._name, name, name)

    # On the others, through kombu.

    def declare_exchange(self, channel: Any) -> Any:
        exchange = self.exchange(channel)
        exchange.declare()
        return exchange

    def declare_own(self, channel: Any) -> Any:
        """Declare and bind this side's own queue."""
        if self.interop:
            return self.declare_shared(channel, self.topic)
        exchange = self.declare_exchange(channel)
        if self.direct:
            return self._plain(channel, self.topic)
        queue = kombu.Queue(
            self.topic,
            exchange,
            routing_key=self.topic,
            durable=True,
            expires=BRIEF_EXPIRES if self.brief else QUEUE_EXPIRES,
            queue_arguments=dict(_CLASSIC),
        )(channel)
        queue.declare()
        for key in self._bindings:
            queue.bind_to(exchange, routing_key=key)
        return queue

    def declare_common(self, channel: Any) -> list[Any]:
        """The queues that everybody takes from who would have a binding of that name elsewhere."""
        names = self._bindings if self.direct else ()
        return [self._plain(channel, self._common(name)) for name in names]

    def _plain(self, channel: Any, name: str) -> Any:
        queue = kombu.Queue(name, self.exchange, routing_key=name, durable=True)(channel)
        queue.declare()
        return queue

    def _common(self, key: str) -> str:
        return f"{self._name}.{key}"

    def meet(self, name: str | None, now: float) -> None:
        """Somebody was heard of who has a queue of this name."""
        if name is not None and _names.is_label(name):
            self._known[name] = now

    def queues_of(self, channel: Any, key: str, now: float) -> list[str]:
        """Where a message goes that is for `key`, without an exchange."""
        if key not in _BROADCASTS:
            return [key]
        self._known = {name: at for name, at in self._known.items() if now - at < _FRESH}
        common = self._common(key)
        # Nobody may be there to take them.
        crowded = channel.queue_declare(common).message_count >= _CROWD
        return [*self._known, *(() if crowded else (common,))]

    def shared_name(self, name: str) -> str:
        """What the broker calls the queue of requests that are addressed to `name`."""
        return f"{self._name}_{name}" if self.interop else name

    def shared(self, channel: Any, name: str) -> Any:
        """A queue that several processes take from, as it is declared; priority 9 comes first."""
        options: dict[str, Any] = {"durable": True}
        if self.interop:
            options = {"durable": False, "auto_delete": True}
        elif not self.direct:
            options |= {"expires": QUEUE_EXPIRES, "max_priority": MOST_PRIORITY}
            options |= {"queue_arguments": dict(_CLASSIC)}
        queue = kombu.Queue(self.shared_name(name), self.exchange, routing_key=name, **options)
        return queue(channel)

    def declare_shared(self, channel: Any, name: str) -> Any:
        """Declare and bind a queue that several processes take from."""
        self.declare_exchange(channel)
        queue = self.shared(channel, name)
        queue.declare()
        return queue

    def clear(self, connection: kombu.Connection, queues: Sequence[str]) -> None:
        """Remove the shared queues that are empty, and that nobody else takes from.

        Asked of the broker, which alone can do it without a race.
        """
        if self.interop:
            return  # these go by themselves
        for name in queues:
            # A channel of its own: an error closes it.
            with connection.channel() as channel:
                try:
                    found = channel.queue_declare(name, passive=True)
                    if not (found.message_count or found.consumer_count):
                        channel.queue_delete(name, if_unused=True, if_empty=True)
                except connection.channel_errors as error:
                    LOG.debug("queue %s stays or is gone: %s", name, error)

    def bury(self, connection: kombu.Connection, name: str) -> None:
        """Remove the private queue of somebody who is gone, unless it is used."""
        with connection.channel() as channel:
            try:
                channel.queue_delete(name, if_unused=True)
            except connection.channel_errors as error:
                LOG.debug("queue %s stays: %s", name, error)


class PeerQueues:
    """The queues that this side declared for others, as TaskFlow's peers do for each other.

    `amqp`: a queue goes there with whoever read it, and one that nobody reads stays for ever.
    """

    def __init__(self, layout: Topology, amqp: bool) -> None:
        self._layout = layout
        self._amqp = amqp
        self._declared: set[str] = set()

    def declare(self, channel: Any, envelope: env.Envelope) -> None:
        """Declare the queue of whoever is written to, where that is of use."""
        if not self._layout.interop:
            return
        key, kind = envelope.routing_key, envelope.type
        if self._amqp:
            if kind == pr.RESPONSE:
                # Its engine may be about to come back, and waits for it; its queue went with it.
                self._declared.discard(key)
            elif kind != pr.NOTIFY or envelope.body:
                return  # of no use to who is not there
        if key not in self._declared:
            self._layout.declare_shared(channel, key)
            self._declared.add(key)
