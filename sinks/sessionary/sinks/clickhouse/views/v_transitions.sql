CREATE OR REPLACE VIEW {database}.v_transitions AS
SELECT
    appended_at AS time, tenant_id, session_id, audit_seq, transition, from_state, to_state, event_type, event_id,
    reason_code, reason, service_id, owner_service, agent_id, actor, epoch, version, cleanup_id, cleanup_actions,
    compliance_tags, occurred_at, appended_at, due_at, fired_at, source_partition, source_offset, source_n, batch_number
FROM {database}.audit FINAL
WHERE kind = 'transition'
SETTINGS do_not_merge_across_partitions_select_final = 1;

ALTER TABLE {database}.v_transitions
    MODIFY COMMENT 'each change of state, with its cause',
    COMMENT COLUMN time 'log time of the causing record',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN audit_seq 'number in the session''s audit trail, from 1 without gaps; 0 if no session is known',
    COMMENT COLUMN transition 'transition of the state machine, T01 to T14',
    COMMENT COLUMN from_state 'state before',
    COMMENT COLUMN to_state 'state after',
    COMMENT COLUMN event_type 'type of the event',
    COMMENT COLUMN event_id 'id of the event, given by its client',
    COMMENT COLUMN reason_code 'reason code',
    COMMENT COLUMN reason 'reason in words of the agent or the processor; empty once personal data has expired',
    COMMENT COLUMN service_id 'service that sent the event',
    COMMENT COLUMN owner_service 'service that owned the session',
    COMMENT COLUMN agent_id 'agent that the event names',
    COMMENT COLUMN actor 'the principal that acted, if it was not the agent itself',
    COMMENT COLUMN epoch 'number of the session''s owner: each take-over raises it',
    COMMENT COLUMN version 'version of the session''s state',
    COMMENT COLUMN cleanup_id 'id of the request for a clean-up',
    COMMENT COLUMN cleanup_actions 'requested actions of the clean-up, done or not',
    COMMENT COLUMN compliance_tags 'tags of the laws for the session''s classes of data',
    COMMENT COLUMN occurred_at 'agent''s clock; for a timeout the deadline',
    COMMENT COLUMN appended_at 'the same as time; the next release removes it',
    COMMENT COLUMN due_at 'time of the deadline',
    COMMENT COLUMN fired_at 'time at which the deadline fired, by the log''s clock',
    COMMENT COLUMN source_partition 'partition of that record in the events topic',
    COMMENT COLUMN source_offset 'offset of that record in the events topic',
    COMMENT COLUMN source_n 'number among the outcomes of one record, from 0',
    COMMENT COLUMN batch_number 'number of the processor''s transaction in its partition';
