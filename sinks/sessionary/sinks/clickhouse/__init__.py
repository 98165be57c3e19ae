"""Everything that speaks to ClickHouse.

Statements name their database; no client has a default one.

    connection      opens a client; sorts errors into what may be repeated, and what may not
    migrate         applies the files of tables, migrations and views; sets how long rows are kept
    native          blocks in ClickHouse's Native format; pure
    inserter        inserts blocks under deduplication tokens
"""
