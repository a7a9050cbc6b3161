"""What records may have called: whoever may write to a store names it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import hostile_factories
from wbengine import engines, exceptions
from wbengine.engines import allowed, factories
from wbengine.persistence import models

HERE = hostile_factories.__name__

#: Somebody who may write to a store wants these to be called.
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
    "wbengine.cli.app.main": [["config", "show"]],
    "wbengine._names.load": ["evil"],
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
    """A module that nobody is to import; where it is, `called` must not appear."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "lib" / "site-packages"))
    monkeypatch.delenv(allowed.VARIABLE, raising=False)
    monkeypatch.setattr(allowed, "_named", set())
    place = tmp_path / "lib" / "site-packages" / "evil.py"
    place.parent.mkdir(parents=True)
    place.write_text(f"open({str(tmp_path / 'called')!r}, 'w').close()\ndef make(): pass\n")
    return tmp_path / "called"


@pytest.mark.parametrize("flows", [None, [HERE], [f"{HERE}:make"]], ids=["none", "module", "name"])
@pytest.mark.parametrize("name", ATTACKS)
def test_no_record_has_what_is_no_factory_called(
    name: str, flows: list[str] | None, evil: Path
) -> None:
    """With a list and without: it is refused in one sentence, and was not called."""
    with pytest.raises(exceptions.NotTrusted, match=r"^Flow factory '.*' is not called: it .*$"):
        engines.flow_from_detail(kept(name, ATTACKS[name]), flows)
    assert not evil.exists()
    assert not hostile_factories.COMMANDS


@pytest.mark.parametrize("path", [*ATTACKS, "os:abort", "evil:make", "evil:x"])
def test_no_record_has_it_called_by_the_function_that_calls_another(path: str, evil: Path) -> None:
    """`wbengine flow run MODULE:FACTORY` notes `flow_of`, which calls what it is given."""
    with pytest.raises(exceptions.NotTrusted):
        engines.flow_from_detail(kept(factories.FLOW_OF, [path]))
    assert not evil.exists()


def test_the_function_that_calls_another_takes_a_name_and_no_more() -> None:
    with pytest.raises(exceptions.NotTrusted):
        engines.flow_from_detail(kept(factories.FLOW_OF, ["os:abort", "x"]))
    detail = kept(factories.FLOW_OF)
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
def test_what_makes_flows_here_needs_no_list(name: str, made: str) -> None:
    assert engines.flow_from_detail(kept(f"{HERE}.{name}")).name == made


def test_a_class_of_flows_and_a_flow_itself_make_flows() -> None:
    assert engines.flow_from_detail(kept(f"{HERE}.Nothing")).name.endswith("Nothing")
    assert engines.flow_from_detail(kept(factories.FLOW_OF, [f"{HERE}:FLOW"])).name == "kept"
    assert engines.flow_from_detail(kept(factories.FLOW_OF, [f"{HERE}:make"])).name == "made"


def test_what_is_installed_needs_a_list_and_is_not_imported_before(evil: Path) -> None:
    """A package that was installed: hundreds of functions, written for something else."""
    with pytest.raises(exceptions.NotTrusted, match=r"installed package.* --flows, .* or flows="):
        engines.flow_from_detail(kept("evil.make"))
    assert "evil" not in sys.modules
    with pytest.raises(exceptions.NotAFlow):  # it was called
        engines.flow_from_detail(kept("evil.make"), flows=["evil"])
    assert evil.exists()
    del sys.modules["evil"]


def test_what_this_program_named_needs_no_list(tmp_path: Path) -> None:
    place = tmp_path / "lib" / "site-packages" / "sold.py"
    place.write_text(f"from {HERE} import make\nFLOW = make('sold')\ndef other(): return FLOW\n")
    for name in ("sold.make", "sold.other"):
        with pytest.raises(exceptions.NotTrusted):
            engines.flow_from_detail(kept(name))
    detail = engines.load_from_factory("sold.other").storage.flow_detail
    assert engines.flow_from_detail(detail).name == "sold"
    with pytest.raises(exceptions.NotTrusted):  # that one it did not
        engines.flow_from_detail(kept("sold.make"))
    with pytest.raises(exceptions.NotTrusted):  # a list says what holds
        engines.flow_from_detail(detail, flows=[HERE])
    other = models.FlowDetail("o")
    engines.save_factory_details(other, factories.flow_of, ["sold:make"], None)
    assert engines.flow_from_detail(other).name == "made"


def test_a_list_says_all_that_may_be_called() -> None:
    detail = kept(f"{HERE}.make")
    assert engines.flow_from_detail(detail, flows=f"{HERE}:make").name == "made"
    assert engines.flow_from_detail(detail, flows=["tests.support"]).name == "made"
    for flows in (["tests.support.conducted"], [f"{HERE}:mak"], ["tests.support.hostile"]):
        with pytest.raises(exceptions.NotTrusted, match="not among the flows that are allowed"):
            engines.flow_from_detail(detail, flows=flows)
    with pytest.raises(exceptions.NotTrusted, match=rf"did you mean '{HERE}s'\?"):
        engines.flow_from_detail(detail, flows=[f"{HERE}s"])


def test_what_is_imported_from_elsewhere_is_of_there() -> None:
    """Or else a module would stand for all that it imports."""
    record = kept(f"{HERE}.conducted.plain")
    with pytest.raises(exceptions.NotTrusted, match=r"it is tests\.support\.conducted\.plain"):
        engines.flow_from_detail(record, flows=[HERE])
    for flows in ([HERE, "tests.support.conducted"], [f"{HERE}:conducted.plain"]):
        assert engines.flow_from_detail(record, flows=flows).name == "plain"


def test_the_environment_says_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(allowed.VARIABLE, f"nothing.here, {HERE}:make")
    assert engines.load_from_detail(kept(f"{HERE}.make")).storage.flow_name == "f"
    with pytest.raises(exceptions.NotTrusted):
        engines.load_from_detail(kept(f"{HERE}.cached"))
    assert engines.flow_from_detail(kept(f"{HERE}.cached"), flows=[HERE]).name == "cached"


@pytest.mark.parametrize(
    ("flows", "words"),
    [
        ("os", "standard library"),
        (["subprocess:call"], "standard library"),
        (["wbengine.cli"], "wbengine's own"),
        (["no way"], "not of the form"),
        (["a:"], "not of the form"),
        ([""], "not of the form"),
    ],
)
def test_a_list_names_what_can_make_flows(flows: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        allowed.AllowedFlows(flows)
    with pytest.raises(TypeError):
        allowed.AllowedFlows([3])  # type: ignore[list-item]
