"""Making engines from flows, and from the records of stored flows."""

from __future__ import annotations

import contextlib
import functools
import uuid as uuids
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from wbengine import _payloads, exceptions
from wbengine import storage as storage_module
from wbengine._introspection import object_names
from wbengine._text import durations
from wbengine.engines import _allowed, _async_run, _engine_choice, _flow_factories, base
from wbengine.engines._engine_choice import ENGINE_DEFAULT, ENGINES_NAMESPACE, defaults
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.engines._flow_inputs import read as read_inputs
from wbengine.persistence import _macs, _sealed_fields, backends, models
from wbengine.persistence import base as persistence
from wbengine.types import _tags, codec

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = [
    "ENGINES_NAMESPACE",
    "ENGINE_DEFAULT",
    "arun",
    "defaults",
    "flow_from_detail",
    "load",
    "load_from_detail",
    "load_from_factory",
    "read_flow_detail",
    "run",
    "save_factory_details",
    "values_of",
]

Backend = persistence.Backend | Mapping[str, Any] | str | None
Store = Mapping[str, Any] | Iterable[tuple[str, Any]] | None


# Returns the note about a flow's factory; `encodes` is the attribute of the backend.
_MakeNote = Callable[..., dict[str, Any]]


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
    tags: Mapping[str, _tags.Value] | None = None,
    undo_until: str | float | None = None,
    **options: Any,
) -> base.Engine:
    """Return an engine for `flow`, ready to run.

    `flow` is a flow, a task, or a workflow (the class that `task.workflow` returns). The new record
    of a workflow names its class as factory, so that any process that can import it can resume it.
    `inputs` (a dict, or pairs; `store` is its older name) contains the inputs of the flow. `name`
    (default: the name of `flow`) and `tags` belong to its new record and can be searched. `engine`
    is a kind ('serial', 'parallel', 'worker-based', ...) or a URI with options
    ('parallel://?max_workers=4'). `options` have precedence over those of the URI, and these over
    `defaults`. `backend` (a backend, or an argument for `persistence.backends.fetch`) stores the
    records, in `flow_detail` of `book`, which are created by default. If loading fails, nothing
    remains in the backend or the book. A backend that is opened here is closed when the engine and
    its storage are deleted.

    :param undo_until: time from the end of the new flow in SUCCESS in which it can be undone: '30d'
        or seconds. Until then, retention and `prune` keep it. Default: no limit, and no protection.
    :raises NotFound: if the kind of engine or backend is unknown; or if `flow_detail` is not in the
        backend: its book must be saved first.
    :raises ValueError: if an option is unknown or its value is not allowed.
    :raises NotEncodable: if the backend cannot encode a value of `inputs`.
    :raises ValueError: if the name or a tag is too long, or a tag contains a character that is not
        allowed; if `undo_until` is invalid; or if both a `flow_detail` and a name, tags or
        `undo_until` are given.
    :raises Duplicate: if two atoms have the same name.
    :raises NotAFlow: if `flow` is neither a flow nor a task.
    :raises CompilationFailure: if the flow is invalid.
    :raises TypeError: if another argument has a wrong type.
    """
    record = _new_record(name, tags, undo_until=undo_until)
    if flow_detail is None and _flow_factories.is_workflow(flow):
        record = _with_workflow_note(record, flow)
    if flow_detail is not None and (name is not None or tags or undo_until is not None):
        raise ValueError(
            "name=, tags= and undo_until= apply only to a new record: omit them if you pass"
            " flow_detail="
        )
    store = _inputs(store, inputs)
    return _load(flow, store, flow_detail, book, backend, namespace, engine, options, record)


class _NewRecord(NamedTuple):
    """Data for the record of a new flow; `make_note` returns the note about its factory.

    `no_factory`: why other processes cannot import the workflow, which then has no such note.
    `require_inputs`: reject a flow with missing inputs before it is stored.
    `undo_seconds`: time from the end of the flow in which it can be undone.
    `payloads`: where large inputs are stored; None: where those of the backend are.
    """

    name: str | None = None
    tags: Mapping[str, _tags.Value] = MappingProxyType({})
    uuid: str | None = None
    make_note: _MakeNote | None = None
    require_inputs: bool = False
    no_factory: str | None = None
    payloads: Payloads | None = None
    undo_seconds: float | None = None


