"""The audit records of callers of the control API, in ClickHouse."""

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.stream_processors.core.model import Place
from sessionary.stream_processors.core.trail import ACCESS_N, Access, access_record
from tests.integration.test_sinks_views import insert, migrated, selected
from tests.support.sink_records import NOW_US, batch_record

__all__ = ["migrated"]  # the fixture


def test_an_access_is_in_its_tenants_trail_and_breaks_no_numbering(migrated: ClickHouseSettings) -> None:
    insert(
        migrated,
        [
            batch_record(0, 1, first_offset=20, last_offset=20, applied=0, ticks=1, audited=3),
            batch_record(0, 2, first_offset=21, last_offset=21, applied=0, ticks=1, audited=1),
        ],
    )
    asked = [("acme", "ann", 1), ("acme", "bob", 1), ("zeta", "eve", 1), ("acme", "ann", 2)]
    lines = [
        access_record(
            Access(tenant, principal, "unknown_session", "requests: 1"),
            Place(0, 19 + number, ACCESS_N + n, NOW_US // 1_000, number),
        )
        for n, (tenant, principal, number) in enumerate(asked)
    ]
    insert(migrated, lines, "accesses")
    kept = (
        "SELECT tenant_id, actor, security FROM {db}.audit FINAL WHERE kind = 'access' ORDER BY source_offset, source_n"
    )
    assert [(row["tenant_id"], row["actor"]) for row in selected(migrated, kept)] == [
        (tenant, principal) for tenant, principal, _ in asked
    ]
    assert selected(migrated, "SELECT * FROM {db}.v_integrity WHERE fault != 'history_rows_missing'") == []
    assert selected(migrated, "SELECT * FROM {db}.v_sessions") == []
