"""From a flow and the name of a kind to an engine, and back from records to the flow."""

from __future__ import annotations

import contextlib
import functools
import urllib.parse
import weakref
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wbengine import _codec, _names, _options, _plugins, exceptions
from wbengine import storage as storage_module
from wbengine.engines import allowed, async_run, base, factories
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, listing, macs, models
from wbengine.persistence import base as persistence

__all__ = [
    "ENGINES_NAMESPACE",
    "ENGINE_DEFAULT",
    "arun",
    "defaults",
    "flow_from_detail",
    "load",
    "load_from_detail",
    "load_from_factory",
    "run",
    "save_factory_details",
]

#: The entry point group that kinds of engines are looked up in.
ENGINES_NAMESPACE: Final = "wbengine.engines"
ENGINE_DEFAULT: Final = "default"

#: What makes flows that a version before has kept, by where that was then.
_MOVED: Final = {"wbengine.operations.factories.flow_of": factories.FLOW_OF}

Backend = persistence.Backend | Mapping[str, Any] | str | None
Store = Mapping[str, Any] | Iterable[tuple[str, Any]] | None


class Defaults(UserDict[str, Any]):
    """Options of engines, by name: what `load` gives to every engine that is not told otherwise.

    :raises ValueError: an option is not one that every kind of engine has.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        _options.check_known("engines.defaults", (name,), base.Engine.known_options())
        super().__setitem__(name, value)


#: Of this process.
defaults: Final = Defaults()

# What is noted of a flow's factory, for a backend that `encodes` or for another one.
_Noted = Callable[..., dict[str, Any]]


def load(
    flow: Any,
    store: Store = None,
    flow_detail: models.FlowDetail | None = None,
    book: models.LogBook | None = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    inputs: Store = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> base.Engine:
    """Make an engine that is ready to run `flow`.

    `inputs` (a dict, or pairs; `store` is its older name) holds the values that are there from the
    start.  `name` (default: that of `flow`) and `tags` are of its new record, to be found by.
    `engine` is a kind ('serial', 'parallel', 'worker-based', ...) or a URI with options
    ('parallel://?max_workers=4');
    `options` win over those, and those over `defaults`.  `backend` (a backend, or what
    `persistence.backends.fetch` takes) keeps the records, in `flow_detail` of `book`; those that
    are not given are made.  A load that fails leaves nothing in the backend or the book.  A backend
    that is opened for it is closed when the engine and its storage are gone.

    :raises NotFound: there is no such kind of engine, or of backend; or `flow_detail` is not kept
        by the backend: its book has to be saved first.
    :raises ValueError: the kind does not know an option, or an option has no such value.
    :raises NotEncodable: the backend cannot keep a value of `inputs`.
    :raises ValueError: a tag is too long, or holds what it must not; or a `flow_detail` is given
        beside a name or tags.
    :raises Duplicate: two atoms have the same name.
    :raises NotAFlow: it is neither a flow nor a task.
    :raises CompilationFailure: it cannot be run as it is.
    :raises TypeError: another argument is of a wrong type.
    """
    record = _new_record(name, tags)
    if flow_detail is not None and (name is not None or tags):
        raise ValueError("name= and tags= are of a new record: leave them out beside flow_detail=")
    store = _inputs(store, inputs)
    return _load(flow, store, flow_detail, book, backend, namespace, engine, options, record)


class _NewRecord(NamedTuple):
    """What the record of a new flow is made with; `noted` tells what made the flow."""

    name: str | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    uuid: str | None = None
    noted: _Noted | None = None


def _new_record(
    name: str | None,
    tags: Mapping[str, str] | None,
    uuid: str | None = None,
    noted: _Noted | None = None,
) -> _NewRecord:
    if name is not None and not (isinstance(name, str) and name):
        raise TypeError(f"name must be a text with something in it, not {name!r:.200}")
    return _NewRecord(name, listing.check_tags({} if tags is None else tags), uuid, noted)


def _inputs(store: Store, inputs: Store) -> Store:
    if store is not None and inputs is not None:
        raise ValueError("store= and inputs= say the same: leave out one of them")
    return store if inputs is None else inputs


def _load(
    flow: Any,
    store: Store,
    flow_detail: models.FlowDetail | None,
    book: models.LogBook | None,
    backend: Backend,
    namespace: str,
    engine: str | None,
    options: Mapping[str, Any],
    record: _NewRecord,
) -> base.Engine:
    """`load`; a new flow is kept, as `record` says, once all is right."""
    given = _checked(flow, store, flow_detail, book)
    with contextlib.ExitStack() as failing:
        kept = failing.enter_context(lent(backend))
        kind, asked = _kind_and_options(engine)
        factory = _find(namespace, kind)
        if given and kept is not None and kept.encodes:
            _codec.pack(given, "store")
        detail = flow_detail
        if detail is None:
            if record.uuid is not None and kept is not None:
                _check_free(record.uuid, kept)
            detail = models.FlowDetail(record.name or flow.name, record.uuid or models.new_uuid())
            if record.noted is not None:
                encodes = kept is not None and kept.encodes
                detail.meta[models.FACTORY] = record.noted(encodes=encodes)
            if record.tags:
                detail.meta[models.TAGS] = record.tags
            if kept is not None and kind != ENGINE_DEFAULT:
                detail.meta[models.ENGINE] = kind
            if given:
                storage_module.add_injected(detail, given)
            if record.noted is not None:
                detail.meta[models.FACTORY] = macs.signed_note(detail.meta[models.FACTORY], detail)
        elif kept is not None:
            _check_kept(detail, kept)
        made: base.Engine = factory(flow, detail, kept, {**defaults, **asked, **options})
        made.compile()
        if flow_detail is None:
            # Not before: what cannot run must not be found by those who run what is unfinished.
            persistence.keep_flow_detail(detail, book, kept)
        elif given:
            made._provide(given)
        opened = failing.pop_all()
    if kept is not backend:  # it is closed when nobody can write to it any more
        weakref.finalize(made.storage, opened.close).atexit = False
    return made


def _checked(flow: Any, store: Store, flow_detail: Any, book: Any) -> dict[str, Any]:
    """The values of `store` by name, once all arguments are of the right type."""
    if not factories.is_flow(flow):
        raise exceptions.NotAFlow(f"Only a flow or a task can be loaded, not {flow!r}")
    if flow_detail is not None:
        _detail(flow_detail)
    if book is not None and not isinstance(book, models.LogBook):
        raise TypeError(f"book must be a LogBook, not {book!r}")
    if store is not None and not isinstance(store, Iterable):
        raise TypeError(f"store must be a dict or pairs, not {store!r}")
    return storage_module.values_by_name(store or {})


def run(
    flow: Any,
    store: Store = None,
    flow_detail: models.FlowDetail | None = None,
    book: models.LogBook | None = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    deadline: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Load (as `load` does) and run `flow`; return all values by name, injected ones included.

    `deadline`: seconds from the start of the run, after which it is reverted.
    """
    with lent(backend) as kept:
        loaded = load(flow, store, flow_detail, book, kept, namespace, engine, **options)
        loaded.run(deadline=deadline)
        return loaded.storage.fetch_all()


