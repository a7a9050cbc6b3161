"""Which of our tasks runs for which of Celery's task names."""

from __future__ import annotations

from collections.abc import Iterable

from wbengine import _names
from wbengine.engines.worker_based import endpoint as endpoints

__all__ = ["Tasks"]


class Tasks:
    """The tasks that a worker runs for Celery's clients, by the names that those call them.

    `items` are task classes, `@task` functions, modules, or names of either.  Each is known by its
    full name (`proj.tasks.add`), which is what Celery calls a function by default, and by the name
    that it was given (`@task(name='add')`).  `mapped` are further names, each as
    `'name=module:task'`; these go before all others.

    :raises ValueError: one of `mapped` is not of that form, a name would stand for two tasks, or an
        item holds no tasks.
    :raises ImportError: a name cannot be imported.
    """

    def __init__(self, items: Iterable[object] = (), mapped: Iterable[str] = ()) -> None:
        self._endpoints: dict[str, endpoints.Endpoint] = {}
        for text in mapped:
            name, endpoint = _read(text)
            self._add(name, endpoint)
        explicit = frozenset(self._endpoints)
        #: The names of `mapped`.
        self.mapped = tuple(sorted(explicit))
        found = [endpoints.Endpoint(cls) for cls in endpoints.find_tasks(items)]
        for endpoint in found:
            if endpoint.name not in explicit:
                self._add(endpoint.name, endpoint)
        for endpoint in found:
            name = _given_name(endpoint)
            if name not in explicit:
                self._add(name, endpoint)
        self.names = tuple(sorted(self._endpoints))

    def _add(self, name: str, endpoint: endpoints.Endpoint) -> None:
        before = self._endpoints.setdefault(name, endpoint)
        if before != endpoint:
            raise ValueError(f"Celery task {name!r} would be both {before} and {endpoint}")

    def find(self, name: str) -> endpoints.Endpoint | None:
        """The task that runs under this name, if there is one."""
        return self._endpoints.get(name)

    @property
    def modules(self) -> set[str]:
        """The names of all that a fresh process imports to find these tasks."""
        return endpoints.modules(self._endpoints.values())

    def hint(self, name: str) -> str:
        """The nearest name, for the end of a message that says that there is no such task."""
        return _names.hint(name, self.names)

    def __len__(self) -> int:
        return len(self._endpoints)


def _read(text: str) -> tuple[str, endpoints.Endpoint]:
    name, equals, place = text.partition("=")
    if not (name.strip() and equals and place.strip()):
        raise ValueError(f"{text!r} is not of the form 'name=module:task'")
    found = endpoints.find_tasks([place.strip()])
    if len(found) != 1:
        raise ValueError(f"{place.strip()!r} is a module: name one task of it, as 'module:task'")
    return name.strip(), endpoints.Endpoint(found[0])


def _given_name(endpoint: endpoints.Endpoint) -> str:
    """The name of a task that is given none when it is made."""
    try:
        return endpoint.generate().name
    except Exception:  # whoever calls it is told why
        return endpoint.name
