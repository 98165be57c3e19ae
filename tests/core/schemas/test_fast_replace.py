"""Fields are replaced by place, as `_replace` does by name; instances are like any others."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from sessionary.schemas.fast_replace import make_replacer, speed_up
from sessionary.schemas.types import SeqRange


class Sample(NamedTuple):
    first: object
    second: object
    third: object = 2.5
    fourth: object = ()


class BelowSample(Sample):
    pass


def plain_class() -> Any:
    """A class like the other one, which nothing finds in a module."""

    class Sample(NamedTuple):
        first: object
        second: object
        third: object = 2.5
        fourth: object = ()

    return Sample


def outcome(make: Callable[[Any], object], cls: Any) -> object:
    try:
        made = make(cls)
    except (TypeError, ValueError) as error:
        return type(error), str(error).replace("plain_class.<locals>.", "")
    return type(made) is cls, repr(made), gc.is_tracked(made)


CALLS: list[Callable[[Any], object]] = [
    lambda cls: cls(1, 2),
    lambda cls: cls(1, 2, 3, 4),
    lambda cls: cls(1, second="b"),
    lambda cls: cls(fourth=4, third=3, second=2, first=1),
    lambda cls: cls(*[1, 2], **{"".join(["thi", "rd"]): 3}),
    lambda cls: cls(),
    lambda cls: cls(1),
    lambda cls: cls(second=2),
    lambda cls: cls(1, 2, first=3),
    lambda cls: cls(1, 2, fifth=3),
    lambda cls: cls(1, 2, 3, 4, 5),
    lambda cls: cls(1, 2, 3, 4, first=5),
    lambda cls: cls(1, 2)._replace(),
    lambda cls: cls(1, 2)._replace(first=[], fourth="d"),
    lambda cls: cls(1, 2)._replace(**{"".join(["sec", "ond"]): 3}),
    lambda cls: cls(1, 2)._replace(fifth=3),
    lambda cls: cls(1, 2)._replace(first=2, fifth=3),
    lambda cls: cls(1, 2)._replace(3),
    lambda cls: cls._replace(cls(1, 2), first=3),
    lambda cls: cls._make([1, 2, 3, 4]),
    lambda cls: cls._make([1, 2]),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_class_that_was_sped_up_takes_the_same_calls(number: int) -> None:
    speed_up(__name__)
    assert outcome(CALLS[number], Sample) == outcome(CALLS[number], plain_class())


def test_an_instance_of_a_class_that_was_sped_up_is_like_any_other() -> None:
    speed_up(__name__)
    sample = Sample(1, [2])
    assert pickle.loads(pickle.dumps(sample)) == copy.deepcopy(sample) == (1, [2], 2.5, ())
    assert hash(Sample(1, 2)) == hash((1, 2, 2.5, ()))
    below = BelowSample(1, 2)
    assert type(below) is type(below._replace(first=3)) is BelowSample
    assert below._replace(first=3) == (3, 2, 2.5, ())
    replaced = sample._replace(first=5)
    assert (sample, replaced) == ((1, [2], 2.5, ()), (5, [2], 2.5, ()))


def test_the_named_fields_are_replaced_in_the_order_of_the_names() -> None:
    replace_fields = make_replacer(SeqRange, "last", "first")
    assert replace_fields(SeqRange(1, 2), 8, 7) == SeqRange(first=7, last=8)
    assert type(make_replacer(SeqRange, "last")(SeqRange(1, 2), 3)) is SeqRange


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_as_many_values_as_names_are_needed(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="argument"):
        make_replacer(SeqRange, "last", "first")(SeqRange(1, 2), *values)
