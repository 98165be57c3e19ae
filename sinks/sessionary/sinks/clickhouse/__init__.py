"""Everything that speaks to ClickHouse.

Statements name their database; no client has a default one.

    connection      clients and single statements
    error_classes   which class of error an exception of the client belongs to
    schema_files    the SQL of this release: tables/, migrations/ and views/
    migrate         brings a database to that, and checks it
    retention       how long rows are kept: settings, applied as the tables' TTL
    native          blocks in ClickHouse's Native format; pure
    inserter        inserts blocks under deduplication tokens
"""
