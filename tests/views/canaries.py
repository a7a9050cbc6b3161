"""A flow with a secret in every place that may contain one."""

from __future__ import annotations

from typing import Any

from wbengine import engines, exceptions, retry, task
from wbengine.patterns import linear_flow, unordered_flow

#: In the inputs, under a key that names a secret.
STORED = "c4n4ry-in-the-store"
#: In a URL among the inputs.
IN_URL = "c4n4ry-in-a-url"
#: In the result of a task.
RETURNED = "c4n4ry-in-a-result"
#: In a stored argument that was injected into one atom.
INJECTED = "c4n4ry-that-was-injected"

STORE = {
    "db_password": STORED,
    "broker": f"amqp://me:{IN_URL}@host/",
    "settings": {"deep": [{"api_token": STORED}]},
}


class LogIn(task.Task):
    """A task that returns a secret under a key that names it."""

    default_provides = "session"

    def execute(self, db_password: str, token: str) -> dict[str, Any]:
        return {"auth_token": RETURNED, "user": "me"}


class Fail(task.Task):
    """A task that fails with all secrets in its exception and in the cause."""

    def execute(self, db_password: str, broker: str, session: dict[str, Any]) -> None:
        try:
            # The secret is a literal here, because tracebacks contain lines of code.
            raise KeyError(f"no such user: {session['auth_token']}, c4n4ry-in-the-store")
        except KeyError as error:
            raise ValueError(
                f"cannot log in with {db_password!r} ({INJECTED}) at {broker}",
                {"password": db_password},
            ) from error

    def revert(self, db_password: str, **kwargs: Any) -> None:
        raise RuntimeError(f"{db_password} again")


def flow() -> linear_flow.Flow:
    """Return a flow that needs `STORE` and fails."""
    inner = unordered_flow.Flow(f"inner {IN_URL}", retry.Times(2, "again"))
    inner.add(Fail(f"fail with {STORED}"))
    return linear_flow.Flow(f"flow of {STORED}").add(LogIn("log in"), inner)


def load(**options: Any) -> Any:
    """Return an engine that is ready to run `flow`."""
    engine = engines.load(flow(), store=STORE, **options)
    engine.compile()
    engine.prepare()
    engine.storage.inject_atom_args("log in", {"token": INJECTED}, transient=False)
    return engine


def run(**options: Any) -> Any:
    """Return an engine that has run `flow`."""
    engine = load(**options)
    try:
        engine.run()
    except (exceptions.WrappedFailure, RuntimeError):
        return engine
    raise AssertionError("it was to fail")