def _with_workflow_note(record: _NewRecord, workflow: Any) -> _NewRecord:
    try:
        path = _flow_factories.importable_name_of(workflow)
    except ValueError as error:
        return record._replace(no_factory=str(error))
    _flow_factories.note_used(path, None)
    return record._replace(make_note=functools.partial(_flow_factories.note, path, None, None))


def _new_record(
    name: str | None,
    tags: Mapping[str, _tags.Value] | None,
    uuid: str | None = None,
    make_note: _MakeNote | None = None,
    require_inputs: bool = False,
    undo_until: str | float | None = None,
) -> _NewRecord:
    if name is not None and not (isinstance(name, str) and name):
        raise TypeError(f"name must be a non-empty str, got {name!r:.200}")
    object_names.check_length("The name of a flow", name or "")
    checked = _tags.check({} if tags is None else tags)
    seconds = None if undo_until is None else durations.seconds_of(undo_until, "undo_until")
    return _NewRecord(name, checked, uuid, make_note, require_inputs, undo_seconds=seconds)


def _inputs(store: Store, inputs: Store) -> Store:
    if store is not None and inputs is not None:
        raise ValueError(
            "store= and inputs= are two names of the same option: pass only one of them"
        )
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
    """Load a flow; a new flow is stored according to `record` after all checks."""
    if _flow_factories.is_workflow(flow):
        flow = flow()
    inputs = _check_arguments(flow, store, flow_detail, book)
    with contextlib.ExitStack() as failing:
        open_backend = failing.enter_context(opened_backend(backend))
        kind, given_options = _engine_choice.kind_and_options(engine, options)
        factory = _engine_choice.find_kind(namespace, kind)
        _engine_choice.check_names(factory, given_options)
        if inputs and open_backend is not None and open_backend.encodes:
            codec.pack(inputs, "store")
        detail = flow_detail
        if detail is None:
            if record.uuid is not None and open_backend is not None:
                _check_uuid_unused(record.uuid, open_backend)
            uuid = models.new_uuid() if record.uuid is None else record.uuid
            detail = models.FlowDetail(record.name or flow.name, uuid)
            if record.make_note is not None:
                encodes = open_backend is not None and open_backend.encodes
                detail.meta[models.FACTORY] = record.make_note(encodes=encodes)
            if record.no_factory is not None:
                detail.meta[models.NO_FACTORY] = record.no_factory
            if record.undo_seconds is not None:
                detail.meta[models.UNDO_UNTIL] = record.undo_seconds
            if record.tags:
                detail.meta[_tags.GIVEN] = dict(record.tags)
            if open_backend is not None and kind != ENGINE_DEFAULT:
                detail.meta[models.ENGINE] = kind
            payloads = record.payloads
            if payloads is None and open_backend is not None:
                payloads = _payloads.opened(given_options.get("payloads")) or open_backend.payloads
            if inputs and payloads is not None:
                inputs = payloads.store_each(inputs, "inputs", uuid)
            if inputs:
                storage_module.add_injected(detail, inputs)
        elif open_backend is not None:
            _check_stored(detail, open_backend)
            if detail.meta.get(models.ENGINE, ENGINE_DEFAULT) != kind:
                detail.meta[models.ENGINE] = kind
        loaded = factory(flow, detail, open_backend, {**defaults, **given_options})
        loaded.compile()
        if record.require_inputs:
            loaded.check_inputs()
        if flow_detail is None:
            loaded._store_defaults()
            if record.make_note is not None:
                detail.meta[models.FACTORY] = _macs.signed_note(detail.meta[models.FACTORY], detail)
            # Last, so that processes that resume unfinished flows never find an invalid flow.
            persistence.add_flow_detail(detail, book, open_backend)
        elif inputs:
            loaded._inject_inputs(inputs)
        opened = failing.pop_all()
    if open_backend is not backend:  # closed when nothing can write to it any more
        weakref.finalize(loaded.storage, opened.close).atexit = False
    return loaded


