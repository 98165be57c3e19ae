-- What each table, view and column holds. docs/clickhouse.md is drawn from these comments. A view ..._between has the columns
-- of the view that it is named after, and takes a time.

ALTER TABLE {database}.audit MODIFY COMMENT 'one row per transition, refusal, gap, release, exceeded limit or decision of an operator';
ALTER TABLE {database}.audit
    COMMENT COLUMN audit_id 'id of the audit record, the same at each replay',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN kind 'transition, refusal, gap, gap_filled, release, limit or decision',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event that caused it, or name of the decision',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN security 'whether the refusal suggests that the sender speaks for someone else',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN cleanup_actions 'actions that the clean-up asks for, not what was done',
    COMMENT COLUMN actions_done 'actions that a handler reports as done',
    COMMENT COLUMN actions_failed 'actions that a handler reports as failed',
    COMMENT COLUMN bytes_released 'bytes that the handler reports as released',
    COMMENT COLUMN host_lost 'whether the host is gone, so that no handler could run',
    COMMENT COLUMN compliance_tags 'tags of the laws that its classes of data fall under',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN agent_role 'role of that agent in the session',
    COMMENT COLUMN service_id 'service that sent the event that caused it',
    COMMENT COLUMN owner_service 'service that owned the session',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN epoch 'number of the session''s owner: each one that takes over raises it',
    COMMENT COLUMN version 'version of the session''s state',
    COMMENT COLUMN producer_id 'client that sent the event',
    COMMENT COLUMN producer_seq 'the event''s number among those of its producer, from 1 without gaps',
    COMMENT COLUMN gap_first 'first of a range: numbers of a producer''s events, or offsets that were skipped',
    COMMENT COLUMN gap_last 'last of that range',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported',
    COMMENT COLUMN occurred_at 'agent''s clock; of a timeout: its due time',
    COMMENT COLUMN appended_at 'log time of the record that caused it',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN source_n 'number among the outcomes of one record, from 0',
    COMMENT COLUMN batch_number 'number of the processor''s transaction in its partition',
    COMMENT COLUMN retention_class 'the law''s tag with the longest period, default, or idle for ticks and heartbeats',
    COMMENT COLUMN retain_until 'when the row may be deleted',
    COMMENT COLUMN personal_until 'when personal columns are emptied; null without personal data',
    COMMENT COLUMN personal_expires 'personal_until, or the end of time if that is null',
    COMMENT COLUMN src_topic 'topic that the row was read from',
    COMMENT COLUMN topic_id 'Kafka''s id of src_topic',
    COMMENT COLUMN src_partition 'partition that the row was read from',
    COMMENT COLUMN src_offset 'offset that the row was read from',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.batch_acknowledgements MODIFY COMMENT 'one row per report of the last transaction before a pause';
ALTER TABLE {database}.batch_acknowledgements
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction, as in batches',
    COMMENT COLUMN acknowledged_at 'when Kafka acknowledged the transaction',
    COMMENT COLUMN instance 'worker that wrote it',
    COMMENT COLUMN src_topic 'topic that the row was read from',
    COMMENT COLUMN topic_id 'Kafka''s id of src_topic',
    COMMENT COLUMN src_partition 'partition that the row was read from',
    COMMENT COLUMN src_offset 'offset that the row was read from',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.batches MODIFY COMMENT 'one row per transaction of a processor, with its counts and the version of its rules';
ALTER TABLE {database}.batches
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction in its partition, from 1 without gaps',
    COMMENT COLUMN first_offset 'first offset that it judged',
    COMMENT COLUMN last_offset 'last offset that it judged',
    COMMENT COLUMN applied 'events that it applied',
    COMMENT COLUMN duplicate 'events that had been applied before',
    COMMENT COLUMN refused 'events that it refused',
    COMMENT COLUMN audited 'audit records that it wrote',
    COMMENT COLUMN timers 'deadlines that it fired',
    COMMENT COLUMN ticks 'ticks that it read',
    COMMENT COLUMN started_at 'when it began, by the processor''s clock',
    COMMENT COLUMN previous_acknowledged_at 'when the transaction before it was acknowledged, if that is known',
    COMMENT COLUMN instance 'worker that wrote it',
    COMMENT COLUMN rules 'version of the rules that its records were judged by',
    COMMENT COLUMN src_topic 'topic that the row was read from',
    COMMENT COLUMN topic_id 'Kafka''s id of src_topic',
    COMMENT COLUMN src_partition 'partition that the row was read from',
    COMMENT COLUMN src_offset 'offset that the row was read from',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.history MODIFY COMMENT 'one row per record of the events topic, with those of processors (tick, rules_activation) and unreadable bytes';
