"""Classes that are values because annotations of tasks, workflows and flow factories name them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import gc
import json
import os
import pathlib
import sqlite3
import sys
import types
import weakref
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    TypedDict,
    TypeVar,
)

import pytest
from pydantic import BaseModel

from tests.support import fresh, key_files, workers
from wbengine import engines, exceptions, retry, task
from wbengine._introspection import annotated
from wbengine.engines import _flow_factories
from wbengine.patterns import linear_flow
from wbengine.types import codec
from wbengine.types._encoding import annotated_classes

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

_T = TypeVar("_T")


class Color(enum.Enum):
    RED = 1


class Inner(NamedTuple):
    color: Color


@dataclasses.dataclass
class Data:
    inner: Inner | None
    shared: ClassVar[Color]


class Model(BaseModel):
    parts: dict[str, list[Data]]


class Box(BaseModel, Generic[_T]):
    content: _T


@dataclasses.dataclass
class Pair(Generic[_T]):
    content: _T


class Tree(TypedDict):
    children: list[Tree]


class Fields(TypedDict):
    model: Model


Bounded = TypeVar("Bounded", bound=Model)
Alias = NewType("Alias", Model)


def named(hint: Any) -> set[type]:
    function = types.FunctionType((lambda: None).__code__, globals(), "function")
    function.__annotations__ = {"first": "Missing", "parameter": hint, "return": None}
    return set(annotated_classes.classes_of(function))


@pytest.mark.parametrize(
    ("hint", "classes"),
    [
        (Model, {Model}),
        ("Model", {Model}),
        ("list[Model]", {Model}),
        (list[Model], {Model}),
        ("Model | None", {Model}),
        ("dict[str, tuple[Model, ...]] | Color", {Model, Color}),
        (Annotated[Model, Color], {Model}),
        ("Annotated[list[Model], Missing]", set()),
        (Literal[Color.RED, "x"], {Color}),
        (Box[Model], {Box[Model]}),
        ("Box[int] | Box[str]", {Box[int], Box[str]}),
        (Pair[Model], {Pair, Model}),
        (Bounded, {Model}),
        (Alias, {Model}),
        (Fields, {Model}),
        (list["Model"], {Model}),
        (type[Model], set()),
        (Callable[[Model], Color], set()),
        ("ClassVar[Model]", set()),
        ("list[Missing]", set()),
        ("not an annotation", set()),
        ("1 / 0", set()),
        (int, set()),
        (Any, set()),
        (Exception, set()),
    ],
)
def test_annotation_names_classes(hint: Any, classes: set[type]) -> None:
    assert named(hint) == classes


def test_recursive_annotations_end() -> None:
    assert named(Tree) == set()


@pytest.mark.parametrize(
    ("cls", "classes"),
    [(Model, {Data}), (Data, {Inner}), (Inner, {Color}), (Box[Model], {Model}), (Color, set())],
)
def test_fields_name_classes(cls: type, classes: set[type]) -> None:
    assert set(annotated_classes.classes_of(cls)) == classes


def test_deleted_functions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotated, "_unread", weakref.WeakValueDictionary())
    annotated.note(lambda: None)
    annotated.note(3)
    gc.collect()
    assert annotated.take() == []
    annotated.note(named)
    annotated.note(named)
    assert annotated.take() == [named, named] and annotated.take() == []


# -- definitions that make their classes values


class ForTask(BaseModel):
    inner: list[Inner]


class ForResult(BaseModel):
    pass


class ForMethod(BaseModel):
    pass


class ForRevert(BaseModel):
    pass


class ForRetry(BaseModel):
    pass


class ForWorkflow(BaseModel):
    later: Later | None = None


class ForFunctor(BaseModel):
    pass


class ForFactory(BaseModel):
    pass


@task.task
def function_task(argument: ForTask | None, other: Missing) -> list[ForResult]:
    return []


class ClassTask(task.Task):
    def execute(self, argument: ForMethod) -> None:
        """Do nothing."""

    def revert(self, extra: ForRevert, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class AnyRetry(retry.AlwaysRevert):
    def execute(self, limit: ForRetry, **kwargs: Any) -> None:
        """Do nothing."""


@task.workflow
async def workflow(steps: Any, argument: ForWorkflow) -> None:
    """Do nothing."""


def functor(argument: ForFunctor) -> None:
    """Do nothing."""


def factory(argument: ForFactory | None = None) -> linear_flow.Flow:
    return linear_flow.Flow("flow").add(task.FunctorTask(functor, inject={"argument": None}))


class Later(BaseModel):
    pass


@pytest.mark.parametrize(
    "value",
    [
        ForTask(inner=[Inner(Color.RED)]),
        ForResult(),
        ForMethod(),
        ForRevert(),
        ForRetry(),
        ForWorkflow(later=Later()),
        Later(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_tasks_retries_and_workflows_are_values(value: Any) -> None:
    assert codec.loads(codec.dumps([value])) == [value]


@pytest.mark.parametrize("decode_first", [True, False], ids=["decode", "encode"])
def test_class_is_a_value_when_its_factory_or_functor_is_used(decode_first: bool) -> None:
    def try_both(cls: type[BaseModel]) -> None:
        stored = f'{{"$wbe":"data","c":"{cls.__module__}.{cls.__name__}","v":{{}}}}'
        if decode_first:
            assert codec.loads(stored) == cls()
        assert codec.dumps(cls()) == stored.encode()

    _flow_factories.name_of(factory)
    try_both(ForFactory)
    factory()
    try_both(ForFunctor)


def test_class_that_nothing_names_is_refused() -> None:
    class Local(BaseModel):
        pass

    with pytest.raises(exceptions.NotEncodable, match=r"codec\.allow\(Local\)"):
        codec.dumps(Local())


def test_messages_import_nothing() -> None:
    before = set(sys.modules)
    for name in ("antigravity.Model", "this.s", "tests.support.shop.Order", "os.stat_result"):
        with pytest.raises(exceptions.InvalidFormat, match="is not known in this process"):
            codec.loads(json.dumps({"$wbe": "data", "c": name, "v": {}}))
    assert set(sys.modules) == before


FORK = """
import os, signal, threading
from wbengine import exceptions
from wbengine.types import codec
from wbengine.types._encoding import classes