def _check_arguments(flow: Any, store: Store, flow_detail: Any, book: Any) -> dict[str, Any]:
    if not _flow_factories.is_flow(flow):
        raise exceptions.NotAFlow(f"Only a flow or a task can be loaded, got {flow!r}")
    if flow_detail is not None:
        _check_detail(flow_detail)
    if book is not None and not isinstance(book, models.LogBook):
        raise TypeError(f"book must be a LogBook, got {book!r}")
    if store is not None and not isinstance(store, Iterable):
        raise TypeError(f"store must be a dict or pairs, got {store!r}")
    values = storage_module.values_by_name(store or {})
    return read_inputs(flow, values, store.checked if isinstance(store, JsonInputs) else values)


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
    """Load `flow` like `load` and run it; return all values by name, including inputs.

    :param deadline: seconds from the start of the run, after which it is reverted.
    """
    with opened_backend(backend) as open_backend:
        loaded = load(flow, store, flow_detail, book, open_backend, namespace, engine, **options)
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
    """Run a flow like `run`, in threads, while other coroutines continue.

    Cancelling it suspends the flow (see `Engine.arun`). If its `flow_detail` is in a backend,
    another engine can continue it.
    """
    loaded = await _async_run.in_thread(
        functools.partial(
            load, flow, store, flow_detail, book, backend, namespace, engine, **options
        )
    )
    open_backend = loaded.storage.backend
    try:
        await loaded.arun(deadline=deadline)
        return await _async_run.in_thread(loaded.storage.fetch_all)
    finally:
        if open_backend is not None and open_backend is not backend:
            await _async_run.in_thread(open_backend.close)


def save_factory_details(
    flow_detail: models.FlowDetail,
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None,
    factory_kwargs: Mapping[str, Any] | None,
    backend: Backend = None,
) -> None:
    """Record the factory of a flow in `flow_detail`, for `load_from_detail`.

    :raises ValueError: if the factory (a function or its dotted name) cannot be imported by name.
    :raises TypeError: if it is neither, or `flow_detail` is not a flow detail; or if an argument
        does not fit an annotation of the factory.
    :raises NotEncodable: if the backend cannot encode an argument; then nothing is recorded.
    :raises NotFound: if `flow_detail` is not in the backend.
    """
    with opened_backend(backend) as open_backend:
        name, encodes = (
            _flow_factories.name_of(flow_factory),
            open_backend is not None and open_backend.encodes,
        )
        args, kwargs = _flow_factories.read_arguments(name, factory_args, factory_kwargs)
        note = _flow_factories.note(name, args, kwargs, encodes=encodes)
        detail = _check_detail(flow_detail)
        detail.meta[models.FACTORY] = _macs.signed_note(note, detail)
        injected = [atom for atom in detail if atom.meta_value(models.META_INJECTED)]
        for atom in injected:
            _macs.sign_injected(detail, atom)
        _flow_factories.note_used(name, args)
        if open_backend is not None:
            with contextlib.closing(open_backend.get_connection()) as connection:
                connection.save_changes(flow_detail, injected)


def load_from_factory(
    flow_factory: _flow_factories.Factory,
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
    tags: Mapping[str, _tags.Value] | None = None,
    undo_until: str | float | None = None,
    require_inputs: bool = False,
    **options: Any,
) -> base.Engine:
    """Create a flow with `flow_factory(*factory_args, **factory_kwargs)`, record that, and load it.

    The factory must return the same flow each time; otherwise the flow cannot be resumed. Its
    arguments must be instances of the classes that annotate its parameters.

    :param uuid: uuid of the new flow; random by default.
    :param require_inputs: reject a flow with missing inputs before it is stored.
    :raises MissingDependencies: with `require_inputs`, if inputs are missing.
    :raises Duplicate: if the backend has a flow with this uuid; also as `load`.
    :raises ValueError: if `uuid` is not a uuid; also as `load`.
    :raises TypeError: if an argument does not fit an annotation of the factory; also as `load`.
    """
    flow, record = _made(
        flow_factory, factory_args, factory_kwargs, uuid, name, tags, require_inputs, undo_until
    )
    store = _inputs(store, inputs)
    return _load(flow, store, None, book, backend, namespace, engine, options, record)


