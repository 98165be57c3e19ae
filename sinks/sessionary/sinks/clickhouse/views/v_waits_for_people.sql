CREATE OR REPLACE VIEW {database}.v_waits_for_people AS
SELECT
    time, tenant_id, session_id, service_id, agent_id, reason AS question, paused_at AS asked_at, ended_at AS answered_at,
    multiIf(isNull(ended_at), 'open', ended_reason_code IN ('approved', 'denied', 'expired'), ended_reason_code, 'withdrawn') AS answer,
    ended_by AS answered_by, ended_reason AS said, length_s AS wait_s
FROM {database}.v_pauses
WHERE reason_code = 'review';

ALTER TABLE {database}.v_waits_for_people
    MODIFY COMMENT 'each pause for a person''s review: what was asked, who answered what, and how long it took',
    COMMENT COLUMN time 'the same as asked_at',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN agent_id 'agent that asked',
    COMMENT COLUMN question 'what was asked, or why it was paused; empty once personal data has expired',
    COMMENT COLUMN asked_at 'log time of the pause',
    COMMENT COLUMN answered_at 'when the wait ended; null if it has not',
    COMMENT COLUMN answer 'approved, denied, expired, open, or withdrawn: it ended without an answer',
    COMMENT COLUMN answered_by 'principal who answered; null if there is no answer',
    COMMENT COLUMN said 'what he said; empty once personal data has expired',
    COMMENT COLUMN wait_s 'seconds until the wait ended, or until now';
