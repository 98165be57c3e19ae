-- Figures that stay true as rows grow old. What figures need of a payload has a column of its own, without a TTL. The
-- server makes it of payload_json when a row is inserted, whichever release's sink inserts it. Rows that are stored
-- already have it as soon as it is added: it is made of payload_json when it is read, and stored by the next merge, also by
-- one that blanks payload_json.

ALTER TABLE {database}.history
    ADD COLUMN IF NOT EXISTS model LowCardinality(Nullable(String))
        DEFAULT if(event_type = 'usage_recorded', JSONExtract(payload_json, 'model', 'Nullable(String)'), NULL) AFTER payload_json,
    ADD COLUMN IF NOT EXISTS tokens_in Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tokens_in'), 0) AFTER model,
    ADD COLUMN IF NOT EXISTS tokens_out Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tokens_out'), 0) AFTER tokens_in,
    ADD COLUMN IF NOT EXISTS model_cost_usd_micros Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'model_cost_usd_micros'), 0) AFTER tokens_out,
    ADD COLUMN IF NOT EXISTS tool_cost_usd_micros Int64
        DEFAULT if(event_type = 'usage_recorded', JSONExtractInt(payload_json, 'tool_cost_usd_micros'), 0)
        AFTER model_cost_usd_micros,
    ADD COLUMN IF NOT EXISTS is_timeout_retry Bool
        DEFAULT if(event_type = 'usage_recorded', JSONExtractBool(payload_json, 'is_timeout_retry'), false)
        AFTER tool_cost_usd_micros,
    ADD COLUMN IF NOT EXISTS execution_time_ms Nullable(Int64)
        DEFAULT if(event_type IN ('tool_call_succeeded', 'tool_call_failed', 'step_succeeded'),
            JSONExtract(payload_json, 'execution_time_ms', 'Nullable(Int64)'), NULL)
        AFTER is_timeout_retry,
    ADD COLUMN IF NOT EXISTS state_bytes Nullable(UInt64)
        DEFAULT multiIf(event_type = 'state_updated', length(JSONExtractString(payload_json, 'state_json')),
            event_type IN ('session_created', 'snapshot_created'),
            length(JSONExtractString(payload_json, 'snapshot', 'state_json')), NULL)
        AFTER execution_time_ms;

-- Stores what is made of payload_json while it is there. A column that is stored already keeps its value, so this may run
-- again. (MATERIALIZE COLUMN would make it anew, of a payload that may be gone by then.) It happens in the background.
ALTER TABLE {database}.history
    UPDATE
        model = model, tokens_in = tokens_in, tokens_out = tokens_out, model_cost_usd_micros = model_cost_usd_micros,
        tool_cost_usd_micros = tool_cost_usd_micros, is_timeout_retry = is_timeout_retry,
        execution_time_ms = execution_time_ms, state_bytes = state_bytes
    WHERE event_type IN ('usage_recorded', 'tool_call_succeeded', 'tool_call_failed', 'step_succeeded', 'state_updated',
        'session_created', 'snapshot_created')
    SETTINGS mutations_sync = 0;

-- A refused event stays marked for as long as its row of history can live: of a refusal, place, time and reason stay, and
-- the rest goes after the time of before. With settings that keep history for longer than 8 years, sessionary db migrate
-- keeps the marks for longer too. Free text, which may hold personal data, goes with the personal columns. Rows that are
-- stored already are changed in the background, after the values above are stored: a change of a TTL would wait for that.
ALTER TABLE {database}.rejected
    MODIFY COLUMN tenant_id TTL toDateTime(retain_until),
    MODIFY COLUMN session_id TTL toDateTime(retain_until),
    MODIFY COLUMN event_id TTL toDateTime(retain_until),
    MODIFY COLUMN event_type TTL toDateTime(retain_until),
    MODIFY COLUMN service_id TTL toDateTime(retain_until),
    MODIFY COLUMN key TTL personal_expires,
    MODIFY COLUMN headers TTL personal_expires,
    MODIFY TTL toDateTime(appended_at) + INTERVAL 2923 DAY
    SETTINGS materialize_ttl_after_modify = 0;
