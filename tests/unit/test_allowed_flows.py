"""Restrictions on the flow factories that stored records may call."""

import re
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import hostile_factories
from wbengine import engines, exceptions
from wbengine.engines import _allowed, _flow_factories
from wbengine.persistence import models

HERE = hostile_factories.__name__

#: Calls that an attacker with write access to a store requests.
ATTACKS: dict[str, list[Any]] = {
    "os.system": ["touch called"],
    "os:system": ["touch called"],
    "posix.system": ["touch called"],
    "subprocess.call": [["touch", "called"]],
    "subprocess:run": [["touch", "called"]],
    "builtins.exec": ["open('called', 'w')"],
    "builtins:eval": ["open('called', 'w')"],
    "pickle.loads": [b"cbuiltins\nexec\n(V__import__('os').system('touch called')\ntR."],
    "runpy.run_path": ["evil.py"],
    "importlib.import_module": ["evil"],
    "this.s": [],
    f"{HERE}.os.system": ["touch called"],
    f"{HERE}:os.system": ["touch called"],
    f"{HERE}.subprocess.call": [["touch", "called"]],
    f"{HERE}.CALLS": [],
    f"{HERE}.SHOP.shut": [],
    f"{HERE}.COMMANDS.append": ["x"],
    f"{HERE}.make.__globals__.__class__": [],
    f"{HERE}.make.__class__": [],
    f"{HERE}.Shop": [],
    f"{HERE}.__loader__.load_module": [HERE],
    "wbengine.__main__.main": [],
    "wbengine._cli.app.main": [["config", "show"]],
    "wbengine._introspection.object_names.load": ["evil"],
    "pytest.main": [["evil.py"]],
    "click.launch": ["evil"],
    "_pytest.config.main": [["evil.py"]],
}  # fmt: skip


def kept(name: str, args: list[Any] | None = None) -> models.FlowDetail:
    detail = models.FlowDetail("f")
    detail.meta[models.FACTORY] = {"name": name, "args": args or [], "kwargs": {}}
    return detail


@pytest.fixture(autouse=True)
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that appears if the module `evil` is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "lib" / "site-packages"))
    monkeypatch.delenv(_allowed.FLOWS_VARIABLE, raising=False)
    monkeypatch.setattr(_allowed, "_used_names", set())
    place = tmp_path / "lib" / "site-packages" / "evil.py"
    place.parent.mkdir(parents=True)
    place.write_text(f"open({str(tmp_path / 'called')!r}, 'w').close()\ndef make(): pass\n")
    return tmp_path / "called"


@pytest.mark.parametrize("flows", [None, [HERE], [f"{HERE}:make"]], ids=["none", "module", "name"])
@pytest.mark.parametrize("name", ATTACKS)
def test_record_naming_a_non_factory_is_refused_without_a_call(
    name: str, flows: list[str] | None, evil: Path
) -> None:
    with pytest.raises(exceptions.NotTrusted, match=r"^Flow factory '.*' is not allowed: it .*$"):
        engines.flow_from_detail(kept(name, ATTACKS[name]), flows)
    assert not evil.exists()
    assert not hostile_factories.COMMANDS


@pytest.mark.parametrize("path", [*ATTACKS, "os:abort", "evil:make", "evil:x"])
def test_record_cannot_call_non_factory_through_flow_of(path: str, evil: Path) -> None:
    """`wbengine flow run MODULE:FACTORY` records `flow_of`, which calls its argument."""
    with pytest.raises(exceptions.NotTrusted):
        engines.flow_from_detail(kept(_flow_factories.FLOW_OF, [path]))
    assert not evil.exists()


def test_flow_of_accepts_exactly_one_positional_name() -> None:
    with pytest.raises(exceptions.NotTrusted):
        engines.flow_from_detail(kept(_flow_factories.FLOW_OF, ["os:abort", "x"]))
    detail = kept(_flow_factories.FLOW_OF)
    detail.meta[models.FACTORY]["kwargs"] = {"path": "os:abort"}
    with pytest.raises(exceptions.NotTrusted):
        engines.flow_from_detail(detail)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("make", "made"),
        ("SHORT", "short"),
        ("Shop.opened", "opened"),
        ("cached", "cached"),
        ("conducted.plain", "plain"),
    ],
)
def test_factory_of_this_project_is_allowed_without_list(name: str, made: str) -> None:
    assert engines.flow_from_detail(kept(f"{HERE}.{name}")).name == made


def test_flow_class_and_flow_object_are_allowed_as_factories() -> None:
    assert engines.flow_from_detail(kept(f"{HERE}.Nothing")).name.endswith("Nothing")
    assert engines.flow_from_detail(kept(_flow_factories.FLOW_OF, [f"{HERE}:FLOW"])).name == "kept"
    assert engines.flow_from_detail(kept(_flow_factories.FLOW_OF, [f"{HERE}:make"])).name == "made"


def test_installed_factory_needs_list_and_is_not_imported_without_it(evil: Path) -> None:
    """Most functions of an installed package are not flow factories."""
    with pytest.raises(exceptions.NotTrusted, match=r"installed package.* --flows, .* or flows="):
        engines.flow_from_detail(kept("evil.make"))
    assert "evil" not in sys.modules
    with pytest.raises(exceptions.NotAFlow):  # raised after the call
        engines.flow_from_detail(kept("evil.make"), flows=["evil"])
    assert evil.exists()
    del sys.modules["evil"]


