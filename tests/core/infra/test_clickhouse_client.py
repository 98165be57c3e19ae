"""What the commands' client makes of ClickHouse's answers."""

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.settings import ClickHouseSettings
from tests.core.infra.cut_server import serve_cut_answers


def test_an_answer_that_ends_early_is_no_answer() -> None:
    with serve_cut_answers(b'{"n": 1}\n', missing=9) as url:
        client = ClickHouseClient(ClickHouseSettings(clickhouse_url=url))
        with pytest.raises(Unavailable, match=r"does not answer \(its answer ended 9 bytes early\)"):
            client.fetch_rows("SELECT n FROM numbers")
        with pytest.raises(Unavailable):
            list(client.iter_rows("SELECT n FROM numbers", "CSV"))