ALTER TABLE {database}.audit MODIFY COLUMN reason TTL personal_expires SETTINGS materialize_ttl_after_modify = 0;
ALTER TABLE {database}.history MODIFY COLUMN headers TTL personal_expires SETTINGS materialize_ttl_after_modify = 0;
ALTER TABLE {database}.sink_dead_letters
    MODIFY COLUMN key TTL personal_expires,
    MODIFY COLUMN headers TTL personal_expires
    SETTINGS materialize_ttl_after_modify = 0;
ALTER TABLE {database}.rejected MATERIALIZE TTL SETTINGS mutations_sync = 0;
ALTER TABLE {database}.audit MATERIALIZE TTL SETTINGS mutations_sync = 0;
ALTER TABLE {database}.history MATERIALIZE TTL SETTINGS mutations_sync = 0;
ALTER TABLE {database}.sink_dead_letters MATERIALIZE TTL SETTINGS mutations_sync = 0;

-- The views. `time` is the log's time of a row wherever a view has one row per record, and a condition on it reads the
-- partitions of that time only. A view that groups rows cannot be told a time by a condition: its sibling ..._between takes
-- it (`from` inclusive, `to` exclusive), and the view itself is that over all time. Names of before stay beside `time`.
-- Rows of one identity are of one partition of a table, so FINAL need not compare those of different ones.

-- One row per call: an event counts once, however often it was delivered, and only if it was not refused. A refusal names
-- the record by place and time: a topic that was made again has the same places. Numbers below zero, which older rules
-- accepted, count as 0. No FINAL: few calls have several rows. `copies` finds them by a hash, and only they are grouped, which
-- takes a third of the time.
CREATE OR REPLACE VIEW {database}.v_usage_calls_between AS
WITH
calls AS
(
    SELECT
        appended_at, tenant_id, session_id, user_id, agent_id, service_id, run_id, step_id, model,
        greatest(tokens_in, 0) AS tokens_in, greatest(tokens_out, 0) AS tokens_out,
        greatest(model_cost_usd_micros, 0) AS model_cost_usd_micros,
        greatest(tool_cost_usd_micros, 0) AS tool_cost_usd_micros, is_timeout_retry,
        producer_id, producer_seq, cityHash64(tenant_id, session_id, producer_id, producer_seq) AS call_hash
    FROM {database}.history
    WHERE event_type = 'usage_recorded'
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        AND (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        )
),
(
    SELECT groupArray(call_hash) FROM (SELECT call_hash FROM calls GROUP BY call_hash HAVING count() > 1)
) AS copies
SELECT
    appended_at AS time, tenant_id, session_id, user_id, agent_id, service_id, run_id, step_id, model, tokens_in, tokens_out,
    model_cost_usd_micros, tool_cost_usd_micros, is_timeout_retry
FROM calls
WHERE empty(copies) OR call_hash NOT IN (SELECT arrayJoin(copies))
UNION ALL
SELECT
    min(appended_at), tenant_id, session_id, any(user_id), any(agent_id), any(service_id), any(run_id), any(step_id),
    any(model), any(tokens_in), any(tokens_out), any(model_cost_usd_micros), any(tool_cost_usd_micros), any(is_timeout_retry)
FROM calls
WHERE notEmpty(copies) AND call_hash IN (SELECT arrayJoin(copies))
GROUP BY tenant_id, session_id, producer_id, producer_seq;

CREATE OR REPLACE VIEW {database}.v_usage_calls AS
SELECT * FROM {database}.v_usage_calls_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_usage_between AS
SELECT
    tenant_id, service_id, count() AS calls, sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out,
    sum(c.model_cost_usd_micros) AS model_cost_usd_micros, sum(c.tool_cost_usd_micros) AS tool_cost_usd_micros,
    countIf(is_timeout_retry) AS timeout_retries,
    sumIf(c.model_cost_usd_micros + c.tool_cost_usd_micros, is_timeout_retry) AS timeout_retry_cost_usd_micros,
    if(model_cost_usd_micros + tool_cost_usd_micros = 0, NULL,
        timeout_retry_cost_usd_micros / (model_cost_usd_micros + tool_cost_usd_micros)) AS timeout_retry_share
FROM {database}.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS c
GROUP BY tenant_id, service_id;

