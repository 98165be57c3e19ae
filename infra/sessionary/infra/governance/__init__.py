"""How long artifacts are kept.

    artifact_sweep    marks artifacts that have expired, and removes their bodies a week later

Rows of ClickHouse expire by themselves. An artifact's body is in a store that knows no time.
"""
