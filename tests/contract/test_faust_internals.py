"""Each name of Faust, mode and aiokafka that the transport leans on and that their documentation does not promise.

Both are pinned exactly. An upgrade that moves one of these fails here first, by name.
"""

import inspect
from importlib.metadata import version
from typing import Any

import aiokafka
import faust
import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.app.base import App
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables.recovery import Recovery
from faust.topics import Topic
from faust.transport.consumer import Consumer, ConsumerThread, ThreadDelegateConsumer, TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage

from sessionary.stream_processors import worker


def test_the_pinned_versions_are_the_ones_this_was_written_for() -> None:
    assert (version("faust-streaming"), version("aiokafka"), version("mode-streaming")) == ("0.15.3", "0.14.0", "0.7.1")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (driver.Transport, "create_transaction_manager"),
        (driver.Transport, "Consumer"),
        (driver.Consumer, "_new_consumer_thread"),
        (driver.AIOKafkaConsumerThread, "_ensure_consumer"),
        (driver.AIOKafkaConsumerThread, "on_start"),
        (driver.AIOKafkaConsumerThread, "on_thread_stop"),
        (driver.AIOKafkaConsumerThread, "call_thread"),
        (Consumer, "getmany"),
        (TransactionManager, "on_rebalance"),
        (TransactionManager, "commit"),
        (Topic, "decode"),
        (Topic, "_create_event"),
        (PartitionAssignor, "on_assignment"),
        (PartitionAssignor, "external_topic_distribution"),
        (App, "in_transaction"),
        (App, "consumer_generation_id"),
        (App, "in_worker"),
        (GroupCoordinator, "_do_heartbeat"),
        (GroupCoordinator, "_maybe_leave_group"),
    ],
)
def test_a_name_that_is_overridden_or_called_exists(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Consumer._reset_state, "flow_active"),
        (Consumer._reset_state, "can_resume_flow"),
        (Consumer.__init__, "_read_offset"),
        (ConsumerThread.__init__, "transport"),
        (driver.AIOKafkaConsumerThread.on_start, "_consumer"),
        (aiokafka.AIOKafkaConsumer.__init__, "_coordinator"),
        (GroupCoordinator.__init__, "_group_instance_id"),
        (ThreadDelegateConsumer.__init__, "_thread"),
    ],
)
def test_an_attribute_that_is_read_or_set_is_made_there(owner: Any, name: str) -> None:
    assert f"self.{name}" in inspect.getsource(owner)


def test_a_static_member_leaves_only_where_its_name_is_taken_away() -> None:
    assert "self._group_instance_id is None" in inspect.getsource(GroupCoordinator._maybe_leave_group)
    assert "LeaveGroupRequest" in inspect.getsource(GroupCoordinator._maybe_leave_group)


def test_the_rebalance_hook_is_called_in_a_worker_with_exactly_once_only_and_before_recovery() -> None:
    source = inspect.getsource(App._on_partitions_assigned)
    assert source.index("self.in_transaction") < source.index("consumer.transactions.on_rebalance")
    assert source.index("consumer.transactions.on_rebalance") < source.index("self.tables.on_rebalance")
    module = inspect.getsource(inspect.getmodule(App))  # type: ignore[arg-type]  # it has one
    assert (
        "self.in_worker\n            and self.conf.processing_guarantee == ProcessingGuarantee.EXACTLY_ONCE" in module
    )


def test_without_tables_recovery_only_resumes_the_streams() -> None:
    source = inspect.getsource(Recovery)
    source = source[source.index("async def _restart_recovery") :]
    assert source.index("if not self.tables") < source.index("_resume_streams") < source.index("_build_highwaters")


def test_faust_drops_what_lies_below_its_own_read_offset_unless_that_is_none() -> None:
    source = inspect.getsource(Consumer._drain_messages)
    assert "r_offset is None or offset >= r_offset" in source


def test_the_assignor_is_faust_s_own_although_there_is_no_table() -> None:
    source = inspect.getsource(driver.AIOKafkaConsumerThread._create_worker_consumer)
    assert "table_standby_replicas > 0" in source


def test_a_member_that_looks_at_no_record_stays_in_the_group_for_as_long_as_it_is_told() -> None:
    source = inspect.getsource(GroupCoordinator._heartbeat_routine)
    assert "fetcher_idle_time" in source
    assert "self._max_poll_interval" in source
    made = inspect.getsource(driver.AIOKafkaConsumerThread._create_worker_consumer)
    assert "max_poll_interval_ms=int(max_poll_interval * 1000.0)" in made
    assert "max_partition_fetch_bytes=conf.consumer_max_fetch_size" in made


def test_the_assignor_compares_addresses_last() -> None:
    lines = inspect.getsource(PartitionAssignor.on_assignment).strip().splitlines()
    assert lines[-1].strip() == "assert metadata.url == str(self._url)"


def test_a_consumer_message_has_the_fields_that_are_filled_by_position() -> None:
    names = list(inspect.signature(ConsumerMessage.__init__).parameters)[1:]
    assert names[:12] == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestamp_type",
        "headers",
        "key",
        "value",
        "checksum",
        "serialized_key_size",
        "serialized_value_size",
        "tp",
    ]
    assert "generation_id" in names


def test_settings_that_the_app_is_made_with_exist() -> None:
    source = inspect.getsource(worker._faust_app)
    used = {
        line.partition("=")[0].strip() for line in source.splitlines() if line.startswith("        ") and "=" in line
    }
    names = {name for name in used if name.isidentifier() and name != "password"}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(faust.Settings, name)] == []