CREATE OR REPLACE VIEW {database}.v_usage AS
SELECT * FROM {database}.v_usage_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_usage_by_between AS
SELECT
    toStartOfDay(c.time) AS time, toDate(time) AS day, tenant_id, service_id, model, session_id, user_id, agent_id,
    count() AS calls, sum(c.tokens_in) AS tokens_in, sum(c.tokens_out) AS tokens_out,
    sum(c.model_cost_usd_micros) AS model_cost_usd_micros, sum(c.tool_cost_usd_micros) AS tool_cost_usd_micros,
    countIf(is_timeout_retry) AS timeout_retries,
    sumIf(c.model_cost_usd_micros + c.tool_cost_usd_micros, is_timeout_retry) AS timeout_retry_cost_usd_micros
FROM {database}.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS c
GROUP BY time, tenant_id, service_id, model, session_id, user_id, agent_id;

CREATE OR REPLACE VIEW {database}.v_usage_by AS
SELECT * FROM {database}.v_usage_by_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

-- What agents did: one row per event of a session but heartbeats, with its payload unpacked. Of work that has a beginning
-- and an end (tool calls, steps, runs), the end has the duration: as reported, or from the beginning, if that is within the
-- time. Payloads are read once per row, and only if a column of theirs is asked for.
CREATE OR REPLACE VIEW {database}.v_activity_between AS
SELECT
    h.appended_at AS time, h.occurred_at AS occurred_at, h.tenant_id AS tenant_id, h.session_id AS session_id,
    h.event_type AS event_type, h.p.kind AS kind,
    arrayFirst(x -> x != '', [h.p.tool_name, h.p.name, h.p.task, h.p.operation, h.p.role, h.p.prompt_name]) AS name,
    arrayFirst(x -> x != '', [h.p.text, h.p.message, h.p.content, h.p.output_text, h.p.reason, h.p.error.message]) AS text,
    h.p.error.error_class AS error_class, h.p.error.code AS error_code,
    h.p.progress AS progress, toUInt32(greatest(h.p.try_number, h.p.attempt)) AS try_number,
    if(h.event_type = 'usage_recorded', h.model, nullIf(h.p.model, '')) AS model,
    h.tokens_in AS tokens_in, h.tokens_out AS tokens_out, h.model_cost_usd_micros AS model_cost_usd_micros,
    h.tool_cost_usd_micros AS tool_cost_usd_micros, h.is_timeout_retry AS is_timeout_retry,
    multiIf(h.execution_time_ms IS NOT NULL, h.execution_time_ms / 1e3,
        h.is_end AND b.began_at > 0, (toUnixTimestamp64Micro(h.occurred_at) - b.began_at) / 1e6, NULL) AS duration_s,
    h.run_id AS run_id, h.step_id AS step_id, nullIf(h.p.tool_call_id, '') AS tool_call_id,
    h.user_id AS user_id, h.agent_id AS agent_id, h.agent_role AS agent_role, h.service_id AS service_id,
    h.actor AS actor, h.epoch AS epoch, h.producer_id AS producer_id, h.producer_seq AS producer_seq,
    h.event_id AS event_id, h.context_bytes AS context_bytes,
    (h.source_partition, h.source_offset, h.appended_at) IN
    (
        SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
        FROM {database}.rejected
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    ) AS is_refused,
    h.source_partition AS source_partition, h.source_offset AS source_offset