def test_factory_used_by_this_process_is_allowed_without_list(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "site-packages" / "sold.py"
    place.write_text(f"from {HERE} import make\nFLOW = make('sold')\ndef other(): return FLOW\n")
    for name in ("sold.make", "sold.other"):
        with pytest.raises(exceptions.NotTrusted):
            engines.flow_from_detail(kept(name))
    detail = engines.load_from_factory("sold.other").storage.flow_detail
    assert engines.flow_from_detail(detail).name == "sold"
    with pytest.raises(exceptions.NotTrusted):  # the process did not use this factory
        engines.flow_from_detail(kept("sold.make"))
    with pytest.raises(exceptions.NotTrusted):  # the list takes precedence
        engines.flow_from_detail(detail, flows=[HERE])
    other = models.FlowDetail("o")
    engines.save_factory_details(other, _flow_factories.flow_of, ["sold:make"], None)
    assert engines.flow_from_detail(other).name == "made"


def test_list_allows_only_the_factories_it_names() -> None:
    detail = kept(f"{HERE}.make")
    assert engines.flow_from_detail(detail, flows=f"{HERE}:make").name == "made"
    assert engines.flow_from_detail(detail, flows=["tests.support"]).name == "made"
    longer = kept(f"{HERE}.make_again")
    for record, name in (
        (detail, "tests.support.conducted"),
        (detail, f"{HERE}:cached"),
        (longer, f"{HERE}:make"),
    ):
        with pytest.raises(exceptions.NotTrusted, match="not among the allowed flows"):
            engines.flow_from_detail(record, flows=[name])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("testts", "no module 'testts' found (did you mean 'tests'?)"),
        ("tests.suport", "module 'tests' has no 'suport' (did you mean 'support'?)"),
        (f"{HERE}:mak", f"module '{HERE}' has no 'mak' (did you mean 'make'?)"),
        (f"{HERE}.mak", f"module '{HERE}' has no 'mak' (did you mean 'make'?)"),
        ("tests.cli.shop:odrer", "module 'tests.cli.shop' has no 'odrer' (did you mean 'order'?)"),
    ],
)
def test_list_with_unknown_name_is_rejected_with_suggestion(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = "tests.cli.shop" in sys.modules
    text = f"flows must be modules or functions that exist, got {name!r}: {told}"
    with pytest.raises(ValueError, match=re.escape(text)):
        engines.flow_from_detail(kept(f"{HERE}.make"), flows=name)
    monkeypatch.setenv(_allowed.FLOWS_VARIABLE, name)
    with pytest.raises(ValueError, match=re.escape(text)):
        engines.flow_from_detail(kept(f"{HERE}.make"))
    assert ("tests.cli.shop" in sys.modules) == loaded, "it was imported"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def order(): ...", True),
        ("from tests.cli.shop import order", True),
        ("from tests.cli.shop import *", True),
        ("globals()['order'] = 3", True),
        ("def __getattr__(name): ...", True),
        ("class Shop:\n    def order(self): ...", False),
        ("def other(order): order.x = 3", False),
        ("text = 'order'", False),
    ],
)
def test_list_finds_names_of_modules_without_importing_them(
    source: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"flows_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(f"{source}\nraise SystemExit('it was imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    if found:
        _allowed.AllowedFlows(f"{name}:order")
    else:
        with pytest.raises(ValueError, match="has no 'order'"):
            _allowed.AllowedFlows(f"{name}:order")


def test_imported_factory_belongs_to_its_defining_module() -> None:
    """Otherwise a module on the list would allow everything that it imports."""
    record = kept(f"{HERE}.conducted.plain")
    with pytest.raises(exceptions.NotTrusted, match=r"it is tests\.support\.conducted\.plain"):
        engines.flow_from_detail(record, flows=[HERE])
    for flows in ([HERE, "tests.support.conducted"], [f"{HERE}:conducted.plain"]):
        assert engines.flow_from_detail(record, flows=flows).name == "plain"


def test_flows_variable_restricts_factories_unless_flows_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(_allowed.FLOWS_VARIABLE, f"tests.support.conducted, {HERE}:make")
    assert engines.load_from_detail(kept(f"{HERE}.make")).storage.flow_name == "f"
    with pytest.raises(exceptions.NotTrusted):
        engines.load_from_detail(kept(f"{HERE}.cached"))
    assert engines.flow_from_detail(kept(f"{HERE}.cached"), flows=[HERE]).name == "cached"


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        ("os", "standard library"),
        (["subprocess:call"], "standard library"),
        (["wbengine._cli"], "belongs to wbengine itself"),
        (["no way"], "must be MODULE"),
        (["a:"], "must be MODULE"),
        ([""], "must be MODULE"),
    ],
    ids=["stdlib", "stdlib-name", "wbengine", "space", "no-name", "empty"],
)
def test_list_rejects_stdlib_wbengine_and_malformed_entries(flows: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _allowed.AllowedFlows(flows)
    with pytest.raises(TypeError):
        _allowed.AllowedFlows([3])  # type: ignore[list-item]
