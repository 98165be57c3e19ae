"""The local ClickHouse endpoint."""
