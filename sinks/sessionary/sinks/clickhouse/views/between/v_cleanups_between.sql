-- One row per request of the period. `confirmed`: released by a handler, every action done. The loss of a host is
-- distinguished.
CREATE OR REPLACE VIEW {database}_between.v_cleanups_between AS
SELECT
    q.time AS time, q.tenant_id AS tenant_id, q.session_id AS session_id, q.cleanup_id AS cleanup_id,
    q.transition AS transition, q.service_id AS service_id, q.reason_code AS reason_code, q.requested_at AS requested_at,
    if(r.found, r.released_at, NULL) AS released_at,
    if(r.found, dateDiff('microsecond', q.requested_at, r.released_at) / 1e6, NULL) AS latency_s,
    r.found AS released, r.host_lost AS host_lost,
    r.found AND NOT r.host_lost AND empty(r.actions_failed) AS confirmed,
    q.cleanup_actions AS actions_requested, r.actions_done AS actions_done, r.actions_failed AS actions_failed,
    if(r.found, r.bytes_released, NULL) AS bytes_released, q.context_bytes AS context_bytes
FROM
(
    SELECT
        appended_at AS time, tenant_id, session_id, assumeNotNull(cleanup_id) AS cleanup_id, transition,
        owner_service AS service_id, reason_code, ifNull(fired_at, appended_at) AS requested_at, cleanup_actions,
        context_bytes
    FROM {database}.audit AS a FINAL
    WHERE kind = 'transition' AND a.cleanup_id IS NOT NULL
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS q
LEFT JOIN
(
    SELECT
        tenant_id, session_id, assumeNotNull(cleanup_id) AS cleanup_id, true AS found,
        min(appended_at) AS released_at, argMin(host_lost, appended_at) AS host_lost,
        argMin(actions_done, appended_at) AS actions_done, argMin(actions_failed, appended_at) AS actions_failed,
        argMin(bytes_released, appended_at) AS bytes_released
    FROM {database}.audit AS a FINAL
    WHERE kind = 'release' AND a.cleanup_id IS NOT NULL AND appended_at >= {from:DateTime('UTC')}
    GROUP BY tenant_id, session_id, cleanup_id
) AS r ON r.tenant_id = q.tenant_id AND r.session_id = q.session_id AND r.cleanup_id = q.cleanup_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}_between.v_cleanups_between
    MODIFY COMMENT 'v_cleanups of a time';
