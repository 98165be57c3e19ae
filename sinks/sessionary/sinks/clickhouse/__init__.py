"""Everything that speaks to ClickHouse."""
