"""The unit of work that flows are made of; tasks and retries are atoms."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from wbengine import _binding, _names

#: Arguments of `revert` that the engine itself fills.
REVERT_RESULT: Final = "result"
REVERT_FLOW_FAILURES: Final = "flow_failures"
_REVERT_EXTRAS: Final = (REVERT_RESULT, REVERT_FLOW_FAILURES)

Provides = str | Sequence[str] | AbstractSet[str]

# Shared by all atoms that provide nothing; nobody changes it.
_NOTHING: Final[dict[str, Any]] = {}
_NO_OUTPUTS: Final = (_NOTHING, _binding.NO_NAMES)

_FIRST: Final = (1, 0)


class _Shape(NamedTuple):
    """All that an atom's signatures and constructor arguments come to, but what it provides."""

    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]
    revert_rebind: dict[str, str]
    revert_requires: frozenset[str]
    revert_optional: frozenset[str]
    revert_accepts: frozenset[str] | None
    async_bodies: frozenset[str]


_MADE_BY_INIT: Final = frozenset(("name", "inject", "save_as", "provides", *_Shape._fields[:-1]))


class _Bodies(NamedTuple):
    """What an atom's signatures come to, whatever arguments its constructor is given."""

    execute: _binding.Signature
    revert: _binding.Signature
    revert_accepts: frozenset[str] | None
    async_bodies: frozenset[str]


class _Known(NamedTuple):
    """What all instances of a class have in common, as long as its methods are these."""

    execute: Any
    revert: Any
    bodies: _Bodies
    #: Of those that are given no arguments but a name, or `provides`.
    shape: _Shape


# What instances of a class provide by default, and what that comes to.
_Outputs = tuple[dict[str, Any], frozenset[str]]


def save_as(provides: Provides | None) -> dict[str, Any]:
    """Where each provided name is found in a result: name -> index or key, None = all of it.

    >>> save_as("total"), save_as(("low", "high")), save_as({"wind"})
    ({'total': None}, {'low': 0, 'high': 1}, {'wind': 'wind'})

    :raises TypeError: not a string, list, tuple or set.
    """
    if provides is None:
        return _NOTHING
    if isinstance(provides, str):
        return {provides: None}
    if isinstance(provides, Sequence | AbstractSet):
        _binding.check_names("Atom provides", provides)
    if isinstance(provides, Sequence):
        return {name: index for index, name in enumerate(provides)} or _NOTHING
    if isinstance(provides, AbstractSet):
        return {name: name for name in provides} or _NOTHING
    raise TypeError(f"Atom provides should be a str, set, list or tuple, not {provides!r}")


