CREATE OR REPLACE VIEW {database}.v_handovers AS
SELECT
    h.time AS time, h.tenant_id AS tenant_id, h.session_id AS session_id, ifNull(h.from_agent_id, '') AS from_agent_id,
    h.agent_id AS to_agent_id, h.sync_type AS sync_type, ifNull(h.from_snapshot, s.to_snapshot) AS from_snapshot,
    h.context AS context, if(t.event_id = '', NULL, t.time) AS taken_at,
    dateDiff('millisecond', h.time, taken_at) / 1e3 AS wait_s, h.event_id AS event_id, h.source_partition AS source_partition, h.source_offset AS source_offset
FROM (SELECT *, ifNull(from_agent_id, '') AS giver FROM {database}.v_agent_events WHERE event_type = 'context_synced') AS h
ASOF LEFT JOIN (SELECT * FROM {database}.v_agent_events WHERE event_type != 'context_synced') AS s
    ON h.tenant_id = s.tenant_id AND h.session_id = s.session_id AND h.giver = s.agent_id
        AND h.source_offset >= s.source_offset
ASOF LEFT JOIN (SELECT * FROM {database}.v_agent_events WHERE event_type = 'agent_task_updated') AS t
    ON h.tenant_id = t.tenant_id AND h.session_id = t.session_id AND h.agent_id = t.agent_id
        AND h.source_offset < t.source_offset;

ALTER TABLE {database}.v_handovers
    MODIFY COMMENT 'each hand-over between two agents of a session, and how long it waited for its taker',
    COMMENT COLUMN time 'log time of the event',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN from_agent_id 'the giver',
    COMMENT COLUMN to_agent_id 'the taker',
    COMMENT COLUMN sync_type 'reason code',
    COMMENT COLUMN from_snapshot 'snapshot of the giver that the taker received',
    COMMENT COLUMN context 'passed context besides the shared results, as JSON; null without any, or once personal data has expired',
    COMMENT COLUMN taken_at 'log time at which the taker reported a task; null while the hand-over waits',
    COMMENT COLUMN wait_s 'seconds from the hand-over until then; null while it waits',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