def load_submitted(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None,
    factory_kwargs: Mapping[str, Any] | None,
    inputs: Store,
    uuid: str | None,
    name: str | None,
    tags: Mapping[str, _tags.Value] | None,
    undo_until: str | float | None,
    payloads: Payloads | None,
) -> base.Engine:
    """Do the same as `load_from_factory` without a backend, for a flow that is stored later.

    :param payloads: where large inputs are stored; None: in the record.
    """
    flow, record = _made(
        flow_factory, factory_args, factory_kwargs, uuid, name, tags, True, undo_until
    )
    record = record._replace(payloads=payloads)
    engine = _load(flow, inputs, None, None, None, ENGINES_NAMESPACE, ENGINE_DEFAULT, {}, record)
    engine.storage.payloads = payloads
    return engine


def load_without_factory(
    flow: Any,
    inputs: Store,
    uuid: str,
    name: str | None,
    tags: Mapping[str, _tags.Value],
) -> base.Engine:
    """Load a new flow without a backend, which only this process can create again."""
    record = _new_record(name, tags, uuid, require_inputs=True)
    return _load(flow, inputs, None, None, None, ENGINES_NAMESPACE, ENGINE_DEFAULT, {}, record)


def _made(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None,
    factory_kwargs: Mapping[str, Any] | None,
    uuid: str | None,
    name: str | None,
    tags: Mapping[str, _tags.Value] | None,
    require_inputs: bool,
    undo_until: str | float | None,
) -> tuple[Any, _NewRecord]:
    """Return a new flow, and the data for its record."""
    if uuid is not None:
        uuid = _checked_uuid(uuid)
    path = _flow_factories.name_of(flow_factory)
    args, kwargs = _flow_factories.read_arguments(path, factory_args, factory_kwargs)
    flow = _flow_factories.make(path, args, kwargs)
    make_note = functools.partial(_flow_factories.note, path, args, kwargs)
    return flow, _new_record(name, tags, uuid, make_note, require_inputs, undo_until)


def flow_from_detail(flow_detail: models.FlowDetail, flows: _allowed.Flows = None) -> Any:
    """Create the flow again with the factory that `save_factory_details` recorded.

    :param flows: allowed factories: modules ('orders') or functions in them ('orders:make').
        Default: the names in `$WBENGINE_FLOWS`, separated by commas, otherwise factories that this
        program used itself, and modules that are neither part of Python nor of an installed
        package.
    :raises NotTrusted: if the factory is not allowed; or if there are keys (`WBENGINE_KEYS`), and
        the note has no MAC of one of them.
    :raises ImportError: if the factory cannot be found, or its module raises an exception.
    :raises ValueError: if no factory was recorded.
    :raises TypeError: if `flow_detail` is not a flow detail.
    :raises NotAFlow: if the factory returns neither a flow nor a task.
    """
    note = factory_note(_check_detail(flow_detail))
    if note is None:
        reason = flow_detail.meta.get(models.NO_FACTORY)
        raise ValueError(
            f"Flow detail {flow_detail.name!r} does not record the factory of its flow"
            + (f": {reason:.1000}" if isinstance(reason, str) else "")
            + ". Only the program that created the flow can run it again:"
            " engines.load(flow, flow_detail=detail). Flows of engines.submit,"
            " engines.load_from_factory and `wbengine flow run` record their factory"
        )
    return _flow_factories.remake(str(note["name"]), note.get("args"), note.get("kwargs"), flows)


def factory_note(detail: models.FlowDetail) -> Mapping[str, Any] | None:
    """Return the note about the factory of a flow, or None if it is missing or damaged.

    :raises NotTrusted: if there are keys, and the note has no MAC of one of them.
    :raises StorageFailure: if the flow is encrypted, and this process has no keys.
    """
    _sealed_fields.check_opened(detail)
    note = detail.meta.get(models.FACTORY)
    if not isinstance(note, Mapping) or "name" not in note:
        return None
    _macs.verify(_macs.FLOW, detail.uuid, note)
    return note


