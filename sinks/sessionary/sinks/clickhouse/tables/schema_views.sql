-- Written by `sessionary db migrate`: the views that it made, as it made them. It replaces and drops no other view.
CREATE TABLE IF NOT EXISTS {database}.schema_views
(
    name String COMMENT 'name of the view',
    checksum String COMMENT 'SHA-256 of its file and of all that it uses, hex; empty while it is made',
    definition String COMMENT 'SHA-256 of the definition that the server made of it, hex; empty while it is made',
    release String COMMENT 'release of sessionary that made it, or dropped it',
    is_dropped Bool COMMENT 'whether it was dropped, because the release has no such view',
    made_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when that was done'
)
ENGINE = ReplacingMergeTree
ORDER BY name
COMMENT 'one row per view that was made';
