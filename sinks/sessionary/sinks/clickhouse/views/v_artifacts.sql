CREATE OR REPLACE VIEW {database}.v_artifacts AS
SELECT
    max(e.at) AS time, tenant_id, session_id, max(e.run_id) AS run_id, artifact_id,
    argMinIf(e.artifact_type, e.place, e.artifact_type != '') AS artifact_type,
    argMinIf(e.uri, e.place, e.uri != '') AS uri,
    nullIf(argMinIf(e.file_name, e.place, e.file_name != ''), '') AS file_name,
    nullIf(argMinIf(e.media_type, e.place, e.media_type != ''), '') AS media_type,
    multiIf(purged_at IS NOT NULL, 'purged', deleted_at IS NOT NULL, 'soft_deleted', completed_at IS NOT NULL, 'complete', 'open') AS state,
    argMaxIf(e.size_bytes, e.place, e.size_bytes IS NOT NULL) AS size_bytes,
    argMaxIf(e.sha256, e.place, e.sha256 IS NOT NULL) AS sha256,
    greatest(countIf(e.event_type = 'artifact_chunk_appended'), max(e.chunks)) AS chunks, min(e.created_at) AS created_at,
    max(e.completed_at) AS completed_at, min(e.deleted_at) AS deleted_at, max(e.purged_at) AS purged_at,
    min(e.personal_expires) AS personal_expires
FROM
(
    SELECT
        tenant_id, session_id, run_id, assumeNotNull(artifact_id) AS artifact_id, event_type, source_offset AS place, time AS at,
        if(event_type = 'artifact_created', toString(name), '') AS artifact_type,
        if(event_type = 'artifact_created', JSONExtractString(payload_json, 'uri'), '') AS uri,
        if(event_type = 'artifact_created', JSONExtractString(payload_json, 'file_name'), '') AS file_name,
        if(event_type = 'artifact_created', JSONExtractString(payload_json, 'media_type'), '') AS media_type,
        if(event_type = 'artifact_completed', bytes, NULL) AS size_bytes,
        if(event_type = 'artifact_completed', sha256, NULL) AS sha256, toUInt64(0) AS chunks, time AS created_at,
        if(event_type = 'artifact_completed', time, NULL) AS completed_at,
        if(event_type = 'artifact_soft_deleted', time, NULL) AS deleted_at,
        if(event_type = 'artifact_purged', time, NULL) AS purged_at, personal_expires
    FROM {database}.v_run_events AS v
    WHERE subject = 'artifact' AND v.artifact_id IS NOT NULL
    UNION ALL
    SELECT
        tenant_id, session_id, run_id, artifact_id, '', toUInt64(18446744073709551615), ifNull(purged_at, deleted_at),
        toString(artifact_type), uri, '', '', size_bytes, sha256, chunks, created_at, completed_at, toNullable(deleted_at), purged_at,
        toDateTime('2106-01-01 00:00:00', 'UTC')
    FROM {database}.artifact_deletions FINAL
) AS e
GROUP BY tenant_id, session_id, artifact_id;

ALTER TABLE {database}.v_artifacts
    MODIFY COMMENT 'each artifact: state, place, size and hash, also after the removal of its body',
    COMMENT COLUMN time 'log time of the latest event, or time of the mark or of the body''s removal',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run of the artifact; empty without a run',
    COMMENT COLUMN artifact_id 'id of the artifact',
    COMMENT COLUMN artifact_type 'type of the artifact',
    COMMENT COLUMN uri 'address of the body, also after its removal; empty if personal data expired before the mark',
    COMMENT COLUMN file_name 'name under which people know the content; null if none was given, or once its events have expired',
    COMMENT COLUMN media_type 'media type of the content; null if none was given, or once its events have expired',
    COMMENT COLUMN state 'open, complete, soft_deleted (marked) or purged (body removed)',
    COMMENT COLUMN size_bytes 'size of the body, once complete',
    COMMENT COLUMN sha256 'hash of the body, once complete',
    COMMENT COLUMN chunks 'number of appended chunks',
    COMMENT COLUMN created_at 'log time of the first event',
    COMMENT COLUMN completed_at 'time of the completion',
    COMMENT COLUMN deleted_at 'time of the mark as deleted, by an event or by the sweep',
    COMMENT COLUMN purged_at 'time of the body''s removal',
    COMMENT COLUMN personal_expires 'time at which personal columns are blanked; the end of time without personal data';