ALTER TABLE {database}.history
    COMMENT COLUMN source_partition 'partition of the record in the events topic',
    COMMENT COLUMN source_offset 'offset of the record in the events topic',
    COMMENT COLUMN appended_at 'the log''s time of the record',
    COMMENT COLUMN decode_error 'why the bytes are no event; empty if they are one',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'tick for ticks, empty if undecodable',
    COMMENT COLUMN schema_version 'version of the event''s schema',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works; null once personal data has expired',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN agent_role 'role of that agent in the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN epoch 'number of the session''s owner: each one that takes over raises it',
    COMMENT COLUMN producer_id 'client that sent the event',
    COMMENT COLUMN producer_seq 'the event''s number among those of its producer, from 1 without gaps',
    COMMENT COLUMN run_id 'run that the event belongs to',
    COMMENT COLUMN run_seq 'the event''s number within its run',
    COMMENT COLUMN step_id 'step that the event belongs to',
    COMMENT COLUMN causation_id 'id of the event that caused this one',
    COMMENT COLUMN occurred_at 'agent''s clock',
    COMMENT COLUMN data_classes 'classes of the data in it, by which retention follows',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported',
    COMMENT COLUMN server_version 'version of the agent''s server, as reported',
    COMMENT COLUMN protocol_version 'version of its protocol, as reported',
    COMMENT COLUMN payload_json 'the event''s payload; texts are cut after 1,000 characters; empty once personal data has expired',
    COMMENT COLUMN model 'model that was called',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN is_timeout_retry 'whether the call repeats one that timed out',
    COMMENT COLUMN execution_time_ms 'reported time of a tool call or step in milliseconds',
    COMMENT COLUMN state_bytes 'size of the session''s content in bytes, of events that carry it whole',
    COMMENT COLUMN key_bytes 'the record''s key',
    COMMENT COLUMN value_bytes 'the record as Kafka delivered it; empty once personal data has expired',
    COMMENT COLUMN headers 'of an event: what they say beyond the envelope, all of them if they contradict it; empty once personal data has expired',
    COMMENT COLUMN retention_class 'the law''s tag with the longest period, default, or idle for ticks and heartbeats',
    COMMENT COLUMN retain_until 'when the row may be deleted',
    COMMENT COLUMN personal_until 'when personal columns are emptied; null without personal data',
    COMMENT COLUMN personal_expires 'personal_until, or the end of time if that is null',
    COMMENT COLUMN src_topic 'topic that the row was read from',
    COMMENT COLUMN topic_id 'Kafka''s id of src_topic',
    COMMENT COLUMN src_partition 'the same as source_partition',
    COMMENT COLUMN src_offset 'the same as source_offset',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.rejected MODIFY COMMENT 'one row per refused event, with its original bytes; after 365 days reason, place and time of it';
ALTER TABLE {database}.rejected
    COMMENT COLUMN reason 'why, as a fixed name; kept with place and time for as long as a row of history can live',
    COMMENT COLUMN detail 'why, in words; empty after 30 days',
    COMMENT COLUMN security 'whether the refusal suggests that the sender speaks for someone else',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN source_topic 'topic of the record that it is about',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN appended_at 'the log''s time of the record',
    COMMENT COLUMN key 'the record''s key; empty after 30 days',
    COMMENT COLUMN value 'the record''s bytes; empty after 30 days',
    COMMENT COLUMN headers 'headers of the record; empty after 30 days',
    COMMENT COLUMN retain_until 'when all but reason, place and time is emptied',
    COMMENT COLUMN personal_expires 'when key, value, headers and detail are emptied',
    COMMENT COLUMN src_topic 'topic that the row was read from',
    COMMENT COLUMN topic_id 'Kafka''s id of src_topic',
    COMMENT COLUMN src_partition 'partition that the row was read from',
    COMMENT COLUMN src_offset 'offset that the row was read from',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.retention_days MODIFY COMMENT 'one row per setting of retention that was changed';
