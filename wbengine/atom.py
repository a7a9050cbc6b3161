"""The base class of tasks and retry controllers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from wbengine._introspection import annotated, binding, object_names

#: Arguments of `revert` that the engine provides.
REVERT_RESULT: Final = "result"
REVERT_FLOW_FAILURES: Final = "flow_failures"
_ENGINE_ARGUMENTS: Final = (REVERT_RESULT, REVERT_FLOW_FAILURES)

Provides = str | Sequence[str] | AbstractSet[str]

# Shared; never modified.
_NOTHING: Final[dict[str, Any]] = {}
_NO_OUTPUTS: Final = (_NOTHING, binding.NO_NAMES)

_FIRST_VERSION: Final = (1, 0)


class _Requirements(NamedTuple):
    """The names that an atom requires, from its signatures and constructor arguments."""

    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]
    revert_rebind: dict[str, str]
    revert_requires: frozenset[str]
    revert_optional: frozenset[str]
    revert_accepts: frozenset[str] | None
    async_bodies: frozenset[str]


_INIT_ATTRIBUTES: Final = frozenset(
    ("name", "inject", "save_as", "provides", *_Requirements._fields[:-1])
)


class _Bodies(NamedTuple):
    """Data from the signatures of `execute` and `revert`, without constructor arguments."""

    execute: binding.Signature
    revert: binding.Signature
    revert_accepts: frozenset[str] | None
    async_bodies: frozenset[str]


class _ClassCache(NamedTuple):
    """Cached data of a class, valid as long as the class has these two methods."""

    execute: Any
    revert: Any
    bodies: _Bodies
    #: Used by instances that set no constructor argument except `name` and `provides`.
    shape: _Requirements


# `save_as`, and the provided names as a set, for the `default_provides` of a class.
_Outputs = tuple[dict[str, Any], frozenset[str]]


def save_as(provides: Provides | None) -> dict[str, Any]:
    """Return the index or key of each provided name in a result (None: the whole result).

    >>> save_as("total"), save_as(("low", "high")), save_as({"wind"})
    ({'total': None}, {'low': 0, 'high': 1}, {'wind': 'wind'})

    :raises TypeError: if `provides` is not a string, list, tuple or set.
    :raises ValueError: if a name is too long.
    """
    if provides is None:
        return _NOTHING
    if isinstance(provides, str):
        return {object_names.check_length("Value name", provides): None}
    if isinstance(provides, Sequence | AbstractSet):
        binding.check_names("Atom provides", provides)
    if isinstance(provides, Sequence):
        return {name: index for index, name in enumerate(provides)} or _NOTHING
    if isinstance(provides, AbstractSet):
        return {name: name for name in provides} or _NOTHING
    raise TypeError(f"Atom provides must be a str, set, list or tuple, got {provides!r}")


class Atom(abc.ABC):
    """A named unit of work with inputs and outputs.

    :param name: unique in the whole flow. It identifies the record.
    :param provides: names under which the result is stored. A string names the whole result, a list
        or tuple its items by position, a set its items by key. Default: `default_provides`.
    :param requires: names that `execute` needs in addition to its signature.
    :param auto_extract: whether to read names from the signatures: parameters without a default are
        required, others are optional.
    :param rebind: stored names for arguments: `{argument: stored name}`, or a list for the required
        arguments in order.
    :param inject: constants for this atom, by stored name. They take precedence over other sources.
    :param ignore_list: parameters to omit from the signatures.
    :param revert_rebind: like `rebind`, for `revert`. Default: the entries of `rebind` that
        `revert` accepts.
    :param revert_requires: like `requires`, for `revert`. Default: the names of `requires` that
        `revert` accepts.
    :raises ValueError: if a method does not accept a named argument, a required one is missing, a
        method has positional-only parameters or is an asynchronous generator, or a name is too
        long.
    :raises TypeError: if `name`, `provides`, `requires`, `rebind` or `inject` has a wrong type.

    Read-only attributes: `save_as` (index or key by name), `provides`, `requires` (of `execute` and
    `revert` together), `optional`, `rebind` (stored name by argument), the `revert_` attributes of
    the same kind, `inject`, `version`.
    """

    #: Among the ready atoms, those with a higher priority run first.
    priority: int = 0
    #: Default of `provides`.
    default_provides: Any = None
    #: Stored with the records of the atom.
    version: Any = _FIRST_VERSION

    #: Arguments of `revert` that the engine provides. They are not read from the store.
    _REVERT_IGNORES: ClassVar[tuple[str, ...]] = _ENGINE_ARGUMENTS
    #: Methods that must not be `async def`, because they are not awaited.
    _NEVER_ASYNC: ClassVar[tuple[str, ...]] = ()

    # Caches of a class, stored in the class so that they are deleted with it.
    __known: ClassVar[_ClassCache | None] = None
    __outputs: ClassVar[tuple[Any, _Outputs] | None] = None

    #: The methods among `execute` and `revert` that are `async def`.
    async_bodies: frozenset[str] = binding.NO_NAMES

    save_as: dict[str, Any]
    provides: frozenset[str]
    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]
    revert_rebind: dict[str, str]
    revert_requires: frozenset[str]
    revert_optional: frozenset[str]
    #: Arguments of the engine that `revert` accepts. None: all.
    revert_accepts: frozenset[str] | None

    def __init__(
        self,
        name: str | None = None,
        provides: Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
        ignore_list: Iterable[str] | None = None,
        revert_rebind: binding.Rebind | None = None,
        revert_requires: str | Iterable[str] | None = None,
    ) -> None:
        if name is None:
            name = self._default_name()
        elif not isinstance(name, str):
            raise TypeError(f"Atom name must be a str, got {name!r}")
        elif not name:
            raise ValueError("Atom name must not be empty")
        if name is not None:  # Without a name, a retry controller is named after its flow.
            object_names.check_length("Atom name", name)
        if inject is not None:
            if not isinstance(inject, Mapping):
                raise TypeError(f"Atom inject must be a dict, got {inject!r}")
            binding.check_names("Atom inject", inject)
        self.name: str = name  # type: ignore[assignment]
        #: Values of arguments that only this atom receives.
        self.inject = inject
        if provides is None:
            self.save_as, self.provides = self._default_outputs()
        else:
            self.save_as = save_as(provides)
        class_data = self._class_data()
        has_defaults = requires is rebind is ignore_list is revert_rebind is revert_requires is None
        if class_data is not None and has_defaults and auto_extract and not inject:
            shape = class_data.shape
        else:
            own = "execute" in vars(self) or "revert" in vars(self)
            shape = self._shape(
                self._inspect_bodies() if class_data is None or own else class_data.bodies,
                None if requires is None else binding.names_of(requires),
                auto_extract,
                rebind,
                binding.names_of(ignore_list),
                revert_rebind,
                None if revert_requires is None else binding.names_of(revert_requires),
                inject or (),
            )
        (
            self.rebind,
            self.requires,
            self.optional,
            self.revert_rebind,
            self.revert_requires,
            self.revert_optional,
            self.revert_accepts,
            async_bodies,
        ) = shape
        if async_bodies:
            self.async_bodies = async_bodies

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        annotated.note(cls)

    def _default_name(self) -> str | None:
        return None

    def _bodies(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return self.execute, self.revert

    def _signatures(self) -> tuple[binding.Signature, binding.Signature]:
        """Return the signatures of the bodies, without arguments that only a call provides."""
        execute, revert = self._bodies()
        return binding.signature_of(execute), binding.signature_of(revert)

    def _home(self) -> str:
        """Return the module whose exceptions the atom's failures may raise."""
        return type(self).__module__

    def _default_outputs(self) -> _Outputs:
        default = self.default_provides
        if default is None:
            return _NO_OUTPUTS
        # The cache of a base class is also valid if the value is the same object.
        cached_outputs = self.__outputs
        if cached_outputs is None or cached_outputs[0] is not default:
            outputs = save_as(default)
            cached_outputs = type(self).__outputs = default, (outputs, frozenset(outputs))
        return cached_outputs[1]

    def _class_data(self) -> _ClassCache | None:
        """Return the cached data of the class, or None if instances may have their own methods."""
        cls = type(self)
        if cls._bodies is not Atom._bodies:
            return None
        class_data = vars(cls).get("_Atom__known")
        if (
            class_data is None
            or class_data.execute is not cls.execute
            or class_data.revert is not cls.revert
        ):
            bodies = self._inspect_bodies()
            class_data = cls.__known = _ClassCache(
                cls.execute, cls.revert, bodies, self._shape(bodies)
            )
        return class_data

    def _inspect_bodies(self) -> _Bodies:
        execute, revert = self._signatures()
        self._reject_async()
        accepts = None
        if not revert.takes_any:
            accepts = frozenset(name for name in self._REVERT_IGNORES if revert.takes(name))
        async_bodies = binding.async_among(execute=execute, revert=revert)
        return _Bodies(execute, revert, accepts, async_bodies)

    def _shape(
        self,
        bodies: _Bodies,
        requires: tuple[str, ...] | None = None,
        infer: bool = True,
        rebind: binding.Rebind | None = None,
        ignore: tuple[str, ...] = (),
        revert_rebind: binding.Rebind | None = None,
        revert_requires: tuple[str, ...] | None = None,
        injected: Collection[str] = (),
    ) -> _Requirements:
        execute, revert, revert_accepts, async_bodies = bodies
        forward = binding.bind(
            self.name,
            "execute",
            execute,
            requires=requires or (),
            rebind=rebind,
            infer=infer,
            ignore=ignore,
            injected=injected,
        )
        revert_ignore = (*ignore, *self._REVERT_IGNORES)
        if revert_rebind is None:
            revert_rebind = binding.for_revert(execute, revert, revert_ignore, rebind)
        if revert_requires is None:
            revert_requires = ()
            if requires:
                revert_requires = tuple(name for name in requires if revert.takes(name))
        anything = revert.takes_any and not (revert.names or forward.optional or revert_requires)
        if anything and revert_rebind == forward.rebind:
            back = forward  # Frequent: the class does not define `revert`.
        else:
            back = binding.bind(
                self.name,
                "revert",
                revert,
                requires=revert_requires,
                rebind=revert_rebind,
                infer=infer,
                ignore=revert_ignore,
                injected=injected,
            )
        required = forward.requires
        if not back.requires <= required:
            required |= back.requires
        # Share equal parts, because flows may have many atoms. They are never modified.
        return _Requirements(
            forward.rebind,
            required,
            forward.optional,
            forward.rebind if back.rebind == forward.rebind else back.rebind,
            required if back.requires == required else back.requires,
            back.optional,
            revert_accepts,
            async_bodies,
        )

    def _reject_async(self) -> None:
        for method in self._NEVER_ASYNC:
            if binding.is_async(getattr(self, method)):
                raise ValueError(
                    f"{object_names.dotted(type(self))}.{method} must be a plain method, got an"
                    " 'async def', which the engine does not await"
                )

    def pre_execute(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Run before `execute`, in the same thread. An exception is a failure of the atom."""

    @abc.abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work and return the result.

        Arguments are passed by name. In a task, this method, `revert` and the four hooks may be
        `async def`. They then run in the event loop of the executor or worker, concurrently with
        other tasks, and must not block.
        """

    def post_execute(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Run after `execute`, even if it failed."""

    def pre_revert(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Run before `revert`, in the same thread. An exception is a failure of the atom."""

    def revert(self, *args: Any, **kwargs: Any) -> Any:  # noqa: B027
        """Undo the work.

        In addition to named values, `revert` may accept `result`, the result of `execute` (a
        `Failure` if it failed), and `flow_failures`, `{atom name: Failure}`.
        """

    def post_revert(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Run after `revert`, even if it failed."""

    if not TYPE_CHECKING:  # Otherwise type checkers would accept every attribute.

        def __getattr__(self, name: str) -> Any:
            if name == "provides" and "save_as" in vars(self):
                self.provides = frozenset(self.save_as)
                return self.provides
            if name in _INIT_ATTRIBUTES:
                raise AttributeError(
                    f"{object_names.dotted(type(self))} has no {name!r}: its __init__ must call"
                    " super().__init__()"
                )
            raise AttributeError(
                f"{object_names.dotted(type(self))!r} object has no attribute {name!r}"
            )

    @property
    def version_string(self) -> str:
        """`version` as a string: "1.0"."""
        version: Any = self.version
        if version is _FIRST_VERSION:
            return "1.0"
        return ".".join(map(str, version)) if isinstance(version, (list, tuple)) else str(version)

    def __str__(self) -> str:
        return f'"{self.name}=={self.version_string}"'

    def __repr__(self) -> str:
        return f"<{object_names.dotted(type(self))} {self}>"