class Atom(abc.ABC):
    """A named piece of work with inputs and outputs.

    :param name: unique in the whole flow; records and lookups go by it.
    :param provides: the names its result is stored under.  A string names the whole result; a list
        or tuple its items by position; a set its items by key.  None means `default_provides`.
    :param requires: further names that `execute` needs, besides those its signature tells.
    :param auto_extract: infer from the signatures: parameters without default are required, those
        with one are optional.
    :param rebind: which stored name an argument is filled from: `{argument: stored name}`, or a
        list for the required arguments in order.
    :param inject: constants for this atom only, by stored name; they beat every other source.
    :param ignore_list: parameters that are not inferred.
    :param revert_rebind: as `rebind`, for `revert`; None takes over what of `rebind` revert takes.
    :param revert_requires: as `requires`, for `revert`; None takes over what of `requires` revert
        takes, an empty list takes over nothing.
    :raises ValueError: an argument is named that the method does not take, one that it needs is
        left out, or a method takes arguments by position only or is an asynchronous generator.
    :raises TypeError: `name`, `provides`, `requires`, `rebind` or `inject` is of the wrong kind.

    The attributes are read by the engine and not to be changed: `save_as` (name -> index or key),
    `provides`, `requires` (what `execute` and `revert` together cannot do without), `optional`,
    `rebind` (argument -> stored name) and their `revert_` counterparts, `inject`, `version`.
    """

    #: Among atoms that are ready together, the one with the bigger number goes first.
    priority: int = 0
    #: What instances provide that are not told what to provide.
    default_provides: Any = None
    #: Kept with the records of the atom.
    version: Any = _FIRST

    #: `revert` is filled with these by the engine, not from the store.
    _REVERT_IGNORES: ClassVar[tuple[str, ...]] = _REVERT_EXTRAS
    #: Methods that nobody would await.
    _NEVER_ASYNC: ClassVar[tuple[str, ...]] = ()

    # What was found out about a class is kept in it, and goes when it goes.
    __known: ClassVar[_Known | None] = None
    __outputs: ClassVar[tuple[Any, _Outputs] | None] = None

    #: Which of `execute` and `revert` give coroutines (`async def`).
    async_bodies: frozenset[str] = _binding.NO_NAMES

    save_as: dict[str, Any]
    provides: frozenset[str]
    rebind: dict[str, str]
    requires: frozenset[str]
    optional: frozenset[str]
    revert_rebind: dict[str, str]
    revert_requires: frozenset[str]
    revert_optional: frozenset[str]
    #: Which of the engine's own arguments `revert` takes; None means all.
    revert_accepts: frozenset[str] | None

    def __init__(
        self,
        name: str | None = None,
        provides: Provides | None = None,
        requires: str | Iterable[str] | None = None,
        auto_extract: bool = True,
        rebind: _binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
        ignore_list: Iterable[str] | None = None,
        revert_rebind: _binding.Rebind | None = None,
        revert_requires: str | Iterable[str] | None = None,
    ) -> None:
        if name is None:
            name = self._default_name()
        elif not isinstance(name, str):
            raise TypeError(f"The name of an atom must be a str, not {name!r}")
        elif not name:
            raise ValueError("The name of an atom must not be empty")
        if inject is not None:
            if not isinstance(inject, Mapping):
                raise TypeError(f"Atom inject should be a dict, not {inject!r}")
            _binding.check_names("Atom inject", inject)
        self.name: str = name  # type: ignore[assignment]  # a retry may be named by its flow
        self.inject = inject
        if provides is None:
            self.save_as, self.provides = self._default_outputs()
        else:
            self.save_as = save_as(provides)
        known = self._class_known()
        unasked = requires is rebind is ignore_list is revert_rebind is revert_requires is None
        if known is not None and unasked and auto_extract and not inject:
            shape = known.shape
        else:
            own = "execute" in vars(self) or "revert" in vars(self)
            shape = self._shape(
                self._look_at_bodies() if known is None or own else known.bodies,
                None if requires is None else _binding.names_of(requires),
                auto_extract,
                rebind,
                _binding.names_of(ignore_list),
                revert_rebind,
                None if revert_requires is None else _binding.names_of(revert_requires),
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

    def _default_name(self) -> str | None:
        """That of an atom which is given none; None: its flow names it."""
        return None

    def _bodies(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The callables whose signatures count."""
        return self.execute, self.revert

    def _home(self) -> str:
        """The module its code comes from: its failures may be raised as what that one defines."""
        return type(self).__module__

    def _default_outputs(self) -> _Outputs:
        given = self.default_provides
        if given is None:
            return _NO_OUTPUTS
        # One of a base class is as good, where it is the same.
        known = self.__outputs
        if known is None or known[0] is not given:
            found = save_as(given)
            known = type(self).__outputs = given, (found, frozenset(found))
        return known[1]

    def _class_known(self) -> _Known | None:
        """None: each instance may have bodies of its own."""
        cls = type(self)
        if cls._bodies is not Atom._bodies:
            return None
        known = vars(cls).get("_Atom__known")  # not that of a base class
        if known is None or known.execute is not cls.execute or known.revert is not cls.revert:
            bodies = self._look_at_bodies()
            known = cls.__known = _Known(cls.execute, cls.revert, bodies, self._shape(bodies))
        return known

    def _look_at_bodies(self) -> _Bodies:
        execute, revert = map(_binding.signature_of, self._bodies())
        self._refuse_async()
        accepts = None
        if not revert.takes_any:
            accepts = frozenset(name for name in self._REVERT_IGNORES if revert.takes(name))
        async_bodies = _binding.async_among(execute=execute, revert=revert)
        return _Bodies(execute, revert, accepts, async_bodies)

    def _shape(
        self,
        bodies: _Bodies,
        requires: tuple[str, ...] | None = None,
        infer: bool = True,
        rebind: _binding.Rebind | None = None,
        ignore: tuple[str, ...] = (),
        revert_rebind: _binding.Rebind | None = None,
        revert_requires: tuple[str, ...] | None = None,
        injected: Collection[str] = (),
    ) -> _Shape:
        execute, revert, revert_accepts, async_bodies = bodies
        forward = _binding.bind(
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
            revert_rebind = _binding.for_revert(execute, revert, revert_ignore, rebind)
        if revert_requires is None:
            revert_requires = ()
            if requires:
                revert_requires = tuple(name for name in requires if revert.takes(name))
        anything = revert.takes_any and not (revert.names or forward.optional or revert_requires)
        if anything and revert_rebind == forward.rebind:
            back = forward  # as most do that are not defined
        else:
            back = _binding.bind(
                self.name,
                "revert",
                revert,
                requires=revert_requires,
                rebind=revert_rebind,
                infer=infer,
                ignore=revert_ignore,
                injected=injected,
            )
        needed = forward.requires
        if not back.requires <= needed:
            needed |= back.requires
        # What is the same is there once: nobody changes it, and flows may have many atoms.
        return _Shape(
            forward.rebind,
            needed,
            forward.optional,
            forward.rebind if back.rebind == forward.rebind else back.rebind,
            needed if back.requires == needed else back.requires,
            back.optional,
            revert_accepts,
            async_bodies,
        )

    def _refuse_async(self) -> None:
        for method in self._NEVER_ASYNC:
            if _binding.is_async(getattr(self, method)):
                raise ValueError(
                    f"{_names.dotted(type(self))}.{method} is an 'async def', and nobody would"
                    f" await it: it runs in the engine's own thread; make it a plain method"
                )

    def pre_execute(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Called before `execute`, in the same thread; an error counts as the atom's."""

    @abc.abstractmethod
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work, and return what is to be stored.

        Arguments come by name: define the ones that are needed.  In a task this may be an
        `async def`, like `revert` and the four hooks: it runs, with the hooks, in the event loop of
        whatever runs tasks, among all others there; what blocks belongs into a plain method.
        """

    def post_execute(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Called after `execute`, whatever became of it."""

    def pre_revert(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Called before `revert`, in the same thread; an error counts as the atom's."""

    def revert(self, *args: Any, **kwargs: Any) -> Any:  # noqa: B027
        """Undo the work.

        Besides the names it asks for, it may take `result`, what `execute` returned (a `Failure`
        if it failed), and `flow_failures`, `{atom name: Failure}`.
        """

    def post_revert(self) -> Any:  # noqa: B027  (a hook, not a stub)
        """Called after `revert`, whatever became of it."""

    if not TYPE_CHECKING:  # or every attribute would seem to exist

        def __getattr__(self, name: str) -> Any:
            if name == "provides" and "save_as" in vars(self):
                # Most are never asked, and a flow may have many atoms.
                self.provides = frozenset(self.save_as)
                return self.provides
            if name in _MADE_BY_INIT:
                raise AttributeError(
                    f"{_names.dotted(type(self))} has no {name!r}: its __init__ must call"
                    " super().__init__()"
                )
            raise AttributeError(f"{_names.dotted(type(self))!r} object has no attribute {name!r}")

    @property
    def version_string(self) -> str:
        """`version` as one word: "1.0"."""
        version: Any = self.version
        if version is _FIRST:  # most atoms
            return "1.0"
        return ".".join(map(str, version)) if isinstance(version, (list, tuple)) else str(version)

    def __str__(self) -> str:
        return f'"{self.name}=={self.version_string}"'

    def __repr__(self) -> str:
        return f"<{_names.dotted(type(self))} {self}>"