ALTER TABLE {database}.retention_days
    COMMENT COLUMN table_name 'history, idle (ticks and heartbeats of the history) or batches',
    COMMENT COLUMN days 'days for which rows are kept',
    COMMENT COLUMN applied_at 'when it was applied';

ALTER TABLE {database}.schema_migrations MODIFY COMMENT 'one row per applied migration';
ALTER TABLE {database}.schema_migrations
    COMMENT COLUMN version 'number of the migration',
    COMMENT COLUMN name 'name of the migration',
    COMMENT COLUMN checksum 'SHA-256 of the file, hex',
    COMMENT COLUMN applied_at 'when it was applied';

ALTER TABLE {database}.sink_dead_letters MODIFY COMMENT 'one row per record that a sink could not store';
ALTER TABLE {database}.sink_dead_letters
    COMMENT COLUMN sink 'sink that could not store the record',
    COMMENT COLUMN reason 'why, as a fixed name',
    COMMENT COLUMN detail 'why, in words; empty after 30 days',
    COMMENT COLUMN source_topic 'topic of the record that it is about',
    COMMENT COLUMN topic_id 'Kafka''s id of source_topic',
    COMMENT COLUMN source_partition 'partition of that record',
    COMMENT COLUMN source_offset 'offset of that record',
    COMMENT COLUMN appended_at 'the log''s time of the record',
    COMMENT COLUMN key 'the record''s key; empty after 30 days',
    COMMENT COLUMN value 'the record''s bytes; empty after 30 days',
    COMMENT COLUMN headers 'headers of the record; empty after 30 days',
    COMMENT COLUMN retain_until 'when the row may be deleted',
    COMMENT COLUMN personal_expires 'personal_until, or the end of time if that is null',
    COMMENT COLUMN src_topic 'the same as source_topic',
    COMMENT COLUMN src_partition 'the same as source_partition',
    COMMENT COLUMN src_offset 'the same as source_offset',
    COMMENT COLUMN value_size 'bytes of the record''s key and value in Kafka',
    COMMENT COLUMN landed_at 'when the row was inserted, by ClickHouse''s clock';

ALTER TABLE {database}.v_acknowledgements MODIFY COMMENT 'when each transaction was acknowledged, as far as it is known';
ALTER TABLE {database}.v_acknowledgements
    COMMENT COLUMN time 'when Kafka acknowledged it',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction in its partition, from 1 without gaps',
    COMMENT COLUMN acknowledged_at 'the same as time; goes with the next release';

ALTER TABLE {database}.v_acknowledgements_between MODIFY COMMENT 'v_acknowledgements of a time';

ALTER TABLE {database}.v_activity MODIFY COMMENT 'what agents did: each event of a session but heartbeats, with its payload unpacked, and how long it took';
ALTER TABLE {database}.v_activity
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN occurred_at 'agent''s clock',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN kind 'kind of the activity, as reported: llm, tool, ...',
    COMMENT COLUMN name 'name of the tool, step, task, operation, role or prompt; empty once personal data has expired',
    COMMENT COLUMN text 'text, message, content or reason of the event; empty once personal data has expired',
    COMMENT COLUMN error_class 'class of the reported error',
    COMMENT COLUMN error_code 'code of the reported error',
    COMMENT COLUMN progress 'reported progress',
    COMMENT COLUMN try_number 'number of the try, from 1; 0 for events without tries',
    COMMENT COLUMN model 'model that was called or that decided',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN is_timeout_retry 'whether the call repeats one that timed out',
    COMMENT COLUMN duration_s 'of an end: seconds as reported, or from its beginning by the agent''s clock',
    COMMENT COLUMN run_id 'run that the event belongs to',
    COMMENT COLUMN step_id 'step that the event belongs to',
    COMMENT COLUMN tool_call_id 'id of the tool call',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN agent_role 'role of that agent in the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN epoch 'number of the session''s owner: each one that takes over raises it',
    COMMENT COLUMN producer_id 'client that sent the event',
    COMMENT COLUMN producer_seq 'the event''s number among those of its producer, from 1 without gaps',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported',
    COMMENT COLUMN is_refused 'whether the processor refused the event',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic';