FROM
(
    SELECT
        *,
        JSONExtract(payload_json, 'Tuple(kind String, tool_name String, name String, task String, operation String,
            role String, prompt_name String, text String, message String, content String, output_text String, reason String,
            error Tuple(error_class String, code String, message String), progress Nullable(Float64), try_number Int32,
            attempt Int32, model String, tool_call_id String)') AS p,
        event_type IN ('tool_call_succeeded', 'tool_call_failed', 'tool_call_unknown', 'tool_call_resolved',
            'step_succeeded', 'step_failed', 'run_completed', 'run_failed', 'run_cancelled') AS is_end,
        multiIf(event_type LIKE 'tool\_call\_%', concat('tool ', p.tool_call_id),
            event_type LIKE 'step\_%', concat('step ', ifNull(run_id, ''), ' ', ifNull(step_id, p.name), ' ', toString(p.attempt)),
            event_type LIKE 'run\_%', concat('run ', ifNull(run_id, '')), '') AS work
    FROM {database}.history FINAL
    WHERE session_id != '' AND decode_error = '' AND event_type != 'heartbeat'
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS h
LEFT JOIN
(
    SELECT
        tenant_id, session_id,
        multiIf(event_type = 'tool_call_started', concat('tool ', JSONExtractString(payload_json, 'tool_call_id')),
            event_type = 'step_started', concat('step ', ifNull(run_id, ''), ' ',
                ifNull(step_id, JSONExtractString(payload_json, 'name')), ' ', JSONExtractRaw(payload_json, 'attempt')),
            concat('run ', ifNull(run_id, ''))) AS work,
        toUnixTimestamp64Micro(min(occurred_at)) AS began_at
    FROM {database}.history
    WHERE event_type IN ('tool_call_started', 'step_started', 'run_started')
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id, work
) AS b ON b.tenant_id = h.tenant_id AND b.session_id = h.session_id AND b.work = h.work
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.v_activity AS
SELECT * FROM {database}.v_activity_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

-- Sessions by the records of a time: of one that began before it or goes on after it, the figures are those of its records
-- within.
CREATE OR REPLACE VIEW {database}.v_sessions_between AS
SELECT
    a.last_at AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.user_id AS user_id, a.agent_id AS agent_id,
    a.owner_service AS service_id, a.first_state AS first_state, a.state AS state, a.reason AS reason,
    a.epoch AS epoch, a.version AS version,
    a.opened_at AS opened_at, a.last_at AS last_at, a.ended_at AS ended_at,
    dateDiff('microsecond', a.opened_at, ifNull(a.ended_at, a.last_at)) / 1e6 AS duration_s,
    a.transitions AS transitions, a.timeouts AS timeouts, a.refusals AS refusals, a.gaps AS gaps,
    a.missing_events AS missing_events,
    a.context_bytes_max AS context_bytes_max, h.events AS events, h.services AS services, h.agents AS agents
FROM
(
    SELECT
        tenant_id, session_id,
        anyLast(user_id) AS user_id, argMin(agent_id, audit_seq) AS agent_id,
        argMax(owner_service, audit_seq) AS owner_service,
        argMinIf(toString(to_state), audit_seq, kind = 'transition') AS first_state,
        argMaxIf(toString(to_state), audit_seq, kind = 'transition') AS state,
        argMaxIf(reason, audit_seq, kind = 'transition') AS reason,
        argMax(epoch, audit_seq) AS epoch, argMax(version, audit_seq) AS version,
        min(appended_at) AS opened_at, max(appended_at) AS last_at,
        minOrNullIf(appended_at, kind = 'transition' AND to_state = 'Terminated') AS ended_at,
        countIf(kind = 'transition') AS transitions,
        countIf(kind = 'transition' AND to_state = 'Timeout') AS timeouts,
        countIf(kind = 'refusal') AS refusals, countIf(kind = 'gap') AS gaps,
        toInt64(sumIf(assumeNotNull(gap_last) - assumeNotNull(gap_first) + 1, kind = 'gap'))
            - toInt64(countIf(kind = 'gap_filled')) AS missing_events,
        max(context_bytes) AS context_bytes_max
    FROM {database}.audit FINAL
    WHERE audit_seq > 0 AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id
) AS a
LEFT JOIN
(
    SELECT
        tenant_id, session_id, count() AS events,
        arraySort(groupUniqArray(toString(service_id))) AS services, arraySort(groupUniqArray(agent_id)) AS agents
    FROM {database}.history FINAL
    WHERE session_id != '' AND decode_error = ''
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
    GROUP BY tenant_id, session_id
) AS h ON h.tenant_id = a.tenant_id AND h.session_id = a.session_id
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.v_sessions AS
SELECT * FROM {database}.v_sessions_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_transitions AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq, transition, from_state, to_state, event_type, event_id,
    reason_code, reason, service_id, owner_service, agent_id, actor, epoch, version, cleanup_id, cleanup_actions,
    compliance_tags, occurred_at, appended_at, due_at, fired_at, source_partition, source_offset, source_n, batch_number
FROM {database}.audit FINAL
WHERE kind = 'transition'
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- Deadlines that fired on a session that was meant to go on, by their clock; archiving (T14) has a due time too, but is no
-- deadline of that kind.
CREATE OR REPLACE VIEW {database}.v_deadlines AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq,
    multiIf(transition = 'T03', 'initialisation', transition = 'T08', 'grace', transition = 'T09', 'hold',
        transition = 'T12', 'recovery', reason_code = 'inactive', 'inactivity', toString(reason_code)) AS clock,
    transition, from_state, to_state, owner_service AS service_id, reason_code, reason,
    assumeNotNull(due_at) AS due_at, assumeNotNull(fired_at) AS fired_at,
    dateDiff('microsecond', assumeNotNull(due_at), assumeNotNull(fired_at)) / 1e6 AS lateness_s
FROM {database}.audit AS a FINAL
-- Of the table by name: an alias above would hide the column, and assumeNotNull is never null.
WHERE kind = 'transition' AND a.due_at IS NOT NULL AND a.fired_at IS NOT NULL AND transition != 'T14'
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- Sessions that timed out: no other clock's deadlines.
CREATE OR REPLACE VIEW {database}.v_timeouts AS
SELECT * FROM {database}.v_deadlines WHERE to_state = 'Timeout';

-- One row per request of the time. `confirmed`: released by a handler, every action done. Host loss is told apart.
CREATE OR REPLACE VIEW {database}.v_cleanups_between AS
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

CREATE OR REPLACE VIEW {database}.v_cleanups AS
SELECT * FROM {database}.v_cleanups_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_uncleaned AS
SELECT time, tenant_id, session_id, cleanup_id, transition, service_id, reason_code, requested_at, context_bytes
FROM {database}.v_cleanups
WHERE NOT released;

-- One row per transaction whose acknowledgement is known.
CREATE OR REPLACE VIEW {database}.v_acknowledgements_between AS
SELECT min(at) AS time, partition, acknowledged_number AS number, time AS acknowledged_at
FROM
(
    SELECT partition, toUInt64(number - 1) AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS at
    FROM {database}.batches FINAL
    WHERE previous_acknowledged_at IS NOT NULL
        AND started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')} + INTERVAL 1 DAY
    UNION ALL
    SELECT partition, number AS acknowledged_number, acknowledged_at AS at
    FROM {database}.batch_acknowledgements FINAL
    WHERE acknowledged_at >= {from:DateTime('UTC')} AND acknowledged_at < {to:DateTime('UTC')} + INTERVAL 1 DAY
)
GROUP BY partition, acknowledged_number
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.v_acknowledgements AS
SELECT * FROM {database}.v_acknowledgements_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_transition_latency_between AS
SELECT
    a.time AS time, a.tenant_id AS tenant_id, a.session_id AS session_id, a.audit_seq AS audit_seq,
    a.transition AS transition, a.from_state AS from_state, a.to_state AS to_state, a.service_id AS service_id,
    a.timer AS timer, a.began_at AS began_at, b.acknowledged_at AS acknowledged_at,
    dateDiff('microsecond', a.began_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT
        appended_at AS time, tenant_id, session_id, audit_seq, transition, from_state, to_state,
        owner_service AS service_id, source_partition, batch_number, due_at IS NOT NULL AS timer,
        ifNull(due_at, appended_at) AS began_at
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
) AS a
INNER JOIN {database}.v_acknowledgements_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS b
    ON b.partition = a.source_partition AND b.number = a.batch_number
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.v_transition_latency AS
SELECT * FROM {database}.v_transition_latency_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

CREATE OR REPLACE VIEW {database}.v_audit_write_latency_between AS
SELECT
    a.started_at AS time, a.partition AS partition, a.number AS number, a.audited AS audited, a.started_at AS started_at,
    b.acknowledged_at AS acknowledged_at, dateDiff('microsecond', a.started_at, b.acknowledged_at) / 1e3 AS latency_ms
FROM
(
    SELECT partition, number, audited, started_at
    FROM {database}.batches FINAL
    WHERE audited > 0 AND started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
) AS a
INNER JOIN {database}.v_acknowledgements_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')}) AS b
    ON b.partition = a.partition AND b.number = a.number
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.v_audit_write_latency AS
SELECT * FROM {database}.v_audit_write_latency_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

-- What is left of a refusal after its time (see above) is no row here.
CREATE OR REPLACE VIEW {database}.v_rejected AS
SELECT
    appended_at AS time, appended_at, reason, detail, security, tenant_id, session_id, event_id, event_type, service_id,
    source_topic, source_partition, source_offset, length(value) AS value_bytes
FROM {database}.rejected FINAL
WHERE retain_until > now64(6)
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- The merged state beside its name in each source machine: the governance text, and machines A and B of the second.
CREATE OR REPLACE VIEW {database}.v_state_names AS
SELECT
    time, tenant_id, session_id, state,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['(before Active)', 'Active', 'Paused', 'Timeout', 'Active', 'Terminated', 'Archived'], '') AS name_000,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Initialising', 'Running', 'Paused', 'Paused', 'Running', 'Closed', 'Closed'], '') AS name_001_a,
    transform(state,
        ['Idle', 'Active', 'Paused', 'Timeout', 'Error', 'Terminated', 'Archived'],
        ['Idle', 'Active', 'Paused', 'Paused', 'Error', 'Idle', 'Idle'], '') AS name_001_b