entered, leave = threading.Event(), threading.Event()

def read():
    with classes._reading:
        entered.set()
        leave.wait()

thread = threading.Thread(target=read)
thread.start()
entered.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        codec.loads('{"$wbe":"data","c":"nowhere.Unknown","v":{}}')
    except exceptions.UndecodableValue:
        os._exit(0)
leave.set()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_fork_reads_annotations_while_another_thread_reads_them() -> None:
    assert fresh.run(FORK).stdout == "0\n"


def test_newer_class_replaces_the_one_of_an_earlier_import(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    text = (
        "from pydantic import BaseModel\nfrom wbengine import task\n"
        "class Thing(BaseModel):\n    x: int\n"
        "@task.task\ndef work(thing: Thing): ...\n"
    )
    (tmp_path / "things_to_reload.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("things_to_reload")
    older = module.Thing(x=1)
    stored = codec.dumps(older)
    newer = importlib.reload(module).Thing(x=1)
    assert codec.dumps(newer) == stored
    assert type(codec.loads(stored)) is type(newer) is not type(older)


# -- other processes

SHOP = """
from __future__ import annotations
import dataclasses, enum
from typing import Annotated
from pydantic import BaseModel
from wbengine import task
from wbengine.patterns import linear_flow

@task.task
def charge(order: Annotated[Order, "paid"]) -> Receipt:
    assert type(order) is Order and type(order.items[0]) is Item
    return Receipt(order=order, total=sum(item.price for item in order.items))

@task.task
def total_of(receipt):
    return receipt.total

@task.workflow
def checkout(steps, order: Order | None) -> Receipt:
    receipt = steps.run(charge, order=order)
    steps.publish("receipt", receipt)
    return receipt

class Item(BaseModel):
    price: int

class Order(BaseModel):
    items: list[Item]

class Receipt(BaseModel):
    order: Order
    total: int

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Gift:
    texts: tuple[str, ...]
    color: Color

def make_for(order: Order, gift: Gift | None = None):
    assert gift is None or gift == Gift(("for", "you"), Color.RED)
    return linear_flow.Flow("one").add(charge("charge", provides="total", inject={"order": order}))

def make():
    flow = linear_flow.Flow("shop")
    return flow.add(charge("charge", provides="receipt"), total_of("total", provides="total"))
"""

SUBMIT = """
import sys
import shop_of_models as shop
from wbengine import engines
order = shop.Order(items=[shop.Item(price=2), shop.Item(price=3)])
handles = [
    engines.submit(code, inputs={"order": order}, backend=sys.argv[1])
    for code in (shop.checkout, shop.make)
]
results = [handle.result(60) for handle in handles]
receipt = shop.Receipt(order=order, total=5)
assert results == [
    {"order": order, "result": receipt}, {"order": order, "receipt": receipt, "total": 5}
], results
print("equal")
"""

SUBMIT_ARGUMENT = """
import sys
import shop_of_models as shop
from wbengine import engines
order = shop.Order(items=[shop.Item(price=2), shop.Item(price=3)])
gift = shop.Gift(("for", "you"), shop.Color.RED)
handle = engines.submit(shop.make_for, [order], {"gift": gift}, backend=sys.argv[1])
print(handle.result(60)["total"].total)
"""

RUN = """
import sys
import shop_of_models as shop
from wbengine import engines
order = shop.Order(items=[shop.Item(price=2), shop.Item(price=3)])
results = engines.run(
    shop.make(), inputs={"order": order}, backend=sys.argv[2],
    engine="workers", url=sys.argv[1], topics=["shop"], transition_timeout=30,
)
assert results["receipt"] == shop.Receipt(order=order, total=5), results
print(results["total"])
"""


@pytest.fixture
def shop(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "shop_of_models.py").write_text(SHOP)
    return tmp_path


@pytest.mark.slow
def test_another_process_runs_submitted_flows_with_models(
    shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{shop}:{workers.REPOSITORY}")
    url = f"sqlite:///{shop}/flows.db"
    with fresh.process("-m", "wbengine", "serve", "--persistence", url, cwd=shop):
        assert fresh.run(SUBMIT, url, cwd=shop).stdout == "equal\n"


@pytest.mark.slow
@pytest.mark.parametrize("has_keys", [False, True])
def test_another_process_imports_the_factory_whose_argument_is_a_model(
    shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_keys: bool
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{shop}:{workers.REPOSITORY}")
    if has_keys:
        key_files.in_use(shop / "keys.json", monkeypatch)
    url = f"sqlite:///{shop}/flows.db"
    with fresh.process("-m", "wbengine", "serve", "--persistence", url, cwd=shop):
        assert fresh.run(SUBMIT_ARGUMENT, url, cwd=shop).stdout == "5\n"


SUBMIT_ONLY = """
import sys
import shop_of_models as shop
from wbengine import engines
order = shop.Order(items=[shop.Item(price=2)])
print(engines.submit(shop.make_for, factory_args=[order], backend=sys.argv[1]).id)
"""

READ = """
import contextlib, sys
from wbengine import engines, exceptions
from wbengine.persistence import backends
with backends.backend(sys.argv[1]) as store, contextlib.closing(store.get_connection()) as stored:
    try:
        detail = engines.read_flow_detail(stored, sys.argv[2])
        print(detail.meta["factory"]["args"])
    except exceptions.NotTrusted:
        print("not trusted", "shop_of_models" in sys.modules)
"""


@pytest.mark.slow
def test_module_is_imported_only_for_signed_arguments(
    shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{shop}:{workers.REPOSITORY}")
    key_files.in_use(shop / "keys.json", monkeypatch)
    url = f"sqlite:///{shop}/flows.db"
    uuid = fresh.run(SUBMIT_ONLY, url, cwd=shop).stdout.strip()
    assert fresh.run(READ, url, uuid, cwd=shop).stdout == "[Order(items=[Item(price=2)])]\n"
    with contextlib.closing(sqlite3.connect(shop / "flows.db")) as database, database:
        forged = "UPDATE wbe_flowdetails SET meta = replace(meta, '\"price\":2', '\"price\":3')"
        assert database.execute(forged).rowcount == 1
        ((meta,),) = database.execute("SELECT meta FROM wbe_flowdetails")
        assert '"price":3' in meta
    assert fresh.run(READ, url, uuid, cwd=shop).stdout == "not trusted False\n"


@pytest.mark.slow
def test_worker_decodes_models_of_its_tasks(
    shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{shop}:{workers.REPOSITORY}")
    broker, store = f"filesystem://{shop}/broker", f"sqlite:///{shop}/flows.db"
    with workers.workers(shop, "shop", "--url", broker, "--tasks", "shop_of_models", cwd=shop):
        assert fresh.run(RUN, broker, store, cwd=shop).stdout == "5\n"


def test_engine_stores_and_returns_models(tmp_path: pathlib.Path) -> None:
    values = engines.run(
        factory(), backend=f"sqlite:///{tmp_path}/flows.db", inputs={"spare": ForMethod()}
    )
    assert values["spare"] == ForMethod()