ALTER TABLE {database}.v_activity_between MODIFY COMMENT 'v_activity of a time';

ALTER TABLE {database}.v_audit_json MODIFY COMMENT 'each transition as the JSON document of the audit contract';
ALTER TABLE {database}.v_audit_json
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN json 'the transition as a JSON document';

ALTER TABLE {database}.v_audit_write_latency MODIFY COMMENT 'time from a transaction''s start until it was acknowledged';
ALTER TABLE {database}.v_audit_write_latency
    COMMENT COLUMN time 'when the transaction began, by the processor''s clock',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction in its partition, from 1 without gaps',
    COMMENT COLUMN audited 'audit records that it wrote',
    COMMENT COLUMN started_at 'the same as time; goes with the next release',
    COMMENT COLUMN acknowledged_at 'when Kafka acknowledged the transaction',
    COMMENT COLUMN latency_ms 'milliseconds until the acknowledgement';

ALTER TABLE {database}.v_audit_write_latency_between MODIFY COMMENT 'v_audit_write_latency of a time';

ALTER TABLE {database}.v_cleanups MODIFY COMMENT 'each requested clean-up and its confirmation';
ALTER TABLE {database}.v_cleanups
    COMMENT COLUMN time 'the log''s time of the request',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN requested_at 'when the clean-up was requested: when the deadline fired, or the log''s time',
    COMMENT COLUMN released_at 'when its confirmation was appended',
    COMMENT COLUMN latency_s 'seconds from request to confirmation',
    COMMENT COLUMN released 'whether it was confirmed at all',
    COMMENT COLUMN host_lost 'whether the host is gone, so that no handler could run',
    COMMENT COLUMN confirmed 'whether a handler released it with every action done',
    COMMENT COLUMN actions_requested 'actions that the clean-up asks for',
    COMMENT COLUMN actions_done 'actions that a handler reports as done',
    COMMENT COLUMN actions_failed 'actions that a handler reports as failed',
    COMMENT COLUMN bytes_released 'bytes that the handler reports as released',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported';

ALTER TABLE {database}.v_cleanups_between MODIFY COMMENT 'v_cleanups of a time';

ALTER TABLE {database}.v_deadlines MODIFY COMMENT 'each deadline that fired, by its clock: timeouts, and those of initialisation, grace, hold and recovery';
ALTER TABLE {database}.v_deadlines
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN clock 'clock that fired: initialisation, inactivity, idle, max_duration, grace, hold or recovery',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds from the deadline to the moment at which it was noticed';

ALTER TABLE {database}.v_integrity MODIFY COMMENT 'what is missing, doubled or broken, and between which offsets; empty if all is well';
ALTER TABLE {database}.v_integrity
    COMMENT COLUMN fault 'what is wrong',
    COMMENT COLUMN tenant_id 'its tenant',
    COMMENT COLUMN session_id 'session, if it is about one',
    COMMENT COLUMN partition 'partition of the events topic, if it is about one',
    COMMENT COLUMN rows 'how many rows it is about',
    COMMENT COLUMN first_offset 'first offset that it is about',
    COMMENT COLUMN last_offset 'last offset that it is about';

ALTER TABLE {database}.v_integrity_between MODIFY COMMENT 'v_integrity of transactions that began within a time';

ALTER TABLE {database}.v_kpi MODIFY COMMENT 'clean-up latency, reclaim rate, share of audit bytes';
ALTER TABLE {database}.v_kpi
    COMMENT COLUMN timed_out 'sessions that timed out',
    COMMENT COLUMN reclaimed 'those whose clean-up was confirmed',
    COMMENT COLUMN host_lost 'those whose host is gone',
    COMMENT COLUMN unreclaimed 'those without a confirmation',
    COMMENT COLUMN reclaim_rate 'reclaimed over timed out, without lost hosts',
    COMMENT COLUMN cleanup_latency_avg_s 'mean seconds from timeout to confirmation',
    COMMENT COLUMN cleanup_latency_p95_s 'their 95th percentile',
    COMMENT COLUMN cleanup_latency_p99_s 'their 99th percentile',
    COMMENT COLUMN audit_bytes 'bytes of audit records',
    COMMENT COLUMN total_bytes 'bytes of all topics that sinks read',
    COMMENT COLUMN audit_io_share 'audit_bytes over total_bytes';