async def arun(
    flow: Any,
    store: Store = None,
    flow_detail: models.FlowDetail | None = None,
    book: models.LogBook | None = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    deadline: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """`run`, awaited: all of it happens in threads, while other coroutines go on.

    Cancelling it suspends the flow (see `Engine.arun`): with a `flow_detail` in a backend, another
    engine goes on with it.
    """
    loaded = await async_run.in_thread(
        functools.partial(
            load, flow, store, flow_detail, book, backend, namespace, engine, **options
        )
    )
    kept = loaded.storage.backend
    try:
        await loaded.arun(deadline=deadline)
        return await async_run.in_thread(loaded.storage.fetch_all)
    finally:
        if kept is not None and kept is not backend:
            await async_run.in_thread(kept.close)


def save_factory_details(
    flow_detail: models.FlowDetail,
    flow_factory: factories.Factory,
    factory_args: Iterable[Any] | None,
    factory_kwargs: Mapping[str, Any] | None,
    backend: Backend = None,
) -> None:
    """Note in `flow_detail` what makes its flow, so that `load_from_detail` finds it again.

    :raises ValueError: the factory (a function, or its dotted name) cannot be imported by name.
    :raises TypeError: it is neither, or `flow_detail` is none.
    :raises NotEncodable: the backend cannot keep an argument; nothing is noted then.
    :raises NotFound: the backend does not keep `flow_detail`.
    """
    with lent(backend) as kept:
        name, encodes = factories.name_of(flow_factory), kept is not None and kept.encodes
        noted = factories.note(name, factory_args, factory_kwargs, encodes=encodes)
        detail = _detail(flow_detail)
        detail.meta[models.FACTORY] = macs.signed_note(noted, detail)
        injected = [atom for atom in detail if atom.noted(models.META_INJECTED)]
        for atom in injected:
            macs.sign_injected(detail, atom)
        factories.note_named(name, factory_args)
        if kept is not None:
            with contextlib.closing(kept.get_connection()) as connection:
                connection.save_changes(flow_detail, injected)


def load_from_factory(
    flow_factory: factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    store: Store = None,
    book: models.LogBook | None = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    uuid: str | None = None,
    inputs: Store = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,
) -> base.Engine:
    """Make the flow by `flow_factory(*factory_args, **factory_kwargs)`, note that, and load it.

    The factory must make the same flow each time, or else nothing can be resumed.

    :param uuid: of the new flow; without one, a random one.
    :raises Duplicate: the backend has a flow with this uuid; besides what `load` raises.
    """
    path = factories.name_of(flow_factory)
    flow = factories.make(path, factory_args, factory_kwargs)
    noted = functools.partial(factories.note, path, factory_args, factory_kwargs)
    record = _new_record(name, tags, uuid, noted)
    store = _inputs(store, inputs)
    return _load(flow, store, None, book, backend, namespace, engine, options, record)


def flow_from_detail(flow_detail: models.FlowDetail, flows: allowed.Flows = None) -> Any:
    """Make the flow again that `save_factory_details` noted.

    :param flows: what may be called: modules, as 'orders', or functions in them, as 'orders:make';
        without it what `$WBENGINE_FLOWS` names, with commas; without both what this program made
        flows by, and what is neither Python's own nor of an installed package.
    :raises NotTrusted: what made the flow is not among that; or there are keys (`WBENGINE_KEYS`),
        and the note has no MAC of theirs.
    :raises ImportError: it cannot be found.
    :raises ValueError: there is no such note.
    :raises TypeError: `flow_detail` is none.
    :raises NotAFlow: what was made is neither a flow nor a task.
    """
    detail = _detail(flow_detail)
    noted = detail.meta.get(models.FACTORY)
    if not isinstance(noted, Mapping) or "name" not in noted:
        raise ValueError(f"Flow detail {flow_detail.name!r} does not say what made its flow")
    macs.verify(macs.FLOW, detail.uuid, noted)
    name = str(noted["name"])
    args, kwargs = noted.get("args"), noted.get("kwargs")
    return factories.remake(_MOVED.get(name, name), args, kwargs, flows)


def load_from_detail(
    flow_detail: models.FlowDetail,
    store: Store = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    flows: allowed.Flows = None,
    **options: Any,
) -> base.Engine:
    """Load the flow of `flow_detail` (see `flow_from_detail`), to go on where it stopped.

    :raises NotTrusted: also where there are keys, and an input is not the one it was made with.
    """
    macs.check_inputs(_detail(flow_detail))
    return load(
        flow_from_detail(flow_detail, flows),
        store=store,
        flow_detail=flow_detail,
        backend=backend,
        namespace=namespace,
        engine=engine,
        **options,
    )


def _kind_and_options(engine: str | None) -> tuple[str, dict[str, Any]]:
    if engine is None or engine == "":  # nothing was configured
        return ENGINE_DEFAULT, {}
    if not isinstance(engine, str):
        raise TypeError(f"engine must be the name of a kind, or a URI, not {engine!r}")
    kind, separator, _ = engine.partition(":")
    if not separator:
        return engine, {}
    query = urllib.parse.urlsplit(engine).query
    return kind, dict(urllib.parse.parse_qsl(query, keep_blank_values=True))


def check_engine(engine: str | None, options: Mapping[str, Any]) -> None:
    """Make sure that `load` takes this kind (or URI) of an engine, and these options.

    `local_tasks` is left out: it is about one flow.

    :raises NotFound: there is no such kind.
    :raises ValueError: the kind does not know an option, or an option has no such value.
    :raises TypeError: `engine` is no text, or an option is of a wrong type.
    """
    kind, asked = _kind_and_options(engine)
    told = {**defaults, **asked, **options}
    told.pop("local_tasks", None)
    _find(ENGINES_NAMESPACE, kind)(
        linear_flow.Flow("check"), models.FlowDetail("check"), None, told
    )


def _find(namespace: str, kind: str) -> Callable[..., base.Engine]:
    try:
        found: Callable[..., base.Engine] = _plugins.find(namespace, kind)
    except exceptions.NotFound as error:
        known = _plugins.names(namespace)
        raise exceptions.NotFound(
            f"Unknown engine kind {kind!r}{_names.hint(kind, known)};"
            f" known kinds: {', '.join(known) or 'none'}"
        ) from error
    return found


@contextlib.contextmanager
def lent(backend: Backend) -> Iterator[persistence.Backend | None]:
    """The backend that is meant, for the length of a `with` block; one that is opened is closed.

    :raises TypeError: it is none.
    """
    if backend is None or isinstance(backend, persistence.Backend):
        yield backend
        return
    if not isinstance(backend, str | Mapping):
        raise TypeError(
            f"backend must be a Backend, a dict of its options or a URI, not {backend!r}"
        )
    with contextlib.closing(backends.fetch(backend)) as kept:
        yield kept


def _check_kept(flow_detail: models.FlowDetail, backend: persistence.Backend) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.get_lease(flow_detail.uuid)
        except exceptions.NotFound as error:
            raise exceptions.NotFound(
                f"Flow detail {flow_detail.name!r} ({flow_detail.uuid}) is not kept by the backend"
                " that was given with it: save its book first (connection.save_logbook(book)), or"
                " leave flow_detail out",
                error,
            ) from error


def _check_free(uuid: str, backend: persistence.Backend) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            kept = connection.get_flow_details(uuid, lazy=True)
        except exceptions.NotFound:
            return
    raise exceptions.Duplicate(f"There is a flow {uuid} already: {kept.name!r}, {kept.state}")


def _detail(flow_detail: Any) -> models.FlowDetail:
    if not isinstance(flow_detail, models.FlowDetail):
        raise TypeError(f"flow_detail must be a FlowDetail, not {flow_detail!r}")
    return flow_detail
