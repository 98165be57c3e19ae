CREATE OR REPLACE VIEW {database}.v_acknowledgements AS
SELECT * FROM {database}_between.v_acknowledgements_between(from = '1970-01-01 00:00:00', to = '2106-01-01 00:00:00');

ALTER TABLE {database}.v_acknowledgements
    MODIFY COMMENT 'time of each transaction''s acknowledgement, if known',
    COMMENT COLUMN time 'time of Kafka''s acknowledgement',
    COMMENT COLUMN partition 'partition of the events topic',
    COMMENT COLUMN number 'number of the transaction in its partition, from 1 without gaps',
    COMMENT COLUMN acknowledged_at 'the same as time; the next release removes it';
