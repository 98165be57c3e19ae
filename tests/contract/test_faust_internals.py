"""Each name of Faust, mode and aiokafka that the transport uses and their documents do not promise.

Both are pinned exactly. An upgrade that moves one of these fails here first, by name.
"""

import inspect
from importlib.metadata import version
from typing import Any

import aiokafka
import faust
import pytest
from aiohttp.web import AppRunner, RequestHandler, Server
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.agents.manager import AgentManager
from faust.app.base import App
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables.recovery import Recovery
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer, ConsumerThread, ThreadDelegateConsumer, TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.web.drivers.aiohttp import Web

from sessionary.stream_processors import faust_app


def test_the_pinned_versions_are_the_ones_this_was_written_for() -> None:
    assert (version("faust-streaming"), version("aiokafka"), version("mode-streaming")) == ("0.15.3", "0.14.0", "0.7.1")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (driver.Transport, "Consumer"),
        (driver.Transport, "TransactionManager"),
        (driver.Transport, "Fetcher"),
        (driver.Consumer, "_new_consumer_thread"),
        (driver.AIOKafkaConsumerThread, "_ensure_consumer"),
        (driver.AIOKafkaConsumerThread, "on_start"),
        (driver.AIOKafkaConsumerThread, "on_thread_stop"),
        (driver.AIOKafkaConsumerThread, "call_thread"),
        (Conductor, "add"),
        (TransactionManager, "on_partitions_revoked"),
        (TransactionManager, "on_rebalance"),
        (TransactionManager, "commit"),
        (PartitionAssignor, "on_assignment"),
        (PartitionAssignor, "external_topic_distribution"),
        (App, "in_transaction"),
        (App, "in_worker"),
        (AppRunner, "_make_server"),
        (RequestHandler, "handle_error"),
        (GroupCoordinator, "_do_heartbeat"),
        (GroupCoordinator, "_maybe_leave_group"),
    ],
)
def test_a_name_that_is_overridden_or_called_exists(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ConsumerThread.__init__, "transport"),
        (driver.AIOKafkaConsumerThread.on_start, "_consumer"),
        (aiokafka.AIOKafkaConsumer.__init__, "_coordinator"),
        (GroupCoordinator.__init__, "_group_instance_id"),
        (ThreadDelegateConsumer.__init__, "_thread"),
        (Web.__init__, "web_app"),
        (Web.__init__, "_runner"),
        (Server.__init__, "_loop"),
        (Server.__init__, "_kwargs"),
    ],
)
def test_an_attribute_that_is_read_or_set_is_made_there(owner: Any, name: str) -> None:
    assert f"self.{name}" in inspect.getsource(owner)


def test_a_static_member_leaves_only_without_its_instance_id() -> None:
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


def test_the_hooks_of_the_transport_are_what_faust_makes_its_parts_of() -> None:
    assert "self.TransactionManager(" in inspect.getsource(driver.Transport.create_transaction_manager)
    assert "self.transport.Fetcher)(" in inspect.getsource(App)
    assert "consumer._drain_messages(self)" in inspect.getsource(driver.Transport.Fetcher)
    callers = [name for name, method in inspect.getmembers(Consumer, inspect.isfunction) if _calls(method, "getmany")]
    assert callers == ["_drain_messages"]


def _calls(method: Any, name: str) -> bool:
    return f"self.{name}" in inspect.getsource(method)


def test_a_topic_is_subscribed_to_without_agent_or_stream() -> None:
    assert "topics = list(self._topics)" in inspect.getsource(Conductor._update_indices)
    assert "self._topics.add(topic)" in inspect.getsource(Conductor.add)
    started = inspect.getsource(AgentManager.on_start)
    assert "self._agents_started.set()" in started.splitlines()[-1]


def test_delivery_is_held_from_the_revocation_on_and_restarted_by_each_assignment() -> None:
    revoked = inspect.getsource(App._on_partitions_revoked)
    assert revoked.index("stop_flow") < revoked.index("consumer.transactions.on_partitions_revoked")
    assert "if assignment:" in revoked  # without one there is nothing to hold


def test_the_assignor_is_faust_s_own_although_there_is_no_table() -> None:
    source = inspect.getsource(driver.AIOKafkaConsumerThread._create_worker_consumer)
    assert "table_standby_replicas > 0" in source


def test_a_member_that_reads_no_record_stays_in_the_group() -> None:
    source = inspect.getsource(GroupCoordinator._heartbeat_routine)
    assert "fetcher_idle_time" in source
    assert "self._max_poll_interval" in source
    made = inspect.getsource(driver.AIOKafkaConsumerThread._create_worker_consumer)
    assert "max_poll_interval_ms=int(max_poll_interval * 1000.0)" in made
    assert "max_partition_fetch_bytes=conf.consumer_max_fetch_size" in made


def test_the_assignor_compares_addresses_last() -> None:
    lines = inspect.getsource(PartitionAssignor.on_assignment).strip().splitlines()
    assert lines[-1].strip() == "assert metadata.url == str(self._url)"


def test_the_web_server_makes_its_site_from_the_runner_that_it_has_when_it_starts() -> None:
    assert "self._runner.setup()" in inspect.getsource(Web.start_server)
    assert "self._runner" in inspect.getsource(Web._new_transport_tcp)
    assert "RequestHandler(self, loop=self._loop, **self._kwargs)" in inspect.getsource(Server.__call__)


def test_settings_that_the_app_is_made_with_exist() -> None:
    source = inspect.getsource(faust_app.make_faust_app)
    used = {
        line.partition("=")[0].strip() for line in source.splitlines() if line.startswith("        ") and "=" in line
    }
    names = {name for name in used if name.isidentifier() and name != "password"}
    assert len(names) > 20
    assert [name for name in sorted(names) if not hasattr(faust.Settings, name)] == []
