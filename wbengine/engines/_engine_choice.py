"""Which kind of engine runs a flow, and the options of that kind."""

from __future__ import annotations

import inspect
import urllib.parse
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from wbengine import exceptions
from wbengine._configuration import named_options, plugins
from wbengine._introspection import object_names
from wbengine._security import masking
from wbengine.engines import base
from wbengine.patterns import linear_flow
from wbengine.persistence import models

__all__ = [
    "ENGINES_NAMESPACE",
    "ENGINE_DEFAULT",
    "check_engine",
    "check_engine_uri",
    "check_names",
    "defaults",
    "find_kind",
    "kind_and_options",
]

#: Entry point group of kinds of engines.
ENGINES_NAMESPACE: Final = "wbengine.engines"
ENGINE_DEFAULT: Final = "default"


class Defaults(UserDict[str, Any]):
    """Default options of engines, which `engines.load` uses for all engines of this process.

    :raises ValueError: if not every kind of engine has the option.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        named_options.check_known("engines.defaults", (name,), base.Engine.known_options())
        super().__setitem__(name, value)


defaults: Final = Defaults()

#: Arguments of functions of `engines`, which are no options of engines, and their functions.
_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("backend", "book", "engine", "flow_detail", "inputs", "name"), "load"),
    **dict.fromkeys(("namespace", "store", "tags"), "load"),
    **dict.fromkeys(("factory_args", "factory_kwargs"), "load_from_factory"),
    **dict.fromkeys(("require_inputs", "uuid"), "load_from_factory"),
    "deadline": "run",
    "flows": "load_from_detail",
}


def kind_and_options(engine: str | None, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of an engine, and its options; `options` have precedence over its URI."""
    merged = dict(options)
    conf = merged.pop("engine_conf", None)
    if conf is not None:
        _warn_deprecated("engine_conf= is deprecated: use engine= and separate options")
        if not isinstance(conf, str | Mapping):
            raise TypeError(
                f"engine_conf must be a kind, a URI or a dict, got {type(conf).__name__}"
            )
        settings = {"engine": conf} if isinstance(conf, str) else dict(conf)
        engine, merged = settings.pop("engine", ENGINE_DEFAULT), {**settings, **merged}
    if engine is None or engine == "":  # not configured
        return ENGINE_DEFAULT, merged
    if not isinstance(engine, str):
        raise TypeError(f"engine must be the name of a kind or a URI, got {engine!r}")
    kind, separator, address = engine.partition(":")
    location, _, query = address.partition("?")
    if location.strip("/") or (not separator and "?" in engine):
        raise ValueError(
            "engine must be KIND or KIND://?OPTION=VALUE&OPTION=VALUE, with the URL of"
            f" the broker as option `url`, got {masking.masked(engine)!r}"
        )
    return kind, {**dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), **merged}


def find_kind(namespace: str, kind: str) -> Callable[..., base.Engine]:
    """Return the class or function that creates engines of a kind.

    :raises NotFound: if the kind is unknown.
    """
    try:
        factory: Callable[..., base.Engine] = plugins.find(namespace, kind)
    except exceptions.NotFound as error:
        kinds = plugins.names(namespace)
        raise exceptions.NotFound(
            f"Unknown engine kind {kind!r}{object_names.hint(kind, kinds)};"
            f" known kinds: {', '.join(kinds) or 'none'}"
        ) from error
    return factory


def check_names(factory: Callable[..., base.Engine], given: Iterable[str]) -> None:
    """Check that a kind of engine has the given options.

    :raises ValueError: if it does not.
    """
    if hasattr(factory, "known_options"):  # a plug-in may be any function
        label = getattr(factory, "__name__", repr(factory))
        known = factory.known_options()
        for name in given:
            if name in _ARGUMENTS and name not in known:
                raise ValueError(
                    f"{name!r} is an argument of engines.{_ARGUMENTS[name]},"
                    f" not an option of {label}"
                )
        named_options.check_known(label, given, known, _ARGUMENTS)


def check_engine_uri(engine: str) -> None:
    """Check the kind and the options of an engine URI, without making an engine.

    :raises NotFound: if the kind is unknown.
    :raises ValueError: if an option is unknown or its value is not allowed.
    """
    kind, given_options = kind_and_options(engine, {})
    factory = find_kind(ENGINES_NAMESPACE, kind)
    check_names(factory, given_options)
    if isinstance(factory, type) and issubclass(factory, base.Engine):
        factory.read_options(given_options)


def check_engine(engine: str | None, options: Mapping[str, Any]) -> None:
    """Check that `load` accepts this kind (or URI) of engine and these options.

    `local_tasks` is not checked, because its values belong to one flow.

    :raises NotFound: if the kind is unknown.
    :raises ValueError: if an option is unknown or its value is not allowed.
    :raises TypeError: if `engine` is not a string, or an option has a wrong type.
    """
    kind, given_options = kind_and_options(engine, options)
    factory = find_kind(ENGINES_NAMESPACE, kind)
    check_names(factory, given_options)
    all_options = {**defaults, **given_options}
    all_options.pop("local_tasks", None)
    factory(linear_flow.Flow("check"), models.FlowDetail("check"), None, all_options)


def _warn_deprecated(text: str) -> None:
    """Warn with the position of the first caller outside of this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("wbengine."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=level)
