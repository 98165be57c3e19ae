CREATE OR REPLACE VIEW {database}.v_waits_for_people AS
SELECT
    time, tenant_id, session_id, service_id, agent_id, reason AS question, paused_at AS asked_at, ended_at AS answered_at,
    multiIf(isNull(ended_at), 'open', ended_reason_code IN ('approved', 'denied', 'expired'), ended_reason_code, 'withdrawn') AS answer,
    ended_by AS answered_by, ended_reason AS said, length_s AS wait_s
FROM {database}.v_pauses
WHERE reason_code = 'review';

ALTER TABLE {database}.v_waits_for_people
    MODIFY COMMENT 'each pause for a person''s review: question, answer, author and length',
    COMMENT COLUMN time 'the same as asked_at',
    COMMENT COLUMN tenant_id 'tenant of the session',
    COMMENT COLUMN session_id 'id of the session',
    COMMENT COLUMN service_id 'service that owned the session',
    COMMENT COLUMN agent_id 'agent that asked',
    COMMENT COLUMN question 'question, or reason of the pause; empty once personal data has expired',
    COMMENT COLUMN asked_at 'log time of the pause',
    COMMENT COLUMN answered_at 'end of the wait; null while it lasts',
    COMMENT COLUMN answer 'approved, denied, expired, open, or withdrawn (ended without an answer)',
    COMMENT COLUMN answered_by 'principal that answered; null without an answer',
    COMMENT COLUMN said 'text of the answer; empty once personal data has expired',
    COMMENT COLUMN wait_s 'seconds until the wait ended, or until now';
