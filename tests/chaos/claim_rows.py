"""What ClickHouse has of the sessions that were claimed from frozen agents, beside what Kafka has.

Analysts see owners, fenced writers, versions of the content and calls in views and tables; each
must say the same as the log.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.auditor.checks import Difference
from tests.auditor.decoding import Row, numbered_events
from tests.auditor.evidence import Evidence, query_rows
from tests.auditor.take_overs import Session, Trail, read_trails

# What is asked → SQL; `where` chooses the session.
_QUERIES = {
    "owners": "SELECT epoch, service_id, how FROM v_session_owners WHERE {where} ORDER BY epoch",
    "fenced": "SELECT service_id, reason, events FROM v_foreign_writers WHERE {where} ORDER BY service_id, reason",
    "versions": "SELECT state_version AS version, service_id FROM history FINAL WHERE {where} "
    "AND event_type = 'state_updated' AND (source_partition, source_offset) NOT IN "
    "(SELECT source_partition, source_offset FROM rejected WHERE {where}) ORDER BY source_offset",
    "calls": "SELECT idem_key, state, effects FROM v_reserved_calls WHERE {where}",
    "gaps": "SELECT count() AS lines, max(audit_seq) AS last FROM audit FINAL WHERE {where} AND audit_seq > 0",
}
_REPORTED_REASONS = ("stale_epoch", "not_owner", "not_member", "foreign_tenant", "key_mismatch", "producer_conflict")
ClaimRows = Mapping[str, Sequence[Row]]
"""The rows of one session, by what was asked."""


def find_disagreeing_rows(evidence: Evidence, url: str) -> list[Difference]:
    """Return in what ClickHouse's rows of the claimed sessions are not what the log says.

    Raises `OSError`.
    """
    trails = read_trails(evidence, numbered_events(evidence.log))
    return [
        Difference("take-over", text)
        for claim in evidence.claims
        for text in find_row_differences(
            trails, claim, read_claim_rows(lambda sql: query_rows(url, sql), claim["session_id"])
        )
    ]


def read_claim_rows(query: Callable[[str], list[Row]], session_id: str) -> ClaimRows:
    """Ask ClickHouse about one session, in the database of the sinks. Raises `OSError`."""
    return {name: query(sql.format(where=f"session_id = '{session_id}'")) for name, sql in _QUERIES.items()}


def find_row_differences(trails: Mapping[Session, Trail], claim: Row, rows: ClaimRows) -> Iterator[str]:
    """Yield in what the rows of a claimed session are not what the log says of it."""
    trail = trails.get((claim["tenant_id"], claim["session_id"]), Trail())
    fenced = [(*names, count) for names, count in sorted(trail.fenced.items()) if names[1] in _REPORTED_REASONS]
    (lines,) = rows["gaps"]
    compared: tuple[tuple[str, object, object], ...] = (
        (
            "owners",
            [(int(row["epoch"]), row["service_id"]) for row in rows["owners"]],
            [(epoch, owner) for epoch, names in sorted(trail.owners.items()) for owner in sorted(names)],
        ),
        ("fenced writers", [(row["service_id"], row["reason"], int(row["events"])) for row in rows["fenced"]], fenced),
        (
            "versions",
            [(int(row["version"]), row["service_id"]) for row in rows["versions"]],
            [(version, service) for _, version, service in trail.versions],
        ),
        ("calls", _calls_in(rows["calls"]), [(claim["key"], "succeeded", 1)]),
        ("audit lines", (int(lines["lines"]), int(lines["last"])), (len(trail.epochs), len(trail.epochs))),
        ("take-overs", "taken_over" in [row["how"] for row in rows["owners"]], True),
    )
    for what, found, wanted in compared:
        if found != wanted:
            yield f"session {claim['session_id']}: ClickHouse has the {what} {found}, not {wanted}"


def _calls_in(rows: Iterable[Row]) -> list[tuple[str, str, int]]:
    return [(row["idem_key"], row["state"], int(row["effects"])) for row in rows]
