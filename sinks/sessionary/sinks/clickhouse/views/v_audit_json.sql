CREATE OR REPLACE VIEW {database}.v_audit_json AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq,
    toJSONString(CAST(
        (
            session_id,
            (
                toString(from_state), toString(to_state),
                concat(replaceOne(toString(occurred_at), ' ', 'T'), 'Z'),
                reason, arrayMap(x -> toString(x), cleanup_actions)
            ),
            arrayMap(x -> toString(x), compliance_tags)
        ),
        'Tuple(session_id String, state_transition Tuple(`from` String, `to` String, `timestamp` String, reason String, cleanup_actions Array(String)), compliance_tags Array(String))'
    )) AS json
FROM {database}.audit FINAL
WHERE kind = 'transition'
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_audit_json
    MODIFY COMMENT 'each transition as the JSON document of the audit contract',
    COMMENT COLUMN time 'log time of the record: a condition on this column reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN json 'the transition as a JSON document';
