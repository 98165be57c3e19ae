CREATE OR REPLACE VIEW {database}.v_transactions AS
SELECT
    max(appended_at) AS time, tenant_id, session_id, assumeNotNull(a.transaction_id) AS transaction_id,
    multiIf(countIf(event_type = 'txn_committed') > 0, 'committed', countIf(event_type = 'txn_rolled_back') > 0, 'rolled_back',
        'pending') AS status,
    argMax(a.reason_code, audit_seq) AS reason_code, argMax(a.reason, audit_seq) AS reason,
    argMin(ifNull(a.agent_id, ''), audit_seq) AS agent_id, argMin(ifNull(a.service_id, ''), audit_seq) AS service_id,
    min(appended_at) AS started_at,
    if(status = 'committed', max(appended_at), NULL) AS committed_at,
    if(status = 'rolled_back', max(appended_at), NULL) AS rolled_back_at,
    if(status = 'committed', max(a.version), NULL) AS version
FROM {database}.audit AS a FINAL
WHERE kind = 'transaction' AND a.transaction_id IS NOT NULL
GROUP BY tenant_id, session_id, a.transaction_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_transactions
    MODIFY COMMENT 'each transaction on a session''s content, with its begin and end',
    COMMENT COLUMN time 'log time of the latest record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN transaction_id 'id of the transaction',
    COMMENT COLUMN status 'pending, committed or rolled_back',
    COMMENT COLUMN reason_code 'begun, committed, rolled_back, expired or session_ended',
    COMMENT COLUMN reason 'reason in words',
    COMMENT COLUMN agent_id 'agent that began the transaction',
    COMMENT COLUMN service_id 'service of that agent',
    COMMENT COLUMN started_at 'log time of the begin',
    COMMENT COLUMN committed_at 'log time of the commit; null without one',
    COMMENT COLUMN rolled_back_at 'log time of the end without effect; null without one',
    COMMENT COLUMN version 'version of the content that the commit made; null without one';