def read_flow_detail(
    connection: persistence.Connection, uuid: str, flows: _allowed.Flows = None
) -> models.FlowDetail:
    """Read a flow with its atoms, to continue it.

    If its values have types that this process does not know, the module of its factory is imported
    first, because it usually defines them.

    :param flows: allowed factories, see `flow_from_detail`.
    :raises NotFound: if the flow does not exist.
    :raises CorruptRecord: if a record is damaged, or has values of unknown types.
    :raises NotTrusted, ImportError: if the factory must be imported, see `flow_from_detail`.
    """
    try:
        return connection.get_flow_details(uuid)
    except exceptions.CorruptRecord:
        # Arguments of classes that the module defines stay encoded. So the MAC of the note is
        # verified before the module is imported.
        note = factory_note(connection.get_flow_details(uuid, lazy=True))
        if note is None:
            raise
    _flow_factories.load(str(note["name"]), note.get("args"), flows)
    return connection.get_flow_details(uuid)


def load_from_detail(
    flow_detail: models.FlowDetail,
    store: Store = None,
    backend: Backend = None,
    namespace: str = ENGINES_NAMESPACE,
    engine: str | None = ENGINE_DEFAULT,
    *,
    flows: _allowed.Flows = None,
    **options: Any,
) -> base.Engine:
    """Load the flow of `flow_detail` (see `flow_from_detail`) to continue it.

    :raises NotTrusted: also if there are keys, and an input was changed in the store.
    """
    _macs.check_inputs(_check_detail(flow_detail))
    return load(
        flow_from_detail(flow_detail, flows),
        store=store,
        flow_detail=flow_detail,
        backend=backend,
        namespace=namespace,
        engine=engine,
        **options,
    )


def values_of(
    flow_detail: models.FlowDetail,
    *,
    payloads: Payloads | None,
    flows: _allowed.Flows = None,
) -> dict[str, Any]:
    """Return the values of a flow that succeeded, by name. This writes nothing.

    :param payloads: where large values are.
    :raises Exception: as `load_from_detail`.
    """
    engine = load_from_detail(flow_detail, flows=flows)
    engine.prepare()
    engine.storage.payloads = payloads
    return engine.storage.fetch_all()


def result_of(flow_detail: models.FlowDetail) -> Any:
    """Return the result of the task of a flow that succeeded and is one task or workflow.

    :raises TypeError: if the flow has several tasks.
    """
    records = [record for record in flow_detail if not record.is_step]
    tasks = [record for record in records if record.name != models.INJECTOR]
    if len(tasks) != 1:
        raise TypeError(
            f"Flow {flow_detail.name!r} has {len(tasks)} tasks, but value() returns the result of"
            " one: use result()"
        )
    return tasks[0].results


@contextlib.contextmanager
def opened_backend(backend: Backend) -> Iterator[persistence.Backend | None]:
    """Yield the backend for a `with` block; close it afterwards if it is opened here.

    :raises TypeError: if it is not a backend, a dict or a URI.
    """
    if backend is None or isinstance(backend, persistence.Backend):
        yield backend
        return
    if not isinstance(backend, str | Mapping):
        raise TypeError(
            f"backend must be a Backend, a dict of its options or a URI, got {backend!r}"
        )
    with contextlib.closing(backends.fetch(backend)) as fetched:
        yield fetched


def _check_stored(flow_detail: models.FlowDetail, backend: persistence.Backend) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.get_lease(flow_detail.uuid)
        except exceptions.NotFound as error:
            raise exceptions.NotFound(
                f"Flow detail {flow_detail.name!r} ({flow_detail.uuid}) is not in the"
                " given backend: save its book first (connection.save_logbook(book)), or"
                " omit flow_detail",
                error,
            ) from error


def _checked_uuid(value: Any) -> str:
    """Return a uuid in its usual notation."""
    try:
        return str(uuids.UUID(value))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            f"uuid must be a uuid such as {uuids.uuid4()}, got {value!r:.80}"
        ) from None


def _check_uuid_unused(uuid: str, backend: persistence.Backend) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            existing = connection.get_flow_details(uuid, lazy=True)
        except exceptions.NotFound:
            return
    raise exceptions.Duplicate(f"Flow {uuid} already exists: {existing.name!r}, {existing.state}")


def _check_detail(flow_detail: Any) -> models.FlowDetail:
    if not isinstance(flow_detail, models.FlowDetail):
        raise TypeError(f"flow_detail must be a FlowDetail, got {flow_detail!r}")
    return flow_detail
