-- The first record of an epoch names the session's owner in this epoch.
CREATE OR REPLACE VIEW {database}.v_session_owners AS
SELECT
    o.since AS time, o.tenant_id AS tenant_id, o.session_id AS session_id, o.epoch AS epoch, o.service_id AS service_id,
    o.how AS how, o.since AS since,
    if(o.next_since = toDateTime64(0, 6, 'UTC'), NULL, o.next_since) AS until
FROM
(
    SELECT
        tenant_id, session_id, epoch, service_id, how, since,
        leadInFrame(since) OVER (PARTITION BY tenant_id, session_id ORDER BY epoch ASC
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_since
    FROM
    (
        SELECT
            tenant_id, session_id, epoch, argMin(assumeNotNull(a.owner_service), audit_seq) AS service_id,
            argMin(multiIf(kind = 'migration', 'migrated', kind = 'take_over', 'taken_over', a.transition = 'T01', 'created',
                a.transition = 'T11', 'recovered', 'resumed'), audit_seq) AS how,
            min(toDateTime64(appended_at, 6, 'UTC')) AS since
        FROM {database}.audit AS a FINAL
        WHERE session_id != '' AND audit_seq > 0 AND a.owner_service IS NOT NULL
        GROUP BY tenant_id, session_id, epoch
    )
) AS o
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_session_owners
    MODIFY COMMENT 'each epoch of a session: its owner, its beginning and its end',
    COMMENT COLUMN time 'the same as since',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN epoch 'number of the epoch, from 1',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN how 'beginning of the epoch: created, resumed, recovered, taken_over or migrated',
    COMMENT COLUMN since 'log time of the beginning',
    COMMENT COLUMN until 'log time at which the next epoch began; null for the last one';
