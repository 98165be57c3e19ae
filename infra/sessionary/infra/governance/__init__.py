"""How long artifacts are kept, and what a tenant may read in ClickHouse.

    artifact_sweep    marks artifacts that have expired, and removes their bodies a week later
    row_policies      grants and row policies of one tenant's user of ClickHouse

Rows of ClickHouse expire by themselves. An artifact's body is in a store that knows no time.
"""
