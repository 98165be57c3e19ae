import pytest

from sessionary.sinks.clickhouse.migrate import Migration, pending_migrations, shipped_migrations
from sessionary.sinks.errors import OperatorError

# Applied files never change: ClickHouse's table of migrations holds these checksums.
RELEASED = {
    "0001_tables": "212c9dc05d87db599d2595d6f0a0225f8f4353a661c9bf9c6a6f8daf086cf6d1",
    "0002_views": "c7557d0fc698b3e2edc46a667e4b8475aefa8b5a65c7a9c485977b0fef337a4c",
    "0003_usage": "e6183eaa0315124c986235928b260f13f6500868150279c172a21e8ee7bf285d",
    "0004_cheaper_inserts": "88d7afefcb6ad2b150ab59c893ef2cdac2f499f8856f1b1b626700f60a2635c5",
    "0005_fewer_merges": "fa515bd1fc075e50b2a949972129885109e0f1a84c1889a0c1f4f83e422358ee",
}


def test_a_released_migration_never_changes() -> None:
    shipped = {f"{migration.version:04d}_{migration.name}": migration.checksum for migration in shipped_migrations()}
    assert {name: shipped.get(name) for name in RELEASED} == RELEASED


def test_migrations_have_a_number_each_and_split_into_statements() -> None:
    shipped = shipped_migrations()
    numbers = [migration.version for migration in shipped]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1
    for migration in shipped:
        statements = migration.statements("db_x")
        assert statements
        assert all("{database}" not in statement and not statement.endswith(";") for statement in statements)


def test_a_changed_migration_is_an_error_and_a_newer_one_is_none() -> None:
    one, two = Migration(1, "a", "SELECT 1;\n"), Migration(2, "b", "SELECT 2;\n")
    assert pending_migrations([(1, one.checksum)], [one, two]) == [two]
    assert pending_migrations([(1, one.checksum), (2, two.checksum), (3, "x")], [one, two]) == []
    with pytest.raises(OperatorError, match="0001_a"):
        pending_migrations([(1, "other")], [one, two])