FROM
(
    SELECT max(appended_at) AS time, tenant_id, session_id, argMax(toString(to_state), audit_seq) AS state
    FROM {database}.audit FINAL
    WHERE kind = 'transition' AND audit_seq > 0
    GROUP BY tenant_id, session_id
)
SETTINGS do_not_merge_across_partitions_select_final = 1;

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

-- One row per partition and version; the version's first record is the one at from_offset. Rules that replaced others
-- were activated by `principal`, with a record that the broker stamped `time`. The audit trail names the principal: a
-- record of the log may come from any client.
CREATE OR REPLACE VIEW {database}.v_rules AS
SELECT
    if(h.found, h.at, NULL) AS time, b.partition AS partition, b.from_offset AS from_offset, b.version AS version,
    d.principal AS principal, time AS at
FROM
(
    SELECT partition, rules AS version, min(first_offset) AS from_offset
    FROM {database}.batches FINAL
    GROUP BY partition, rules
) AS b
LEFT JOIN
(
    SELECT
        source_partition, toUInt32OrZero(extract(reason, '^rules (\\d+) begin')) AS version,
        argMin(ifNull(actor, ''), source_offset) AS principal
    FROM {database}.audit FINAL
    WHERE kind = 'decision' AND event_type = 'rules_announced'
    GROUP BY source_partition, version
) AS d ON d.source_partition = b.partition AND d.version = b.version
LEFT JOIN
(
    SELECT source_partition, source_offset, true AS found, appended_at AS at
    FROM {database}.history FINAL
    WHERE event_type = 'rules_activation'
) AS h ON h.source_partition = b.partition AND h.source_offset = b.from_offset
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- One row. Clean-up figures are over timed-out sessions (T06); a host that is gone reclaims nothing and is no failure
-- of a handler either: such clean-ups leave the rate's divisor, and are shown beside it. Bytes are those of the topics
-- that sinks read (the changelog is not), so the true share of audit traffic is not above `audit_io_share`.
CREATE OR REPLACE VIEW {database}.v_kpi AS
SELECT
    c.timed_out AS timed_out, c.reclaimed AS reclaimed, c.host_lost AS host_lost,
    c.timed_out - c.reclaimed - c.host_lost AS unreclaimed,
    if(c.timed_out = c.host_lost, NULL, c.reclaimed / (c.timed_out - c.host_lost)) AS reclaim_rate,
    c.latency_avg AS cleanup_latency_avg_s, c.latency_p95 AS cleanup_latency_p95_s, c.latency_p99 AS cleanup_latency_p99_s,
    b.audit AS audit_bytes, b.total AS total_bytes, if(b.total = 0, NULL, b.audit / b.total) AS audit_io_share
