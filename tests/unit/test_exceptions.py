"""Exceptions: hierarchy, messages, causes, pickling."""

from __future__ import annotations

import pickle

import pytest

from wbengine import exceptions as exc
from wbengine.types.failure import Failure

CLASSES = [
    value
    for value in vars(exc).values()
    if isinstance(value, type) and issubclass(value, exc.WbengineException)
]


def made(cls: type[exc.WbengineException]) -> exc.WbengineException:
    cause = ValueError("deep")
    if cls is exc.MissingDependencies:
        return exc.MissingDependencies("atom", ["x", "y"], cause, method="revert")
    if cls is exc.NotEncodable:
        return exc.NotEncodable("no", cause, path="result['a'][3]", type_name="socket")
    if cls is exc.DisallowedAccess:
        return exc.DisallowedAccess("not now", cause, "CLAIMED")
    if cls is exc.CorruptRecord:
        return exc.CorruptRecord("torn", cause, path="/a/journal", flow="f")
    if cls is exc.FlowBusy:
        return exc.FlowBusy("not now", cause, owner="somebody", epoch=3, seconds=1.5)
    return cls("what happened", cause)


def test_each_exception_has_a_docstring():
    assert [cls for cls in CLASSES if not cls.__doc__] == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_each_exception_pickles_with_its_attributes(protocol):
    for cls in CLASSES:
        error = made(cls)
        error.extra = [1, 2]
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is cls
        assert str(again) == str(error)
        assert repr(again.cause) == repr(error.cause)
        assert again.extra == [1, 2]
        for name in ("missing_requirements", "path", "type_name", "state"):
            assert getattr(again, name, None) == getattr(error, name, None)


def test_taskflow_exception_is_alias_of_wbengine_exception():
    assert exc.TaskFlowException is exc.WbengineException
    assert not issubclass(exc.WrappedFailure, exc.WbengineException)


def test_exception_without_cause_shows_only_its_message():
    assert str(exc.NotFound("nothing here")) == "nothing here"
    assert exc.NotFound("nothing here").cause is None


def test_nested_causes_are_indented():
    error = exc.StorageFailure("top", exc.NotFound("middle", ValueError("bottom")))
    assert str(error) == "top\n  NotFound: middle\n    ValueError: bottom"
    assert error.pformat(indent=1, indent_text="-", show_root_class=True) == (
        "StorageFailure: top\n-NotFound: middle\n--ValueError: bottom"
    )


def test_cause_of_foreign_exception_is_not_shown():
    foreign = ValueError("one\ntwo")
    foreign.cause = exc.NotFound("hidden")
    assert exc.Empty("top", foreign).pformat() == "top\n  ValueError: one\n  two"


def test_indent_must_not_be_negative():
    with pytest.raises(ValueError, match="0 or more"):
        exc.Empty("x").pformat(indent=-1)


def test_circular_causes_are_shown_once():
    one, two = exc.Empty("one"), exc.NotFound("two")
    one._cause, two._cause = two, one
    assert str(one) == "one\n  NotFound: two"


def test_long_chain_of_causes_is_truncated():
    error = exc.Empty("last")
    for number in range(10_000):
        error = exc.Empty(str(number), error)
    assert len(str(error).splitlines()) < 200


def test_raise_with_cause_uses_the_handled_exception():
    with pytest.raises(exc.NotFound) as caught:
        try:
            raise KeyError("k")
        except KeyError as inner:
            handled = inner
            exc.raise_with_cause(exc.NotFound, "no k")
    assert caught.value.cause is handled
    assert caught.value.__cause__ is handled


def test_missing_dependencies_names_atom_value_and_suggestion():
    error = exc.MissingDependencies("ship", {"adress"}, method="execute", available=["address"])
    assert error.missing_requirements == {"adress"}
    text = str(error)
    assert "'ship'" in text and "'execute'" in text
    assert "'adress' (did you mean 'address'?)" in text


def failure(message: str, kind: type[Exception] = RuntimeError) -> Failure:
    return Failure.from_exception(kind(message))


def test_wrapped_failure_iterates_and_checks_its_failures():
    several = [failure("a"), failure("b", KeyError)]
    wrapped = exc.WrappedFailure(several)
    assert list(wrapped) == several and len(wrapped) == 2
    assert wrapped.check(ValueError, KeyError) is KeyError
    assert wrapped.check("RuntimeError") == "RuntimeError"
    assert wrapped.check(ValueError) is None
    assert str(exc.WrappedFailure([failure("嗨")])) == (
        "WrappedFailure: [Failure: RuntimeError: 嗨]"
    )


def test_text_of_wrapped_failure_lists_first_ten():
    many = exc.WrappedFailure([failure(f"f{number}") for number in range(5000)])
    assert str(many).endswith("RuntimeError: f9, and 4990 more]")
    assert str(exc.WrappedFailure(list(many)[:10])).endswith("RuntimeError: f9]")


def test_wrapped_failures_are_flattened():
    one, two, three = failure("1"), failure("2"), failure("3")
    inner = Failure.from_exception(exc.WrappedFailure([one, two]))
    assert list(exc.WrappedFailure([inner, three])) == [one, two, three]


def test_wrapped_failure_pickles():
    wrapped = exc.WrappedFailure([failure("a"), failure("b")])
    again = pickle.loads(pickle.dumps(wrapped))
    assert list(again) == list(wrapped)
    assert isinstance(str(again), str)


def test_message_of_exception_with_broken_str_is_a_placeholder():
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert exc.exception_message(Bad()) == "<Bad: str() raised RuntimeError>"
