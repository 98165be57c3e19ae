"""The condition by which a view takes an event once, however often it was delivered."""

from typing import Final

# Each event that was judged and not rejected counts once. A late rejection counts too: rejections
# are looked up when the view is read. The first judged delivery of an event counts: a later one,
# after an applied or rejected one, is a duplicate without a record. The rejections that are listed
# by name left the number free for a later delivery, as do those of another session, whose record
# only claims to belong to this one.
_IS_FIRST_JUDGED: Final = """((source_partition, source_offset, appended_at) NOT IN
        (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
        AS is_kept)
    AND countIf(is_kept OR (source_partition, source_offset, appended_at, tenant_id, session_id) IN
    (
        SELECT
            source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC'),
            toString(tenant_id), toString(session_id)
        FROM {database}.rejected
        WHERE tenant_id IS NOT NULL AND session_id IS NOT NULL AND reason NOT IN ('unknown_session', 'wrong_partition',
            'late_filler', 'producer_conflict', 'too_many_producers', 'session_archived')
    )) OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq ORDER BY source_offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) = 0"""


def fill_first_judged(sql: str) -> str:
    """Return a view's SQL with the condition in place of `{is_first_judged}`.

    It is a window over rows of `history` or `run_events`, so it stands in an inner query, which has
    all deliveries of the events that it has.
    """
    return sql.replace("{is_first_judged}", _IS_FIRST_JUDGED)
