"""What a batch adds to and drops from the index of children counts for it at once."""

import pytest

from sessionary.schemas.ids import call_key, run_key, step_key
from sessionary.stream_processors.core.committed import ChildChanges, ChildIndex

RUN, OTHER = run_key("acme", "s", "r1"), run_key("acme", "s", "r2")
STEP, CALL = step_key(RUN, "a"), call_key(RUN, "k")


def test_a_child_is_found_by_its_parents_key() -> None:
    index = ChildIndex()
    for key in (STEP, CALL, step_key(OTHER, "a")):
        index.add(key)
    assert index.keys_of(RUN) == [STEP, CALL]
    assert index.keys_of(OTHER) == [step_key(OTHER, "a")]
    index.drop(RUN)
    assert index.keys_of(RUN) == []
    index.drop(RUN)


def test_what_a_batch_does_reaches_the_index_with_the_merge() -> None:
    index = ChildIndex()
    index.add(STEP)
    changes = ChildChanges(index)
    changes.add(CALL)
    assert changes.keys_of(RUN) == [STEP, CALL]
    assert index.keys_of(RUN) == [STEP]
    changes.merge()
    assert index.keys_of(RUN) == [STEP, CALL]


def test_a_parent_that_comes_again_has_its_new_children_only() -> None:
    index = ChildIndex()
    index.add(STEP)
    changes = ChildChanges(index)
    changes.add(CALL)
    changes.drop(RUN)
    assert changes.keys_of(RUN) == []
    changes.add(STEP)
    assert changes.keys_of(RUN) == [STEP]
    changes.merge()
    assert index.keys_of(RUN) == [STEP]


def test_children_are_counted_with_those_of_the_batch() -> None:
    index = ChildIndex()
    index.add(STEP)
    index.add(step_key(OTHER, "a"))
    changes = ChildChanges(index)
    changes.add(CALL)
    assert (index.count(RUN), changes.count(RUN), changes.count(b"none")) == (1, 2, 0)
    changes.drop(RUN)
    assert changes.count(RUN) == 0
    changes.add(STEP)
    assert changes.count(RUN) == 1
    changes.merge()
    assert (index.count(RUN), index.count(OTHER)) == (1, 1)


def test_only_children_are_taken() -> None:
    index = ChildIndex()
    with pytest.raises(ValueError, match="no key of a child"):
        index.add(RUN)
    with pytest.raises(ValueError, match="no key of a child"):
        ChildChanges(index).add(RUN)
