"""Fields of a row are replaced by place, as `_replace` does by name."""

import pytest

from sessionary.schemas.fast_replace import make_replacer
from sessionary.schemas.types import SeqRange


def test_the_named_fields_are_replaced_in_the_order_of_the_names() -> None:
    replace_fields = make_replacer(SeqRange, "last", "first")
    assert replace_fields(SeqRange(1, 2), 8, 7) == SeqRange(first=7, last=8)


@pytest.mark.parametrize("values", [(), (1,), (1, 2, 3)])
def test_as_many_values_as_names_are_needed(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="argument"):
        make_replacer(SeqRange, "last", "first")(SeqRange(1, 2), *values)
