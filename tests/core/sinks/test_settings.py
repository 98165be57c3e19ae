import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.sinks.runtime.plan_writer import block_limits
from sessionary.sinks.settings import RetentionSettings, SinkSettings


def test_groups_are_named_by_prefix_kind_and_pipeline() -> None:
    assert SinkSettings().group_id("audit") == "sessionary.sink.audit"
    assert SinkSettings(topic_prefix="x", pipeline="eu").group_id("audit") == "x.sink.audit.eu"


@pytest.mark.parametrize("name", ["HISTORY", "IDLE", "BATCHES"])
def test_nothing_is_kept_for_a_shorter_time_than_integrity_compares(name: str) -> None:
    assert RetentionSettings.from_env({f"SESSIONARY_RETENTION_{name}_DAYS": "30"}).days[name.lower()] == 30
    with pytest.raises(SettingsError, match=f"SESSIONARY_RETENTION_{name}_DAYS: .* greater than or equal to 30"):
        RetentionSettings.from_env({f"SESSIONARY_RETENTION_{name}_DAYS": "29"})


def test_blocks_wait_as_the_settings_say_and_idle_records_only_where_there_are_some() -> None:
    settings = SinkSettings(sink_flush_rows=7, sink_idle_seconds=5.0)
    events, audit = block_limits(settings, "events"), block_limits(settings, "audit")
    assert (events.rows, events.seconds, events.idle_seconds) == (7, 0.5, 5.0)
    assert events.is_idle is not None
    assert audit.is_idle is None
    with pytest.raises(SettingsError, match=r"SESSIONARY_SINK_IDLE_SECONDS: .* less than or equal to 60"):
        SinkSettings.from_env({"SESSIONARY_SINK_IDLE_SECONDS": "61"})
