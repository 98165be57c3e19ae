"""The views of runs, steps, tool calls and artifacts have the columns that were asked for."""

from typing import NamedTuple

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings

# As the requirements list them: local tables, `plan` of the production tables, and artifacts.
TABLES = {
    "v_runs": "run_id tenant_id user_id status input plan created_at updated_at",
    "v_steps": "step_id run_id name state attempt input output error started_at finished_at",
    "v_reserved_calls": "id run_id step_id tool_name idem_key args result state created_at",
    "v_artifacts": "artifact_id run_id type uri hash",
}
OF_EACH = "tenant_id"  # as every row names its tenant
JSON = {"input", "plan", "output", "args", "result"}


class OtherName(NamedTuple):
    """A column that has another name than the requirements give it."""

    name: str
    reason: str


OTHER_NAMES = {
    ("v_reserved_calls", "id"): OtherName("tool_call_id", "the production tables have none: idem_key is their key"),
    ("v_artifacts", "type"): OtherName("artifact_type", "the events call it so, beside type of event and task_type"),
    ("v_artifacts", "hash"): OtherName("sha256", "it says which hash, so that people can check a body"),
}


@pytest.mark.parametrize("view", TABLES)
def test_a_view_has_the_names_and_meanings_of_the_required_columns(view: str, tables: ClickHouseSettings) -> None:
    found = ClickHouseClient(tables).fetch_rows(
        "SELECT name, type, comment FROM system.columns WHERE database = currentDatabase() AND table = {view:String}",
        view=view,
    )
    types, comments = ({row["name"]: row[of] for row in found} for of in ("type", "comment"))
    for wanted in (*TABLES[view].split(), OF_EACH):
        name, reason = OTHER_NAMES.get((view, wanted), (wanted, ""))
        assert name in types, f"{view} has no {wanted}"
        if reason:
            assert wanted not in types, f"{view} has {wanted} too, so another name needs no reason"
            assert wanted in comments[name], f"nothing says that {name} is {wanted}"
        if wanted in JSON:
            assert "as JSON" in comments[name]
        if wanted.endswith("_at"):
            assert "DateTime64(3, 'UTC')" in types[name]