FROM
(
    SELECT
        count() AS timed_out, countIf(confirmed) AS reclaimed, countIf(host_lost) AS host_lost,
        avgOrNullIf(assumeNotNull(latency_s), confirmed) AS latency_avg,
        quantileExactOrNullIf(0.95)(assumeNotNull(latency_s), confirmed) AS latency_p95,
        quantileExactOrNullIf(0.99)(assumeNotNull(latency_s), confirmed) AS latency_p99
    FROM {database}.v_cleanups
    WHERE transition = 'T06'
) AS c
CROSS JOIN
(
    SELECT sumIf(bytes, audit) AS audit, sum(bytes) AS total
    FROM
    (
        SELECT sum(toUInt64(value_size)) AS bytes, true AS audit FROM {database}.audit FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.history FINAL
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.rejected FINAL WHERE retain_until > now64(6)
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batches FINAL
    )
) AS b
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- As in 0012, with costs and refusals as above: one row, without FINAL, from rows of the time alone.
CREATE OR REPLACE VIEW {database}.v_kpi_between AS
WITH
acknowledgements AS
(
    SELECT partition, acknowledged_number AS number, min(at) AS acknowledged_at
    FROM
    (
        SELECT partition, toUInt64(number - 1) AS acknowledged_number, assumeNotNull(previous_acknowledged_at) AS at
        FROM {database}.batches
        WHERE started_at >= {from:DateTime('UTC')} AND previous_acknowledged_at IS NOT NULL
        UNION ALL
        SELECT partition, number AS acknowledged_number, acknowledged_at AS at
        FROM {database}.batch_acknowledgements
        WHERE acknowledged_at >= {from:DateTime('UTC')}
    )
    GROUP BY partition, acknowledged_number
)
SELECT
    c.timed_out AS timed_out, c.reclaimed AS reclaimed, c.host_lost AS host_lost,
    if(c.timed_out = c.host_lost, NULL, c.reclaimed / (c.timed_out - c.host_lost)) AS reclaim_ratio,
    c.latency_avg AS cleanup_avg_s,
    c.latency_p50 AS cleanup_p50_s, c.latency_p95 AS cleanup_p95_s, c.latency_p99 AS cleanup_p99_s,
    t.latency_p50 AS transition_latency_p50_s, t.latency_p95 AS transition_latency_p95_s,
    t.latency_p99 AS transition_latency_p99_s,
    w.latency_p50 AS audit_write_latency_p50_s, w.latency_p95 AS audit_write_latency_p95_s,
    w.latency_p99 AS audit_write_latency_p99_s,
    if(b.total = 0, NULL, b.audit / b.total) AS audit_io_ratio,
    if(u.cost = 0, NULL, u.retry_cost / u.cost) AS timeout_retry_cost_ratio,
    x.context_bytes_max AS session_context_bytes_max
