"""The asyncio faces are what the generator makes of the faces for threads."""

import pytest

from generation.async_faces import PRODUCERS, written_text
from generation.face_tables import FACES, SESSION, Face


@pytest.mark.parametrize("face", FACES, ids=[face.target for face in FACES])
def test_a_face_that_is_checked_in_is_the_one_that_is_made(face: Face) -> None:
    assert (PRODUCERS / face.target).read_text() == written_text(face), "run python -m generation.async_faces"


def test_another_signature_makes_another_face() -> None:
    kinds = {**SESSION.kinds, "snapshot": "end"}
    assert "end_anyway(self.core, Updates(self.core).snapshot" in written_text(SESSION._replace(kinds=kinds))
    assert "end_anyway(self.core, Updates(self.core).snapshot" not in written_text(SESSION)


def test_a_replacement_that_replaces_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError, match="xyzzy"):
        written_text(SESSION._replace(texts={"xyzzy": ""}))