ALTER TABLE {database}.v_kpi_between MODIFY COMMENT 'all figures with a target, of a time and without FINAL';

ALTER TABLE {database}.v_rejected MODIFY COMMENT 'each refused event, without its bytes';
ALTER TABLE {database}.v_rejected
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN appended_at 'the same as time; goes with the next release',
    COMMENT COLUMN reason 'why, as a fixed name',
    COMMENT COLUMN detail 'why, in words; null or empty after 30 days',
    COMMENT COLUMN security 'whether the refusal suggests that the sender speaks for someone else',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN source_topic 'topic of the record that it is about',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN value_bytes 'size of the record in bytes; 0 after 30 days';

ALTER TABLE {database}.v_rules MODIFY COMMENT 'from which offset on each partition was judged by which rules, and who activated them';
ALTER TABLE {database}.v_rules
    COMMENT COLUMN time 'when the broker stamped the record that activated it; null for the first rules',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN from_offset 'first offset that was judged by this version',
    COMMENT COLUMN version 'version of the rules',
    COMMENT COLUMN principal 'who activated it',
    COMMENT COLUMN at 'the same as time; goes with the next release';

ALTER TABLE {database}.v_sessions MODIFY COMMENT 'each session: state, owner, epoch, counts, events that are missing, duration, agents, services';
ALTER TABLE {database}.v_sessions
    COMMENT COLUMN time 'its latest audit record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent of its first audit record that names one',
    COMMENT COLUMN service_id 'service that owned it last',
    COMMENT COLUMN first_state 'its first state',
    COMMENT COLUMN state 'its latest state',
    COMMENT COLUMN reason 'why it is in its state, in words; empty once personal data has expired',
    COMMENT COLUMN epoch 'number of the session''s owner: each one that takes over raises it',
    COMMENT COLUMN version 'version of the session''s state at its latest audit record',
    COMMENT COLUMN opened_at 'its first audit record',
    COMMENT COLUMN last_at 'its latest audit record',
    COMMENT COLUMN ended_at 'when it ended',
    COMMENT COLUMN duration_s 'seconds from its first audit record to its end, or to its latest one',
    COMMENT COLUMN transitions 'changes of state',
    COMMENT COLUMN timeouts 'how often it timed out',
    COMMENT COLUMN refusals 'refused events',
    COMMENT COLUMN gaps 'gaps in the events of its producers',
    COMMENT COLUMN missing_events 'events in gaps that no replay has brought',
    COMMENT COLUMN context_bytes_max 'largest context in bytes that an agent reported',
    COMMENT COLUMN events 'rows of history',
    COMMENT COLUMN services 'services that sent events',
    COMMENT COLUMN agents 'agents that sent events';

ALTER TABLE {database}.v_sessions_between MODIFY COMMENT 'v_sessions of a time';

ALTER TABLE {database}.v_state_names MODIFY COMMENT 'each session''s state, and its names in the two state machines that ours merges';
ALTER TABLE {database}.v_state_names
    COMMENT COLUMN time 'its latest transition',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN state 'its state',
    COMMENT COLUMN name_000 'name in the governance text',
    COMMENT COLUMN name_001_a 'name in machine A of the second source',
    COMMENT COLUMN name_001_b 'name in machine B of the second source';

ALTER TABLE {database}.v_stored_bytes MODIFY COMMENT 'bytes of each session by layer';
ALTER TABLE {database}.v_stored_bytes
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN layer 'state, history, audit or rejected',
    COMMENT COLUMN records 'records that it has there',
    COMMENT COLUMN bytes 'their bytes';

ALTER TABLE {database}.v_timeouts MODIFY COMMENT 'each timeout of a session: when due, when fired, how late, why';
ALTER TABLE {database}.v_timeouts
    COMMENT COLUMN time 'the log''s time of the record: a condition on it reads only the partitions of that time',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN clock 'clock that fired: initialisation, inactivity, idle, max_duration, grace, hold or recovery',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN lateness_s 'seconds from the deadline to the moment at which it was noticed';

