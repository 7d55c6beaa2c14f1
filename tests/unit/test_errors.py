import inspect
import pickle
import string

import pytest

from fencebeat import errors
from fencebeat.errors import FencebeatError, Fenced, Permanent, Refused, Retryable, StoreUnreachable


def every_error(base=FencebeatError):
    for kind in base.__subclasses__():
        if kind.__module__.startswith("fencebeat."):
            yield kind
            yield from every_error(kind)


def facts_of(kind):
    fields = string.Formatter().parse(inspect.cleandoc(kind.__doc__))
    return {name: 1.5 if how else f"<{name}>" for _, name, how, _ in fields if name}


def test_there_are_errors_to_check():
    assert {Fenced, StoreUnreachable, errors.ImpossibleConfiguration, errors.UnusableRecord} <= set(every_error())


@pytest.mark.parametrize("kind", sorted(set(every_error()), key=lambda kind: kind.__name__))
def test_the_docstring_is_the_message_and_survives_pickling(kind):
    assert kind.__doc__, "an error without a docstring has no message"
    assert kind.__doc__ is not kind.__base__.__doc__
    error = kind(**facts_of(kind))

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert str(again) == str(error)
    assert "{" not in str(error)
    assert error.what == str(error).splitlines()[0]


def test_the_type_says_what_to_do():
    assert issubclass(StoreUnreachable, Retryable)
    assert issubclass(errors.UnusableRecord, Refused)
    assert not issubclass(Fenced, Retryable | Permanent)


def test_an_error_for_machines_has_its_type_message_and_facts():
    error = Fenced(token=7, newest=9)

    assert error.as_dict() == {
        "error": "Fenced",
        "message": "Term 7 is over: the store has sealed 9. Stop acting; do not retry.",
        "facts": {"token": "7", "newest": "9"},
    }


def test_a_missing_fact_is_an_error_of_its_own_and_not_an_empty_message():
    with pytest.raises(KeyError):
        Fenced(token=7)
