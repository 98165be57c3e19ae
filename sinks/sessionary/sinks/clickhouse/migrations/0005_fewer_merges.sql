-- A row is merged a sixth less often until its part is large: sixteen parts of a size become one, not ten.

ALTER TABLE {database}.history MODIFY SETTING merge_selector_base = 16;

ALTER TABLE {database}.history
    COMMENT COLUMN headers 'of an event: what they say beyond the envelope, all of them where they contradict it';
