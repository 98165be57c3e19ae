"""Makes the Faust app of a worker: its settings, in Faust's terms."""

import ssl
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from yarl import URL

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.stream_processors.group_members import client_id
from sessionary.stream_processors.runtime.faust_transport import FAUST_LOG, Assignor
from sessionary.stream_processors.security import member_credentials
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.streams.stream_transport import AgentSupervisor, LocalStream

# TLS of the control API's server.


def serving_context(settings: ProcessorSettings) -> ssl.SSLContext | None:
    """Return the context of the control API's server; None for plain HTTP. Reads files.

    Raises `SettingsError` that names the variable.
    """
    certificate, key = settings.api_tls_certificate, settings.api_tls_key
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, _reject_password)
    except (OSError, ValueError) as error:
        raise SettingsError(f"SESSIONARY_API_TLS_CERTIFICATE, SESSIONARY_API_TLS_KEY: {cause_text(error)}") from None
    return context


def _reject_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by the worker alone")


_NEVER_S = 1e9
_REBALANCE_S = 10.0
_ANSWER_S = 5.0


class PatientRecovery(Recovery):
    """Faust's recovery after an assignment: with no table, it finds where each stream continues.

    Faust's own recovery ends for good, without a word, if this takes longer than a request may, as
    it does while a broker is away. Then the app's start, or streams after a later rebalance, wait
    for ever.
    """

    logger = FAUST_LOG

    async def _wait(self, coro: Any, timeout: Any = None) -> None:
        await super()._wait(coro)


class PatientTables(TableManager):
    """Faust's tables, with a recovery that waits for its brokers."""

    logger = FAUST_LOG

    @property
    def recovery(self) -> Recovery:
        """The recovery, made when it is first asked for."""
        if self._recovery is None:
            self._recovery = PatientRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


def make_faust_app(settings: ProcessorSettings, datadir: str) -> faust.App:
    """Return an app that can join the group and serve pages; it has no transport, topic or page.

    Faust writes its own files to the folder `datadir`. Raises `SettingsError` for a certificate
    that cannot be read, and for a security setting that the group's member cannot follow.
    """
    app = faust.App(
        settings.group_id,
        broker=[URL(f"kafka://{server.strip()}") for server in settings.bootstrap_servers.split(",")],
        broker_credentials=member_credentials(settings),
        broker_session_timeout=settings.session_timeout_ms / 1_000,
        broker_heartbeat_interval=settings.heartbeat_ms / 1_000,
        broker_rebalance_timeout=_REBALANCE_S,
        # A coordinator that falls silent is given up after this long; Faust's default is 90 s. The
        # answer to JoinGroup comes when the rebalance, or the session of a lost member, times out.
        broker_request_timeout=max(_REBALANCE_S, settings.session_timeout_ms / 1_000) + _ANSWER_S,
        # A worker without agents never asks aiokafka for records, and is not expelled for that.
        broker_max_poll_interval=_NEVER_S,
        broker_client_id=client_id(settings),
        consumer_group_instance_id=settings.instance,
        consumer_auto_offset_reset="earliest",
        # Only this mode calls the hook of a rebalance. Faust's own transactions are not used.
        processing_guarantee="exactly_once",
        # Keeps Faust's assignor, which sends every worker the others' URLs. There is no table.
        table_standby_replicas=1,
        PartitionAssignor=Assignor,
        TableManager=PatientTables,
        topic_partitions=settings.partitions,
        topic_disable_leader=True,
        topic_allow_declare=False,
        Stream=LocalStream,
        agent_supervisor=AgentSupervisor,
        stream_wait_empty=False,
        store="memory://",
        datadir=datadir,
        canonical_url=settings.api_url,
        web_enabled=settings.api_port != 0,
        web_bind=settings.api_host,
        web_host=settings.api_host,
        web_port=settings.api_port or 6066,
        web_ssl_context=serving_context(settings),
        web_in_thread=False,
        web_tables_enabled=False,
        web_router_enabled=False,
        web_stats_enabled=False,
        web_graph_enabled=False,
        web_metrics_enabled=False,
    )
    app.in_worker = True  # as `faust worker` sets it: without it Faust reports no rebalance
    return app
