"""CSV whose texts have many lines, as pretty-printed JSON of tools does."""

import time

from sessionary.infra.cli.file_formats import guard_csv

CHUNK = 1 << 16


def guard(text: bytes, size: int = CHUNK) -> bytes:
    return b"".join(guard_csv(text[at : at + size] for at in range(0, len(text), size)))


def test_a_text_of_many_lines_takes_no_longer_than_one_of_few() -> None:
    rows = b'"a","' + b'{\n ""k"": 1\n}\n' * 20_000 + b'"\n'
    began = time.process_time()
    assert guard(rows * 2) == rows * 2
    assert time.process_time() - began < 2


def test_an_end_of_line_within_a_text_ends_no_line_however_the_answer_is_cut() -> None:
    text = b'"n","t"\n1,"a\n=b"\n2,"""\n=c\n"""\n3,"\n"\n4,"=d\n"\n"",5'
    guarded = b'"n","t"\n1,"a\n=b"\n2,"""\n=c\n"""\n3,"\'\n"\n4,"\'=d\n"\n"",5'
    assert {guard(text, size) for size in range(1, len(text) + 1)} == {guarded}
