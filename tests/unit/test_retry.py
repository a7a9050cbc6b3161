"""Retry controllers: parameters, decisions and history."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import exceptions, retry
from wbengine.types.failure import Failure


def failed(kind: type[Exception] = ValueError) -> Failure:
    return Failure.from_exception(kind("x"))


def history(*provided, failure=None) -> retry.History:
    return retry.History([(value, {"atom": failed()}) for value in provided], failure)


def test_history_lists_values_and_failures_of_each_attempt():
    first, second = {"a": failed(KeyError), "b": failed()}, {}
    past = retry.History([(1, first), (2, second)])
    assert list(past) == [(1, first), (2, second)]
    assert len(past) == 2 and past[0] == (1, first) and past[-1] == (2, second)
    assert list(past.provided_iter()) == [1, 2]
    assert list(past.outcomes_iter()) == list(first.items())
    assert list(past.outcomes_iter(index=0)) == list(first.items())
    assert list(past.outcomes_iter(1)) == []
    assert past.failure is None
    with pytest.raises(IndexError):
        past[2]
    with pytest.raises(IndexError):
        list(past.outcomes_iter(2))


def test_history_caused_by_matches_classes_names_and_indexes():
    past = retry.History([(1, {"a": failed(KeyError)}), (2, {"b": failed()})], failed(OSError))
    assert past.caused_by(KeyError) and past.caused_by(ValueError) and past.caused_by("ValueError")
    assert past.caused_by(LookupError)
    assert past.caused_by(KeyError, index=0) and not past.caused_by(KeyError, index=1)
    assert not past.caused_by(OSError) and past.caused_by(OSError, include_retry=True)
    assert past.failure.check(OSError)
    assert not retry.History([]).caused_by(Exception, include_retry=True)


def test_history_can_be_pickled():
    past = history(1, 2, failure=failed(OSError))
    again = pickle.loads(pickle.dumps(past))
    assert list(again) == list(past) and again.failure == past.failure


def test_decisions_are_strings():
    assert (retry.RETRY, retry.REVERT, retry.REVERT_ALL) == ("RETRY", "REVERT", "REVERT_ALL")
    assert str(retry.Decision.RETRY) == "RETRY" and retry.RETRY is retry.Decision.RETRY


def drive(made, **arguments):
    provided, answer = [], retry.RETRY
    while answer == retry.RETRY:
        provided.append(made.execute(history=history(*provided), **arguments))
        answer = made.on_failure(history=history(*provided), **arguments)
    return provided, answer


@pytest.mark.parametrize(("revert_all", "end"), [(False, "REVERT"), (True, "REVERT_ALL")])
def test_for_each_tries_values_in_order_and_then_reverts(revert_all, end):
    assert drive(retry.ForEach([3, 1, 2], revert_all=revert_all)) == ([3, 1, 2], end)
    made = retry.ParameterizedForEach(revert_all=revert_all)
    assert drive(made, values=[3, 1, 2]) == ([3, 1, 2], end)


def test_for_each_accepts_unhashable_values():
    made = retry.ForEach([[1], {"a": 1}])
    assert made.execute(history=history([1])) == {"a": 1}
    assert drive(made)[0] == [[1], {"a": 1}]


def test_for_each_can_reuse_the_values_of_an_iterator():
    made = retry.ForEach(iter("abc"))
    assert drive(made)[0] == drive(made)[0] == ["a", "b", "c"]


def test_for_each_without_remaining_values_raises_not_found():
    made = retry.ForEach([1], name="colours")
    with pytest.raises(exceptions.NotFound, match="colours"):
        made.execute(history=history(1))
    assert made.on_failure(history=history(1)) == "REVERT"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_for_each_tries_repeated_values_repeatedly(values):
    tried, answer = drive(retry.ForEach(values))
    assert sorted(tried) == sorted(values) and answer == "REVERT"
    assert tried[0] == values[0]


def test_retry_parameters_set_name_provides_and_requires():
    made = retry.ParameterizedForEach("r", "colour", rebind={"values": "colours"})
    assert (made.name, made.provides, made.requires) == ("r", {"colour"}, {"colours"})
    assert made.rebind == {"values": "colours"}
    times = retry.Times(2, "t", "attempt", ["limit"])
    assert (times.requires, times.provides) == ({"limit"}, {"attempt"})
    each = retry.ForEach([1], "f", "value")
    assert each.requires == set() and each.save_as == {"value": None}


def test_history_and_failures_are_not_required_inputs_of_a_retry():
    class Own(retry.Retry):
        def execute(self, history, a): ...

        def on_failure(self, history, a): ...

        def revert(self, history, b, flow_failures): ...

    made = Own()
    assert made.requires == {"a", "b"} and made.rebind == {"a": "a"}
    assert made.revert_rebind == {"b": "b"}
    assert made.revert_accepts == {"history", "flow_failures"}
    assert retry.Times().revert_accepts is None
    assert retry.Times().revert(history=history(), flow_failures={}) is None


def test_retries_reject_values_and_attempts_of_wrong_type():
    with pytest.raises(TypeError, match="values of a ForEach retry must be an iterable, got 3"):
        retry.ForEach(3)
    each = retry.ParameterizedForEach("each")
    for method in (each.execute, each.on_failure):
        with pytest.raises(TypeError, match=r"values of retry 'each' must be .*, got None"):
            method(None, history=history())
    with pytest.raises(TypeError, match="attempts of a Times retry must be an int, got '3'"):
        retry.Times("3")


class Transient(Exception): ...


class Worse(Transient): ...


def attempts(*kinds):
    """Return a history whose latest attempt failed with these exceptions."""
    latest = {f"t{n}": failed(kind) for n, kind in enumerate(kinds)}
    return retry.History([(1, {"t": failed(OSError)}), (2, latest)])


def made_with(**options):
    return [retry.Times(9, **options), retry.ForEach(range(9), **options)]


RETRIED_ON = {
    "equal": (ValueError, [ValueError], "RETRY"),
    "other": (ValueError, [KeyError], "REVERT"),
    "one_of_two": (ValueError, [ValueError, KeyError], "REVERT"),
    "tuple": ((ValueError, KeyError), [ValueError, KeyError], "RETRY"),
    "list_with_name": ([ValueError, "KeyError"], [ValueError, KeyError], "RETRY"),
    "base_class": (LookupError, [KeyError], "RETRY"),
    "base_class_name": ("LookupError", [KeyError], "RETRY"),
    "own_base": (Transient, [Worse], "RETRY"),
    "own_base_by_path": (f"{__name__}.Transient", [Worse], "RETRY"),
    "empty": ((), [ValueError], "REVERT"),
    "none": (None, [ValueError], "RETRY"),
}


@pytest.mark.parametrize(("wanted", "kinds", "answer"), RETRIED_ON.values(), ids=RETRIED_ON)
def test_retry_on_requires_all_failures_to_match(wanted, kinds, answer):
    for made in made_with(retry_on=wanted):
        assert made.on_failure(history=attempts(*kinds)) == answer
    each = retry.ParameterizedForEach(retry_on=wanted)
    assert each.on_failure([1, 2, 3], history=attempts(*kinds)) == answer


GIVEN_UP_ON = {
    "equal": (ValueError, [ValueError], "REVERT_ALL"),
    "other": (ValueError, [KeyError], "RETRY"),
    "one_of_two": (ValueError, [KeyError, ValueError], "REVERT_ALL"),
    "name_or_base": (("OSError", Transient), [KeyError, Worse], "REVERT_ALL"),
    # Only the latest attempt counts: the first one failed with an OSError.
    "earlier_attempt": (OSError, [KeyError], "RETRY"),
    "empty": ((), [KeyError], "RETRY"),
}


@pytest.mark.parametrize(("wanted", "kinds", "answer"), GIVEN_UP_ON.values(), ids=GIVEN_UP_ON)
def test_give_up_on_requires_one_failure_to_match(wanted, kinds, answer):
    for made in made_with(give_up_on=wanted, revert_all=True):
        assert made.on_failure(history=attempts(*kinds)) == answer


def group(*members):
    return ExceptionGroup("group", list(members))


GROUPS = {
    "one": (group(ValueError(1)), True, True),
    "subclass": (group(ValueError(1), UnicodeError(2)), True, True),
    "two_kinds": (group(ValueError(1), KeyError(2)), False, True),
    "other": (group(KeyError(1)), False, False),
    "nested": (group(ValueError(1), group(ValueError(2), ValueError(3))), True, True),
    "nested_kinds": (group(ValueError(1), group(ValueError(2), KeyError(3))), False, True),
    "base": (BaseExceptionGroup("group", [ValueError(1), SystemExit(2)]), False, True),
}


@pytest.mark.parametrize(("error", "retry_on", "give_up_on"), GROUPS.values(), ids=GROUPS)
def test_filters_examine_members_of_exception_groups(error, retry_on, give_up_on):
    failure = Failure.from_exception(error)
    for each in failure, Failure.from_dict(failure.to_dict()):
        failures = retry.History([(1, {"atom": each})])
        for made in made_with(retry_on=ValueError):
            assert made.on_failure(history=failures) == ("RETRY" if retry_on else "REVERT")
        for made in made_with(give_up_on=ValueError):
            assert made.on_failure(history=failures) == ("REVERT" if give_up_on else "RETRY")


def test_retry_on_matches_the_class_of_a_group():
    failures = retry.History([(1, {"atom": Failure.from_exception(group(KeyError(1)))})])
    for made in made_with(retry_on=ExceptionGroup):
        assert made.on_failure(history=failures) == "RETRY"


def test_give_up_on_overrides_retry_on():
    for made in made_with(retry_on=Exception, give_up_on=KeyError):
        assert made.on_failure(history=attempts(ValueError)) == "RETRY"
        assert made.on_failure(history=attempts(ValueError, KeyError)) == "REVERT"


def test_retry_on_does_not_add_attempts():
    assert retry.Times(2, retry_on=OSError).on_failure(history=attempts(OSError)) == "REVERT"
    assert retry.ForEach([1, 2], retry_on=OSError).on_failure(history=attempts(OSError)) == "REVERT"


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(3, id="number"),
        pytest.param([3], id="list_of_number"),
        pytest.param(int, id="other_class"),
        pytest.param((ValueError, int), id="tuple_with_other_class"),
        pytest.param("", id="empty_name"),
        pytest.param(ValueError("x"), id="instance"),
    ],
)
def test_failure_filters_accept_only_exception_classes_and_names(option, odd):
    with pytest.raises(TypeError, match=f"{option} must contain exception classes"):
        retry.Times(2, **{option: odd})
