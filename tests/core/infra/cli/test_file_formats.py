"""What a query is asked before it is written, and CSV whose texts have many lines."""

import re
import time

import pytest

from sessionary.infra.cli.file_formats import find_bytes, guard_csv
from sessionary.infra.clickhouse_client import Row
from sessionary.schemas.errors import Invalid

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


class Describing:
    """A server that describes a query as two texts, or refuses it; keeps what it was asked."""

    def __init__(self, *names: str) -> None:
        self.names, self.asked = names, ""

    def fetch_rows(self, sql: str, **_: object) -> list[Row]:
        self.asked = sql
        if not self.names:
            raise Invalid("invalid_value", "ClickHouse: Syntax error")
        if sql.startswith("DESCRIBE"):
            return [{"name": name, "type": "String"} for name in self.names]
        return [dict.fromkeys(re.findall(r"AS `([^`]+)`", sql), 0)]


def test_no_name_of_a_check_hides_a_column() -> None:
    server = Describing("c1", "c0")
    assert find_bytes(server, "SELECT 'x' AS c1, 'y' AS c0") == {}
    assert not {*re.findall(r"AS `?(\w+)`?", server.asked.partition(" FROM ")[0])} & {"c0", "c1"}


@pytest.mark.parametrize("query", ["SELECT 1 FORMAT CSV", "SELECT 1\nformat JSONEachRow\n"])
def test_a_format_within_the_statement_is_named(query: str) -> None:
    with pytest.raises(Invalid, match="remove FORMAT from the statement"):
        find_bytes(Describing(), query)
    with pytest.raises(Invalid, match="Syntax error"):
        find_bytes(Describing(), "SELECT FROM")
