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
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.agents.manager import AgentManager
from faust.app.base import App
from faust.assignor.partition_assignor import PartitionAssignor
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.tables.table import Table
from faust.transport.conductor import Conductor
from faust.transport.consumer import Consumer, ConsumerThread, ThreadDelegateConsumer, TransactionManager
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import Message
from faust.web.drivers.aiohttp import Web
from mode import OneForOneSupervisor, Service
from mode.utils.times import Bucket

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
        (driver.AIOKafkaConsumerThread, "on_partitions_assigned"),
        (driver.Consumer, "verify_event_path"),
        (driver.Consumer, "_getmany"),
        (driver.Consumer, "seek_to_committed"),
        (aiokafka.AIOKafkaConsumer, "seek_to_beginning"),
        (driver.Consumer, "assignment"),
        (aiokafka.AIOKafkaConsumer, "pause"),
        (Conductor, "add"),
        (TransactionManager, "on_partitions_revoked"),
        (TransactionManager, "on_rebalance"),
        (TransactionManager, "commit"),
        (TransactionManager, "send"),
        (Table, "data"),
        (OneForOneSupervisor, "start_services"),
        (OneForOneSupervisor, "restart_services"),
        (PartitionAssignor, "on_assignment"),
        (PartitionAssignor, "external_topic_distribution"),
        (App, "in_transaction"),
        (App, "in_worker"),
        (AppRunner, "_make_server"),
        (RequestHandler, "handle_error"),
        (GroupCoordinator, "_do_heartbeat"),
        (GroupCoordinator, "_maybe_leave_group"),
        (GroupCoordinator, "close"),
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
        (TransactionManager.__init__, "producer"),
        (TransactionManager.__init__, "consumer"),
        (TransactionManager.__init__, "app"),
        (faust.Stream._py_aiter, "current_event"),
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


def test_a_member_that_resets_its_generation_joins_again_as_a_new_one() -> None:
    source = inspect.getsource(GroupCoordinator.reset_generation)
    assert "self.member_id = JoinGroupRequest.UNKNOWN_MEMBER_ID" in source
    assert "self.request_rejoin()" in source


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


def test_a_recovery_that_waits_too_long_ends_and_the_start_waits_for_it() -> None:
    assert "timeout=self.app.conf.broker_request_timeout" in inspect.getsource(Recovery._resume_streams)
    waits = inspect.getsource(Recovery._wait)
    assert waits.index("if wait_result.stopped") < waits.index("raise ServiceStopped()")
    source = inspect.getsource(Recovery)
    ended = source[source.rindex("except ServiceStopped") :]
    assert ended.index("break") < ended.index("except Exception")
    assert "self._recovery is None" in inspect.getsource(inspect.getattr_static(TableManager, "recovery").fget)
    assert "self.recovery.completed" in inspect.getsource(TableManager.wait_until_recovery_completed)
    assert "self._wait_for_table_recovery_completed()" in inspect.getsource(App.on_started)


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


def test_a_partition_that_is_paused_when_it_is_assigned_is_never_fetched() -> None:
    joined = inspect.getsource(GroupCoordinator._on_join_complete)
    begun, reported = (
        joined.index("start_commit_offsets_refresh_task("),
        joined.index("on_partitions_assigned(assigned)"),
    )
    assert joined.index("assign_from_subscribed(") < begun < reported
    assert "await" not in joined[begun : joined.index("assigned = set(")]  # no offset is known before it is paused
    actions = inspect.getsource(Fetcher._get_actions_per_node)
    assert (
        actions.index("not tp_state.has_valid_position")
        < actions.index("tp_state.paused")
        < actions.index("fetchable[")
    )


def test_a_handled_record_is_committed_by_the_hook_for_transactions_after_what_was_sent() -> None:
    source = inspect.getsource(Consumer._commit_offsets)
    assert "await self.transactions.commit(" in source
    assert "if self.in_transaction:" in source
    assert "return self.consumer.transactions" in inspect.getsource(App.maybe_start_producer.__wrapped__)


def test_faust_counts_a_record_as_handled_at_which_it_stops_an_agent() -> None:
    source = inspect.getsource(faust.Stream._c_aiter)
    assert source.index("yield value") < source.index("finally:") < source.index("it.after(event, do_ack")
    stopped = inspect.getsource(Service.stop)
    assert stopped.index("self._stopped_set()") < stopped.index("self._stop_children()")


def test_a_supervisor_waits_instead_of_ending_the_process_if_it_has_no_error_to_raise() -> None:
    assert "rate_limit(self.max_restarts, self.over, raises=raises)" in inspect.getsource(OneForOneSupervisor.__init__)
    entered = inspect.getsource(Bucket.__aenter__)
    assert entered.index("if self.raises:") < entered.index("asyncio.sleep(")
    look = inspect.getsource(inspect.getmodule(OneForOneSupervisor))  # type: ignore[arg-type]  # it has one
    look = look[look.index("async def _supervisor") :]
    assert look.index("to_restart.append(service)") < look.index("to_start.append(service)")


def test_a_record_that_is_marked_as_acknowledged_is_not_counted_for_the_next_commit() -> None:
    assert "if not self.acked:" in inspect.getsource(Message.ack)
    source = inspect.getsource(faust.Stream._py_aiter)
    assert (
        source.index("await _maybe_async(processor(value))")
        < source.index("except Skip:")
        < source.index("yield value")
    )


def test_what_is_fetched_before_faust_goes_on_is_dropped_and_sought_again() -> None:
    source = inspect.getsource(Consumer.getmany)
    assert source.index("if self.flow_active:") < source.index("await self.perform_seek()")
    assert "await self.seek_to_committed()" in inspect.getsource(Consumer.perform_seek)
    # Where nothing is committed, aiokafka alone seeks nowhere.
    assert "if offset and offset > 0:" in inspect.getsource(aiokafka.AIOKafkaConsumer.seek_to_committed)


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
