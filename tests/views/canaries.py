"""A flow with a secret in every place where one may be."""

from __future__ import annotations

from typing import Any

from wbengine import engines, exceptions, retry, task
from wbengine.patterns import linear_flow, unordered_flow

#: In the flow's store, under the name of a secret.
STORED = "c4n4ry-in-the-store"
#: In a URL of the store.
IN_URL = "c4n4ry-in-a-url"
#: In what a task returns.
RETURNED = "c4n4ry-in-a-result"
#: In an argument that was injected into one atom, and is kept.
INJECTED = "c4n4ry-that-was-injected"

STORE = {
    "db_password": STORED,
    "broker": f"amqp://me:{IN_URL}@host/",
    "settings": {"deep": [{"api_token": STORED}]},
}


class LogIn(task.Task):
    """Returns a secret under a key that says so."""

    default_provides = "session"

    def execute(self, db_password: str, token: str) -> dict[str, Any]:
        return {"auth_token": RETURNED, "user": "me"}


class Fail(task.Task):
    """Raises all it knows, and something behind that."""

    def execute(self, db_password: str, broker: str, session: dict[str, Any]) -> None:
        try:
            # Written out, as somebody might have: lines of code are in tracebacks.
            raise KeyError(f"no such user: {session['auth_token']}, c4n4ry-in-the-store")
        except KeyError as error:
            raise ValueError(
                f"cannot log in with {db_password!r} ({INJECTED}) at {broker}",
                {"password": db_password},
            ) from error

    def revert(self, db_password: str, **kwargs: Any) -> None:
        raise RuntimeError(f"{db_password} again")


def flow() -> linear_flow.Flow:
    """`STORE` is what it needs; it fails."""
    inner = unordered_flow.Flow(f"inner {IN_URL}", retry.Times(2, "again"))
    inner.add(Fail(f"fail with {STORED}"))
    return linear_flow.Flow(f"flow of {STORED}").add(LogIn("log in"), inner)


def load(**options: Any) -> Any:
    """An engine, ready to run `flow`."""
    engine = engines.load(flow(), store=STORE, **options)
    engine.compile()
    engine.prepare()
    engine.storage.inject_atom_args("log in", {"token": INJECTED}, transient=False)
    return engine


def run(**options: Any) -> Any:
    """The same, after it was run."""
    engine = load(**options)
    try:
        engine.run()
    except (exceptions.WrappedFailure, RuntimeError):
        return engine
    raise AssertionError("it was to fail")
