"""The document for analysts names every table and view, and each of its queries runs."""

import re
from pathlib import Path

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from tests.support.pipelines import run_sql

DOCUMENT = Path(__file__).parents[2] / "docs" / "clickhouse.md"


def test_the_document_names_what_is_there_and_its_questions_are_answered(clickhouse: ClickHouseSettings) -> None:
    migrate.apply_migrations(clickhouse)
    text = DOCUMENT.read_text("utf-8")
    database = clickhouse.clickhouse_database
    there = set(run_sql(clickhouse, f"SELECT name FROM system.tables WHERE database = '{database}'").split())
    named = set(re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE))
    assert {name for cell in named for name in re.findall(r"`(\w+)`", cell)} == there
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(questions) > 5
    for question in questions:
        ask = re.sub(r"\b(FROM|JOIN) (\w+)", rf"\1 {database}.\2", question)
        run_sql(clickhouse, ask)  # raises if the engine refuses it