FROM
(
    SELECT
        count() AS timed_out, countIf(confirmed) AS reclaimed, countIf(host_gone) AS host_lost,
        avgOrNullIf(latency_s, confirmed) AS latency_avg,
        quantileExactOrNullIf(0.5)(latency_s, confirmed) AS latency_p50,
        quantileExactOrNullIf(0.95)(latency_s, confirmed) AS latency_p95,
        quantileExactOrNullIf(0.99)(latency_s, confirmed) AS latency_p99
    FROM
    (
        SELECT
            countIf(is_release) > 0 AS released,
            released AND argMinIf(host_lost, appended_at, is_release) AS host_gone,
            released AND NOT host_gone AND empty(argMinIf(actions_failed, appended_at, is_release)) AS confirmed,
            dateDiff('microsecond', minIf(requested_at, NOT is_release), minIf(appended_at, is_release)) / 1e6 AS latency_s
        FROM
        (
            SELECT
                tenant_id, session_id, cleanup_id, kind = 'release' AS is_release, host_lost, actions_failed, appended_at,
                ifNull(fired_at, appended_at) AS requested_at
            FROM {database}.audit
            WHERE appended_at >= {from:DateTime('UTC')} AND cleanup_id IS NOT NULL
                AND (kind = 'release' OR (kind = 'transition' AND transition = 'T06'
                    AND appended_at < {to:DateTime('UTC')} - toIntervalSecond({late_s:UInt32})))
        )
        GROUP BY tenant_id, session_id, cleanup_id
        HAVING countIf(NOT is_release) > 0
    )
) AS c
CROSS JOIN
(
    SELECT
        quantileExactOrNull(0.5)(latency_s) AS latency_p50, quantileExactOrNull(0.95)(latency_s) AS latency_p95,
        quantileExactOrNull(0.99)(latency_s) AS latency_p99
    FROM
    (
        SELECT dateDiff('microsecond', any(a.began_at), any(k.acknowledged_at)) / 1e6 AS latency_s
        FROM
        (
            SELECT
                tenant_id, session_id, audit_seq, source_partition, batch_number, ifNull(due_at, appended_at) AS began_at
            FROM {database}.audit
            WHERE kind = 'transition' AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        ) AS a
        INNER JOIN acknowledgements AS k ON k.partition = a.source_partition AND k.number = a.batch_number
        GROUP BY a.tenant_id, a.session_id, a.audit_seq
    )
) AS t
CROSS JOIN
(
    SELECT
        quantileExactOrNull(0.5)(latency_s) AS latency_p50, quantileExactOrNull(0.95)(latency_s) AS latency_p95,
        quantileExactOrNull(0.99)(latency_s) AS latency_p99
    FROM
    (
        SELECT dateDiff('microsecond', any(a.started_at), any(k.acknowledged_at)) / 1e6 AS latency_s
        FROM {database}.batches AS a
        INNER JOIN acknowledgements AS k ON k.partition = a.partition AND k.number = a.number
        WHERE a.audited > 0 AND a.started_at >= {from:DateTime('UTC')} AND a.started_at < {to:DateTime('UTC')}
        GROUP BY a.partition, a.number
    )
) AS w
CROSS JOIN
(
    SELECT sumIf(bytes, is_audit) AS audit, sum(bytes) AS total
    FROM
    (
        SELECT sum(toUInt64(value_size)) AS bytes, true AS is_audit FROM {database}.audit
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.history
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.rejected
        WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batches
        WHERE started_at >= {from:DateTime('UTC')} AND started_at < {to:DateTime('UTC')}
        UNION ALL
        SELECT sum(toUInt64(value_size)), false FROM {database}.batch_acknowledgements
        WHERE acknowledged_at >= {from:DateTime('UTC')} AND acknowledged_at < {to:DateTime('UTC')}
    )
) AS b
CROSS JOIN
(
    SELECT
        sum(model_cost_usd_micros + tool_cost_usd_micros) AS cost,
        sumIf(model_cost_usd_micros + tool_cost_usd_micros, is_timeout_retry) AS retry_cost
    FROM {database}.v_usage_calls_between(from = {from:DateTime('UTC')}, to = {to:DateTime('UTC')})
) AS u
CROSS JOIN
(
    SELECT max(context_bytes) AS context_bytes_max
    FROM {database}.history
    WHERE context_bytes IS NOT NULL
        AND appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        AND (source_partition, source_offset, appended_at) NOT IN
        (
            SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')
            FROM {database}.rejected
            WHERE appended_at >= {from:DateTime('UTC')} AND appended_at < {to:DateTime('UTC')}
        )
) AS x;

