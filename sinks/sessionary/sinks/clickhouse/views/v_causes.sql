-- The cause of an event is the event that it names. The cause of a decision is the fired deadline or the judged event.
CREATE OR REPLACE VIEW {database}.v_causes AS
SELECT
    d.time AS time, d.tenant_id AS tenant_id, d.session_id AS session_id, d.run_id AS run_id, d.event_type AS event_type,
    d.name AS name, d.number AS number, d.state AS state, d.actor AS actor, d.reason AS reason,
    multiIf(d.fired_at IS NOT NULL, 'deadline', c.type != '', c.type, '') AS cause, d.cause_id AS cause_id, c.payload AS cause_inputs,
    d.inputs AS inputs, d.source_partition AS source_partition, d.source_offset AS source_offset
FROM
(
    SELECT
        toDateTime64(time, 6, 'UTC') AS time, tenant_id, session_id, run_id, event_type, toString(name) AS name, number,
        toString(state) AS state, ifNull(actor, agent_id) AS actor, JSONExtractString(payload_json, 'reason') AS reason,
        ifNull(causation_id, '') AS cause_id, CAST(NULL, 'Nullable(DateTime64(6, \'UTC\'))') AS fired_at, payload_json AS inputs,
        source_partition, source_offset
    FROM {database}.v_run_events
    UNION ALL
    SELECT
        appended_at, tenant_id, session_id, ifNull(run_id, ''), event_type, toString(coalesce(tool_name, step_name, '')),
        ifNull(step_attempt, 0),
        toString(multiIf(kind = 'run', ifNull(to_run_state, ''), kind = 'tool_call', ifNull(to_call_state, ''),
            kind = 'step', ifNull(to_step_state, ''), to_state)),
        if(fired_at IS NULL AND kind = 'transition', coalesce(actor, agent_id, 'processor'), 'processor'), reason, ifNull(event_id, ''), fired_at,
        toJSONString(map('reason_code', toString(reason_code), 'due_at', ifNull(toString(due_at), ''),
            'idem_key', ifNull(idem_key, ''))), source_partition, source_offset
    FROM {database}.audit FINAL
    WHERE kind IN ('transition', 'run', 'tool_call', 'step')
) AS d
LEFT JOIN
(
    SELECT
        tenant_id, session_id, event_id, any(toString(event_type)) AS type, any(payload_json) AS payload
    FROM {database}.history
    WHERE event_id != '' AND event_type != 'heartbeat'
    GROUP BY tenant_id, session_id, event_id
) AS c ON c.tenant_id = d.tenant_id AND c.session_id = d.session_id AND c.event_id = d.cause_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_causes
    MODIFY COMMENT 'causes: each event of a run, and each decision of a processor, with its cause, actor and inputs',
    COMMENT COLUMN time 'log time of the event, or of the record at which the decision was made',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN run_id 'run; empty without one',
    COMMENT COLUMN event_type 'type of the event or decision',
    COMMENT COLUMN name 'name of the step or tool',
    COMMENT COLUMN number 'attempt of the step, or try of the call',
    COMMENT COLUMN state 'state after the event or decision',
    COMMENT COLUMN actor 'author: a person or an agent, or processor for a clock',
    COMMENT COLUMN reason 'reason in words',
    COMMENT COLUMN cause 'type of the causing event, or deadline for a clock; empty if unknown',
    COMMENT COLUMN cause_id 'id of the causing event',
    COMMENT COLUMN cause_inputs 'payload of the causing event',
    COMMENT COLUMN inputs 'payload of the event; for a decision its reason code, its deadline and its call',
    COMMENT COLUMN source_partition 'partition of the events topic',
    COMMENT COLUMN source_offset 'offset in that partition';