ALTER TABLE {database}.v_transition_latency MODIFY COMMENT 'time from an event or deadline until the audit record was acknowledged';
ALTER TABLE {database}.v_transition_latency
    COMMENT COLUMN time 'the log''s time of the record that caused it',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN timer 'whether a deadline caused it',
    COMMENT COLUMN began_at 'deadline, or the log''s time of the event',
    COMMENT COLUMN acknowledged_at 'when Kafka acknowledged the transaction',
    COMMENT COLUMN latency_ms 'milliseconds until the acknowledgement';

ALTER TABLE {database}.v_transition_latency_between MODIFY COMMENT 'v_transition_latency of a time';

ALTER TABLE {database}.v_transitions MODIFY COMMENT 'each change of state, with its cause';
ALTER TABLE {database}.v_transitions
    COMMENT COLUMN time 'the log''s time of the record that caused it',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN reason 'why, in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN owner_service 'service that owned the session',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN actor 'who acted, if it was not the agent itself',
    COMMENT COLUMN epoch 'number of the session''s owner: each one that takes over raises it',
    COMMENT COLUMN version 'version of the session''s state',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN cleanup_actions 'actions that the clean-up asks for, not what was done',
    COMMENT COLUMN compliance_tags 'tags of the laws that its classes of data fall under',
    COMMENT COLUMN occurred_at 'agent''s clock; of a timeout: its due time',
    COMMENT COLUMN appended_at 'the same as time; goes with the next release',
    COMMENT COLUMN due_at 'when the deadline was',
    COMMENT COLUMN fired_at 'when the processor saw that it had passed, by the log''s clock',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN source_n 'number among the outcomes of one record, from 0',
    COMMENT COLUMN batch_number 'number of the processor''s transaction in its partition';

ALTER TABLE {database}.v_uncleaned MODIFY COMMENT 'each requested clean-up without a confirmation, with the bytes that it holds';
ALTER TABLE {database}.v_uncleaned
    COMMENT COLUMN time 'the log''s time of the request',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN reason_code 'why, as a fixed name',
    COMMENT COLUMN requested_at 'when the clean-up was requested: when the deadline fired, or the log''s time',
    COMMENT COLUMN context_bytes 'size of the agent''s context in bytes, as reported';

ALTER TABLE {database}.v_usage MODIFY COMMENT 'calls, tokens and cost by tenant and service; the share of retries after a timeout';
ALTER TABLE {database}.v_usage
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN calls 'calls, each counted once',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN timeout_retries 'calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_micros 'their cost in millionths of a US dollar',
    COMMENT COLUMN timeout_retry_share 'their share of the cost; null without cost';

ALTER TABLE {database}.v_usage_between MODIFY COMMENT 'v_usage of a time';

ALTER TABLE {database}.v_usage_by MODIFY COMMENT 'calls, tokens and cost by day, model, session, user and agent too';
ALTER TABLE {database}.v_usage_by
    COMMENT COLUMN time 'start of the day',
    COMMENT COLUMN day 'day of the calls, UTC',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN model 'model that was called',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN calls 'calls, each counted once',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN timeout_retries 'calls that repeat one that timed out',
    COMMENT COLUMN timeout_retry_cost_usd_micros 'their cost in millionths of a US dollar';

ALTER TABLE {database}.v_usage_by_between MODIFY COMMENT 'v_usage_by of a time';

ALTER TABLE {database}.v_usage_calls MODIFY COMMENT 'each call that was paid for: tokens, cost, model';
ALTER TABLE {database}.v_usage_calls
    COMMENT COLUMN time 'the log''s time of its first delivery',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN user_id 'user for whom the agent works',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN run_id 'run that the event belongs to',
    COMMENT COLUMN step_id 'step that the event belongs to',
    COMMENT COLUMN model 'model that was called',
    COMMENT COLUMN tokens_in 'tokens of the input',
    COMMENT COLUMN tokens_out 'tokens of the output',
    COMMENT COLUMN model_cost_usd_micros 'cost of the model in millionths of a US dollar',
    COMMENT COLUMN tool_cost_usd_micros 'cost of tools in millionths of a US dollar',
    COMMENT COLUMN is_timeout_retry 'whether the call repeats one that timed out';

ALTER TABLE {database}.v_usage_calls_between MODIFY COMMENT 'v_usage_calls of a time';