-- What a session's records take, by layer. 'state' is the content that processors hold for it until it is archived. The
-- others, 'history', 'audit' and 'rejected', are its records in these tables, with the unpacked bytes of Kafka.
CREATE OR REPLACE VIEW {database}.v_stored_bytes AS
SELECT h.tenant_id AS tenant_id, h.session_id AS session_id, 'state' AS layer, toUInt64(1) AS records, h.bytes AS bytes
FROM
(
    SELECT tenant_id, session_id, argMax(assumeNotNull(state_bytes), source_offset) AS bytes
    FROM {database}.history FINAL
    WHERE state_bytes IS NOT NULL
        AND (source_partition, source_offset, appended_at) NOT IN
            (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
    GROUP BY tenant_id, session_id
) AS h
LEFT ANTI JOIN
(
    SELECT tenant_id, session_id FROM {database}.audit FINAL WHERE kind = 'transition' AND to_state = 'Archived'
) AS d ON d.tenant_id = h.tenant_id AND d.session_id = h.session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'history', count(), sum(toUInt64(value_size))
FROM {database}.history FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT toString(tenant_id), session_id, 'audit', count(), sum(toUInt64(value_size))
FROM {database}.audit FINAL WHERE session_id != '' GROUP BY tenant_id, session_id
UNION ALL
SELECT ifNull(toString(tenant_id), ''), ifNull(session_id, ''), 'rejected', count(), sum(toUInt64(value_size))
FROM {database}.rejected FINAL WHERE session_id != '' AND retain_until > now64(6) GROUP BY tenant_id, session_id;
