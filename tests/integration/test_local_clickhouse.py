"""The local ClickHouse endpoint, through the driver of production and through plain HTTP."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import random
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError
from pydantic import SecretStr

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.environment import read_environment
from sessionary.infra.local import process as server_module
from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse, clickhouse_answers
from sessionary.infra.local.errors import StartFailed
from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.full_disk import may_mount, start_small_clickhouse
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_ROWS = 50_000
_INSERT = {"async_insert": 0, "insert_deduplicate": 1, "deduplicate_blocks_in_dependent_materialized_views": 1}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalClickHouse]:
    folder = tmp_path_factory.mktemp("clickhouse")
    server = LocalClickHouse(folder / "data", None, folder / "clickhouse.log")
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def _client(endpoint: LocalClickHouse, password: str = "", database: str = "default") -> Client:
    return clickhouse_connect.get_client(host=LOOPBACK, port=endpoint.port, password=password, database=database)


@pytest.fixture
def client(endpoint: LocalClickHouse) -> Iterator[Client]:
    with _client(endpoint) as driver:
        yield driver


@pytest.fixture
def table(client: Client) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    client.command(
        f"CREATE TABLE {name} (n UInt64, s String) ENGINE = MergeTree ORDER BY n "
        "SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1"
    )
    yield name
    client.command(f"DROP TABLE {name}")


def _rows(first: int, count: int) -> list[list[object]]:
    return [[number, f"value {number}"] for number in range(first, first + count)]


def _insert(client: Client, table: str, rows: Sequence[Sequence[object]], token: str) -> None:
    client.insert(table, rows, column_names=["n", "s"], settings={**_INSERT, "insert_deduplication_token": token})


def _free_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def _count(client: Client, table: str) -> object:
    return client.command(f"SELECT count() FROM {table}")


def _http(
    endpoint: LocalClickHouse,
    method: str,
    body: bytes | Iterator[bytes] = b"",
    params: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, endpoint.port, timeout=120)
    try:
        chunked = not isinstance(body, bytes)
        sent = {**(headers or {}), **({"Transfer-Encoding": "chunked"} if chunked else {})}
        connection.request(method, "/?" + urlencode(params or {}), body, sent, encode_chunked=chunked)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def test_n_rows_inserted_are_n_rows_stored_whatever_the_compression(endpoint: LocalClickHouse, table: str) -> None:
    for place, compress in enumerate(("lz4", "zstd", "gzip", False)):
        with clickhouse_connect.get_client(host=LOOPBACK, port=endpoint.port, compress=compress) as driver:
            _insert(driver, table, _rows(place * _ROWS, _ROWS), f"token {place}")
            found = driver.query(f"SELECT count(), uniqExact(n), sum(n), countIf(s != 'value ' || n) FROM {table}")
            total = (place + 1) * _ROWS
            assert found.result_rows == [(total, total, total * (total - 1) // 2, 0)]


def test_a_token_counts_once_and_views_count_it_once(client: Client, table: str) -> None:
    client.command(
        f"CREATE TABLE {table}_sums (n UInt64) ENGINE = MergeTree ORDER BY n "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    client.command(f"CREATE MATERIALIZED VIEW {table}_view TO {table}_sums AS SELECT n FROM {table}")
    for token in ("a", "a", "b", "a"):
        _insert(client, table, _rows(0, _ROWS), token)
    assert _count(client, table) == 2 * _ROWS
    assert _count(client, f"{table}_sums") == 2 * _ROWS
    client.command(f"DROP VIEW {table}_view")
    client.command(f"DROP TABLE {table}_sums")


def test_tokens_in_the_statement_and_in_the_url_are_the_same(
    endpoint: LocalClickHouse, client: Client, table: str
) -> None:
    data = b'{"n":1,"s":"a"}\n{"n":2,"s":"b"}\n'
    inside = f"INSERT INTO {table} (n, s) SETTINGS insert_deduplication_token = 'x' FORMAT JSONEachRow\n".encode()
    outside = f"INSERT INTO {table} (n, s) FORMAT JSONEachRow"
    status, headers, _ = _http(endpoint, "POST", inside + data)
    assert status == 200
    assert json.loads(headers["X-ClickHouse-Summary"])["written_rows"] == "2"
    in_url = {"query": outside, "insert_deduplication_token": "x"}
    assert _http(endpoint, "POST", data, in_url)[0] == 200
    assert _count(client, table) == 2
    chunks = iter([data[:7], data[7:]])
    assert _http(endpoint, "POST", chunks, {**in_url, "insert_deduplication_token": "y"})[0] == 200
    packed = gzip.compress(data)
    third = {**in_url, "insert_deduplication_token": "z"}
    assert _http(endpoint, "POST", packed, third, {"Content-Encoding": "gzip"})[0] == 200
    assert _count(client, table) == 6


def test_a_body_cut_short_stores_nothing(endpoint: LocalClickHouse, client: Client, table: str) -> None:
    native = client.raw_query("SELECT number AS n, toString(number) AS s FROM numbers(1000)", fmt="Native")
    query = {"query": f"INSERT INTO {table} (n, s) FORMAT Native"}
    status, headers, text = _http(endpoint, "POST", native[:-3], query)
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "33")
    assert text.startswith(b"Code: 33. DB::Exception")
    assert _count(client, table) == 0
    assert _http(endpoint, "POST", native, query)[0] == 200
    assert _count(client, table) == 1000


def test_a_body_that_its_client_breaks_off_stores_nothing(
    endpoint: LocalClickHouse, client: Client, table: str
) -> None:
    where = "/?" + urlencode({"query": f"INSERT INTO {table} (n, s) FORMAT TSV"})
    for framing in (b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n100\r\n"):
        with socket.create_connection((LOOPBACK, endpoint.port), timeout=120) as raw:
            raw.sendall(f"POST {where} HTTP/1.1\r\n".encode() + framing + b"1\ta\n2\tb\n")
            raw.shutdown(socket.SHUT_WR)
            assert raw.makefile("rb").read().startswith(b"HTTP/1.1 400 ")
    assert _count(client, table) == 0


def test_an_insert_that_a_view_refuses_is_an_error(endpoint: LocalClickHouse, client: Client, table: str) -> None:
    client.command(f"CREATE TABLE {table}_odd (n UInt64) ENGINE = MergeTree ORDER BY n")
    client.command(
        f"CREATE MATERIALIZED VIEW {table}_view TO {table}_odd AS SELECT n + throwIf(n = 7) AS n FROM {table}"
    )
    try:
        with pytest.raises(DatabaseError) as caught:
            _insert(client, table, _rows(0, 10), "a")
        assert caught.value.code == 395
    finally:
        client.command(f"DROP VIEW {table}_view")
        client.command(f"DROP TABLE {table}_odd")


@pytest.mark.skipif(not may_mount(), reason="needs a user namespace that may mount")
def test_on_a_full_disk_an_insert_is_an_error_and_its_repetition_stores_each_row_once(
    processes: Processes, tmp_path: Path
) -> None:
    port, ballast = start_small_clickhouse(processes, tmp_path / "data")
    rows = [[number, random.Random(number).randbytes(10_000).hex()] for number in range(400)]
    settings = {"min_insert_block_size_rows": 100, "max_insert_block_size": 100}

    def insert(driver: Client) -> None:
        driver.insert("t", rows, ["n", "s"], settings={**_INSERT, **settings, "insert_deduplication_token": "a"})

    with clickhouse_connect.get_client(host=LOOPBACK, port=port) as driver:
        driver.command(
            "CREATE TABLE t (n UInt64, s String) ENGINE = MergeTree ORDER BY n "
            "SETTINGS non_replicated_deduplication_window = 1000"
        )
        ballast.write_bytes(bytes(_free_bytes(ballast.parent) - (4 << 20)))  # a part of the blocks may fit
        statements = (
            "INSERT INTO t SELECT number, randomString(20000) FROM numbers(400)",
            f"INSERT INTO t VALUES (1, '{'x' * 8_000_000}')",
        )
        attempts: list[Callable[[], object]] = [partial(driver.command, text) for text in statements]
        for attempt in (lambda: insert(driver), *attempts):
            with pytest.raises(DatabaseError) as caught:
                attempt()
            assert caught.value.code == 243
        ballast.unlink()
        insert(driver)
        insert(driver)
        found = driver.query("SELECT count(), uniqExact(n), sum(n) FROM t").result_rows
    assert found == [(400, 400, sum(range(400)))]


def test_settings_and_database_of_a_request_do_not_reach_the_next(endpoint: LocalClickHouse, client: Client) -> None:
    ask = "SELECT getSetting('max_block_size'), getSetting('insert_deduplication_token'), currentDatabase()"
    before = client.query(ask).result_rows
    client.command("CREATE DATABASE IF NOT EXISTS other")
    with _client(endpoint, database="other") as driver:
        settings = {"max_block_size": 777, "insert_deduplication_token": "leaked"}
        assert driver.query(ask, settings=settings).result_rows == [(777, "leaked", "other")]
        client.command("SET max_block_size = 555")
        client.command("USE other")
        assert client.query(ask).result_rows == before
        assert driver.query(ask).result_rows == [(before[0][0], before[0][1], "other")]
    client.command("DROP DATABASE other")


def test_parameters_arrive_as_they_were(client: Client) -> None:
    texts = ["it's", "line\nbreak", "tab\tbed", "back\\slash", "a\\nb", "grüße 🎈", "{}"]
    found = [client.query("SELECT {text:String}", parameters={"text": text}).result_rows[0][0] for text in texts]
    assert found == texts


def test_formats_by_statement_parameter_and_header(endpoint: LocalClickHouse) -> None:
    ask = b"SELECT 1 AS a"
    assert _http(endpoint, "POST", ask)[2] == b"1\n"
    assert _http(endpoint, "POST", ask + b" FORMAT CSVWithNames")[2] == b'"a"\n1\n'
    assert _http(endpoint, "POST", ask, {"default_format": "JSONEachRow"})[2] == b'{"a":1}\n'
    status, headers, body = _http(endpoint, "POST", ask, headers={"X-ClickHouse-Format": "JSONEachRow"})
    assert (status, body, headers["X-ClickHouse-Format"]) == (200, b'{"a":1}\n', "JSONEachRow")
    assert headers["X-ClickHouse-Timezone"] == "UTC"
    assert _http(endpoint, "POST", ask, {"query_id": "mine"})[1]["X-ClickHouse-Query-Id"] == "mine"
    assert _http(endpoint, "GET", params={"query": "SELECT 2"})[2] == b"2\n"


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELECT * FROM missing", 60, 404),
        ("SELECT nothing", 47, 404),
        ("SELECT * FROM missing.t", 81, 404),
        ("SELECT 1 +", 62, 400),
        ("SELECT 1; SELECT 2", 62, 400),
        ("SELECT throwIf(1)", 395, 500),
        ("CREATE TABLE k (a Int8) ENGINE = Kafka('b', 't', 'g', 'JSON')", 344, 501),
        ("INSERT INTO missing FORMAT JSONEachRow\n{}", 60, 404),
    ],
)
def test_errors_carry_clickhouse_codes(
    endpoint: LocalClickHouse, client: Client, sql: str, code: int, status: int
) -> None:
    got, headers, text = _http(endpoint, "POST", sql.encode())
    assert (got, headers["X-ClickHouse-Exception-Code"]) == (status, str(code))
    assert text.startswith(f"Code: {code}. DB::Exception".encode())
    with pytest.raises(DatabaseError) as caught:
        client.raw_query(sql)
    assert caught.value.code == code


def test_get_changes_nothing(endpoint: LocalClickHouse, client: Client, table: str) -> None:
    status, headers, _ = _http(endpoint, "GET", params={"query": f"TRUNCATE TABLE {table}"})
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (400, "164")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    ],
)
def test_broken_framing_ends_the_connection(endpoint: LocalClickHouse, request_bytes: bytes) -> None:
    with socket.create_connection((LOOPBACK, endpoint.port), timeout=120) as raw:
        raw.sendall(request_bytes + b"GET /ping HTTP/1.1\r\n\r\n")
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Ok." not in answer


def test_clients_at_the_same_time_do_not_disturb_each_other(
    endpoint: LocalClickHouse, client: Client, table: str
) -> None:
    failures: list[str] = []

    def work(worker: int) -> None:
        with _client(endpoint) as driver:
            for batch in range(10):
                first = (worker * 10 + batch) * 1000
                _insert(driver, table, _rows(first, 1000), f"{worker}-{batch}")
                mine = driver.query(
                    f"SELECT count(), getSetting('max_block_size') FROM {table} WHERE n >= {worker * 10_000} "
                    f"AND n < {(worker + 1) * 10_000}",
                    settings={"max_block_size": 1000 + worker},
                ).result_rows
                if mine != [((batch + 1) * 1000, 1000 + worker)]:
                    failures.append(f"worker {worker} batch {batch}: {mine}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert client.query(f"SELECT count(), uniqExact(n) FROM {table}").result_rows == [(40_000, 40_000)]


def test_a_refreshable_view_refreshes(client: Client, table: str) -> None:
    # Refreshable views need an Atomic database, which the engine's `default` is not.
    database = f"{table}_db"
    client.command(f"CREATE DATABASE {database}")
    view = f"{database}.fresh"
    client.command(
        f"CREATE MATERIALIZED VIEW {view} REFRESH EVERY 1 HOUR ENGINE = MergeTree ORDER BY c "
        f"AS SELECT count() AS c FROM default.{table}"
    )
    client.command(f"SYSTEM WAIT VIEW {view}")
    _insert(client, table, _rows(0, 10), "a")
    client.command(f"SYSTEM REFRESH VIEW {view}")
    client.command(f"SYSTEM WAIT VIEW {view}")
    assert client.query(f"SELECT c FROM {view}").result_rows == [(10,)]
    client.command(f"DROP DATABASE {database}")


def test_acknowledged_rows_and_tokens_survive_kill_9(tmp_path: Path) -> None:
    server = LocalClickHouse(tmp_path / "data", None, tmp_path / "log")
    acknowledged, counted = 0, "SELECT count(), uniqExact(n) FROM t"
    try:
        server.start()
        server.wait_ready()
        with _client(server) as driver:
            driver.command(
                "CREATE TABLE t (n UInt64, s String) ENGINE = MergeTree ORDER BY n "
                "SETTINGS non_replicated_deduplication_window = 10000"
            )
        for _ in range(3):
            killer = threading.Timer(0.4, server.kill)
            with _client(server) as driver:
                killer.start()
                with suppress(OperationalError):
                    while True:
                        _insert(driver, "t", _rows(acknowledged * 1000, 1000), f"t-{acknowledged}")
                        acknowledged += 1
            killer.join()
            server.start()
            server.wait_ready()
            with _client(server) as driver:
                whole = [(acknowledged * 1000,) * 2], [((acknowledged + 1) * 1000,) * 2]  # with the interrupted insert
                assert driver.query(counted).result_rows in whole
                for batch in range(acknowledged + 1):
                    _insert(driver, "t", _rows(batch * 1000, 1000), f"t-{batch}")
                # A kill before its rows are kept leaves the token alone: it is dropped as known.
                if driver.query(counted).result_rows == whole[0]:
                    _insert(driver, "t", _rows(acknowledged * 1000, 1000), f"t-{acknowledged} again")
                assert driver.query(counted).result_rows == whole[1]
                acknowledged += 1
    finally:
        server.kill()


def test_a_password_is_asked_for_in_each_of_its_forms(tmp_path: Path) -> None:
    server = LocalClickHouse(tmp_path / "data", None, tmp_path / "log", password="open sesame")
    server.start()
    try:
        server.wait_ready()
        with _client(server, password="open sesame") as driver:
            assert driver.command("SELECT 1") == 1
        with pytest.raises(DatabaseError) as caught:
            _client(server, password="wrong")
        assert caught.value.code == 516
        status, headers, _ = _http(server, "POST", b"SELECT 1")
        assert (status, headers["X-ClickHouse-Exception-Code"]) == (401, "516")
        basic = base64.b64encode(b"me:open sesame").decode()
        for given in (
            {"Authorization": f"Basic {basic}"},
            {"Authorization": "Bearer open sesame"},
            {"X-ClickHouse-Key": "open sesame"},
        ):
            assert _http(server, "POST", b"SELECT 1", headers=given)[0] == 200
        assert _http(server, "POST", b"SELECT 1", {"password": "open sesame"})[0] == 200
        for given in ({"Authorization": "Basic !"}, {"Authorization": "Bearer open"}, {"X-ClickHouse-Key": "ü"}):
            assert _http(server, "POST", b"SELECT 1", headers=given)[0] == 401
    finally:
        server.stop()


def test_the_command_makes_a_password_and_keeps_it_beside_the_data(processes: Processes, tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    program = ["-m", "sessionary.infra.cli", "serve", "clickhouse", "--data", str(data), "--port", str(port)]
    processes.run([sys.executable, *program], name="clickhouse")
    wait_until(lambda: clickhouse_answers(port), 60, "the endpoint to answer")
    url, password = f"http://{LOOPBACK}:{port}", read_environment(data)["SESSIONARY_CLICKHOUSE_PASSWORD"]
    with pytest.raises(SettingsError, match="password is incorrect"):
        ClickHouseClient(ClickHouseSettings(clickhouse_url=url)).server_version()
    ClickHouseClient(ClickHouseSettings(clickhouse_url=url, clickhouse_password=SecretStr(password))).server_version()


def test_a_page_of_another_site_is_refused_before_anything_runs(endpoint: LocalClickHouse, client: Client) -> None:
    client.command("CREATE TABLE kept (n UInt64) ENGINE = MergeTree ORDER BY n")
    try:
        for headers in (
            {"Host": f"evil.example:{endpoint.port}"},
            {"Origin": "https://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            for method in ("GET", "POST"):
                status, _, text = _http(endpoint, method, params={"query": "DROP TABLE kept"}, headers=headers)
                assert status == 403
                assert b"127.0.0.1" in text or b"password" in text
        assert _count(client, "kept") == 0
    finally:
        client.command("DROP TABLE kept")


def test_a_locked_folder_names_its_holder(endpoint: LocalClickHouse, tmp_path: Path) -> None:
    folder = endpoint.data
    second = LocalClickHouse(folder, None, tmp_path / "log")
    second.start()
    try:
        with pytest.raises(StartFailed, match=f"is held by process {endpoint.pid}:"):
            second.wait_ready()
    finally:
        second.kill()


def test_a_stop_closes_the_folder_and_keeps_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_STOP_GRACE_S", 180.0)  # a busy machine is not killed
    server = LocalClickHouse(tmp_path / "data", None, tmp_path / "log")
    server.start()
    try:
        server.wait_ready()
        address = server.url
        with _client(server) as driver:
            driver.command("CREATE TABLE t (n UInt64) ENGINE = MergeTree ORDER BY n")
            driver.insert("t", [[1]], column_names=["n"])
        server.stop()
        assert server._child is not None
        assert (server.pid, server._child.exit_code) == (None, 0)
        server.start()
        server.wait_ready()
        assert server.url == address
        with _client(server) as driver:
            assert driver.command("SELECT count() FROM t") == 1
    finally:
        server.stop()
    assert (tmp_path / "log").read_text() == ""
