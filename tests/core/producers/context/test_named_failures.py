"""What errors of any library mean by what they are called, without a cause and without a status.

Each class stands in for the library's own: its module, its name, and its bases up to `Exception`.
"""

import builtins
import subprocess
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.producers.context.failure_class import outcome_of, status_of
from tests.core.producers.context.test_failure_class import named, raised, rpc_error

# Module: class < base < base. What was lost, was silent, or is busy.
LOST = """
redis.exceptions: ConnectionError < RedisError
redis.exceptions: TimeoutError < RedisError
redis.exceptions: BusyLoadingError < ConnectionError < RedisError
redis.exceptions: ClusterDownError < ClusterError < RedisError
elastic_transport: ConnectionError < TransportError
elastic_transport: ConnectionTimeout < TransportError
elastic_transport: TlsError < ConnectionError < TransportError
opensearchpy.exceptions: ConnectionError < TransportError < OpenSearchException
azure.core.exceptions: ServiceRequestError < AzureError
azure.core.exceptions: ServiceResponseError < AzureError
azure.core.exceptions: ServiceResponseTimeoutError < ServiceResponseError < AzureError
azure.core.exceptions: StreamClosedError < AzureError
websockets.exceptions: ConnectionClosedError < ConnectionClosed < WebSocketException
websockets.exceptions: ConnectionClosedOK < ConnectionClosed < WebSocketException
websocket._exceptions: WebSocketConnectionClosedException < WebSocketException
websocket._exceptions: WebSocketTimeoutException < WebSocketException
starlette.websockets: WebSocketDisconnect
anyio: BrokenResourceError
anyio: ClosedResourceError
anyio: EndOfStream
anyio: IncompleteRead
anyio: BrokenWorkerProcess
paramiko.ssh_exception: SSHException
paramiko.ssh_exception: ChannelException < SSHException
psycopg: OperationalError < DatabaseError < Error
psycopg: InterfaceError < Error
psycopg_pool: PoolTimeout < OperationalError < DatabaseError < Error
psycopg2: OperationalError < DatabaseError < Error
psycopg2: InterfaceError < Error
pymysql.err: OperationalError < DatabaseError < Error < MySQLError
mysql.connector.errors: ReadTimeoutError < Error
oracledb.exceptions: OperationalError < DatabaseError < Error
asyncpg.exceptions._base: InterfaceError < InterfaceMessage
sqlalchemy.exc: OperationalError < DatabaseError < DBAPIError < StatementError < SQLAlchemyError
sqlalchemy.exc: InterfaceError < DBAPIError < StatementError < SQLAlchemyError
sqlalchemy.exc: TimeoutError < SQLAlchemyError
django.db.utils: OperationalError < DatabaseError < Error
clickhouse_connect.driver.exceptions: OperationalError < DatabaseError < Error < ClickHouseError
clickhouse_driver.errors: SocketTimeoutError < Error
clickhouse_driver.errors: NetworkError < Error
pycurl: error
curl_cffi.requests.exceptions: ConnectionError < RequestException < CurlError < OSError
curl_cffi.requests.exceptions: Timeout < RequestException < CurlError < OSError
pymongo.errors: AutoReconnect < ConnectionFailure < PyMongoError
pymongo.errors: NetworkTimeout < AutoReconnect < ConnectionFailure < PyMongoError
pymongo.errors: WTimeoutError < WriteConcernError < OperationFailure < PyMongoError
kafka.errors: KafkaTimeoutError < KafkaError < RuntimeError
kafka.errors: KafkaConnectionError < KafkaError < RuntimeError
aiokafka.errors: RequestTimedOutError < BrokerResponseError < KafkaError < RuntimeError
aiokafka.errors: NoBrokersAvailable < KafkaError < RuntimeError
aiokafka.errors: UnknownError < BrokerResponseError < KafkaError < RuntimeError
cimpl: KafkaException
neo4j.exceptions: ServiceUnavailable < DriverError < GqlError
neo4j.exceptions: IncompleteCommit < ServiceUnavailable < DriverError < GqlError
neo4j.exceptions: TransientError < Neo4jError < GqlError
cassandra: OperationTimedOut < DriverException
cassandra: Unavailable < RequestExecutionException < DriverException
cassandra.cluster: NoHostAvailable
nats.errors: NoServersError < Error
nats.errors: StaleConnectionError < Error
pika.exceptions: StreamLostError < AMQPConnectionError < AMQPError
pika.exceptions: ChannelClosedByBroker < ChannelClosed < AMQPChannelError < AMQPError
aiormq.exceptions: ChannelClosed < AMQPChannelError < AMQPError
ldap3.core.exceptions: LDAPSocketReceiveError < LDAPCommunicationError < LDAPExceptionError < LDAPException
thrift.transport.TTransport: TTransportException < TException
zeep.exceptions: TransportError < Error
gql.transport.exceptions: TransportClosed < TransportError
h2.exceptions: ProtocolError < H2Error
h2.exceptions: StreamClosedError < NoSuchStreamError < ProtocolError < H2Error
tornado.iostream: StreamClosedError < OSError
stripe._error: APIConnectionError < StripeError
stripe._error: RateLimitError < StripeError
mistralai.models: ServerError < SDKError
grpc: FutureTimeoutError
aiosmtplib.errors: SMTPServerDisconnected < SMTPException
ftplib: error_temp < Error
ftplib: error_proto < Error
imaplib: abort < error
builtins: EOFError
multiprocessing.context: TimeoutError < ProcessError
concurrent.futures.process: BrokenProcessPool < BrokenExecutor < RuntimeError
dns.exception: Timeout < DNSException
google.api_core.exceptions: DeadlineExceeded < GatewayTimeout < ServerError < GoogleAPICallError
playwright._impl._errors: TimeoutError < Error
selenium.common.exceptions: TimeoutException < WebDriverException
groq: APIError < GroqError
grpclib.exceptions: StreamTerminatedError < OSError
zmq.error: Again < ZMQError < ZMQBaseError
playwright._impl._errors: TargetClosedError < Error
pymongo.errors: WriteConcernError < OperationFailure < PyMongoError
pymongo.errors: BulkWriteError < OperationFailure < PyMongoError
cassandra: WriteFailure < CoordinationFailure < RequestExecutionException < DriverException
my.tool: GatewayTimeout
""".strip().splitlines()

# What a service said, or what was found before anything was sent.
REFUSED = """
redis.exceptions: AuthenticationError < ConnectionError < RedisError
redis.exceptions: ResponseError < RedisError
redis.exceptions: DataError < RedisError
elasticsearch: NotFoundError < ApiError
azure.core.exceptions: ResourceExistsError < HttpResponseError < AzureError
websockets.exceptions: InvalidURI < WebSocketException
paramiko.ssh_exception: AuthenticationException < SSHException
paramiko.ssh_exception: BadHostKeyException < SSHException
psycopg: ProgrammingError < DatabaseError < Error
psycopg: IntegrityError < DatabaseError < Error
sqlalchemy.exc: NoResultFound < InvalidRequestError < SQLAlchemyError
sqlalchemy.exc: ArgumentError < SQLAlchemyError
pymongo.errors: DuplicateKeyError < WriteError < OperationFailure < PyMongoError
pymongo.errors: ConfigurationError < PyMongoError
kafka.errors: MessageSizeTooLargeError < BrokerResponseError < KafkaError < RuntimeError
neo4j.exceptions: ConstraintError < ClientError < Neo4jError < GqlError
aiormq.exceptions: ChannelNotFoundEntity < ChannelClosed < AMQPChannelError < AMQPError
ldap3.core.exceptions: LDAPNoSuchObjectResult < LDAPOperationResult < LDAPException
stripe._error: CardError < StripeErrorWithParamCode < StripeError
stripe._error: InvalidRequestError < StripeErrorWithParamCode < StripeError
pydantic_core._pydantic_core: ValidationError < ValueError
json.decoder: JSONDecodeError < ValueError
requests.exceptions: InvalidURL < RequestException < OSError < ValueError
shutil: SameFileError < Error < OSError
subprocess: CalledProcessError < SubprocessError
ftplib: error_perm < Error
groq: APIResponseValidationError < APIError < GroqError
botocore.exceptions: PartialCredentialsError < BotoCoreError
celery.exceptions: Retry < TaskPredicate
concurrent.futures._base: InvalidStateError < Error
my.shop: OutOfStock < OrderError < ValueError
my.shop: AccountClosed < OrderError
my.shop: ItemUnavailable < OrderError
my.shop: InvalidTimeout < ValueError
my.shop: PasswordResetRequired
""".strip().splitlines()


def stand_in(line: str) -> Any:
    """Return a class of exceptions as `module: Class < base < base` names it."""
    module, _, classes = line.partition(": ")
    found: Any = None
    for name in reversed(classes.split(" < ")):
        is_builtin = name in ("OSError", "RuntimeError", "ValueError", "EOFError")
        found = getattr(builtins, name) if is_builtin else named(module, name, *(() if found is None else (found,)))
    return found


@pytest.mark.parametrize("line", LOST)
def test_what_is_called_a_loss_without_a_cause_may_have_taken_effect(line: str) -> None:
    assert outcome_of(stand_in(line)("said")) == "unknown"


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_called_a_refusal_is_one(line: str) -> None:
    assert outcome_of(stand_in(line)("said")) == "refused"


@pytest.mark.parametrize("line", [line for line in LOST if "builtins" not in line])
def test_what_is_called_a_loss_is_what_its_cause_is(line: str) -> None:
    if line.startswith(("pycurl", "cimpl", "ftplib", "imaplib", "zmq")):
        assert outcome_of(raised(stand_in(line)("said"), cause=ConnectionRefusedError())) == "unknown"
    else:
        assert outcome_of(raised(stand_in(line)("said"), cause=ConnectionRefusedError())) == "not_sent"
        assert outcome_of(raised(stand_in(line)("said"), cause=ConnectionResetError())) == "unknown"


@pytest.mark.parametrize(
    "where",
    [
        *("status", "status_code", "http_status", "http_code", "code", "errcode", "resp.status", "response.status"),
        *("response.status_code", "response.code", "meta.status", "error.code"),
    ],
)
def test_a_status_is_read_where_libraries_put_it(where: str) -> None:
    def answered(status: int) -> Exception:
        error: Any = named("some", "LibraryError")("said")
        holder, _, name = where.rpartition(".")
        setattr(error, holder or name, SimpleNamespace(**{name: status}) if holder else status)
        return error  # type: ignore[no-any-return]

    for status in (HTTPStatus.TOO_MANY_REQUESTS, 408, 429, 500, 503):
        assert (outcome_of(answered(status)), status_of(answered(status))) == ("unknown", status)
    for status in (HTTPStatus.NOT_FOUND, 400, 409, 422):
        assert (outcome_of(answered(status)), status_of(answered(status))) == ("refused", status)
    assert status_of(answered(20003)) is None


def test_a_number_that_is_no_status_hides_none() -> None:
    error = named("twilio.base.exceptions", "TwilioRestException", code=20429, status=429)()
    assert outcome_of(error) == "unknown"
    error = named("my", "ConnectionError", code=7, response=SimpleNamespace(status_code=404))()
    assert outcome_of(error) == "refused"


@pytest.mark.parametrize(
    ("attributes", "outcome"),
    [
        *(({"sqlstate": "08006"}, "unknown"), ({"sqlstate": "57P01"}, "unknown"), ({"pgcode": "53300"}, "unknown")),
        *(({"sqlstate": "XX000"}, "unknown"), ({"sqlstate": "HY000"}, "unknown"), ({"sqlstate": None}, "unknown")),
        *(({"sqlstate": "40001"}, "not_sent"), ({"pgcode": "40P01"}, "not_sent"), ({"sqlstate": "40003"}, "unknown")),
        *(({"sqlstate": "28P01"}, "refused"), ({"pgcode": "42P01"}, "refused"), ({"sqlstate": "23505"}, "refused")),
        *(({"sqlite_errorname": "SQLITE_ERROR"}, "refused"), ({"sqlite_errorname": "SQLITE_BUSY"}, "unknown")),
        *(({"sqlite_errorname": "SQLITE_READONLY"}, "refused"), ({"sqlite_errorname": "SQLITE_IOERR"}, "unknown")),
    ],
    ids=str,
)
def test_the_state_that_a_database_answers_says_more_than_a_name(attributes: dict[str, Any], outcome: str) -> None:
    error = stand_in("psycopg: OperationalError < DatabaseError < Error")("said")
    for name, value in attributes.items():
        setattr(error, name, value)
    assert outcome_of(error) == outcome
    wrapped = stand_in("sqlalchemy.exc: OperationalError < DatabaseError < DBAPIError < SQLAlchemyError")("said")
    assert outcome_of(raised(wrapped, cause=error)) == outcome


def test_what_a_mail_server_says_is_no_status_of_http() -> None:
    for name in ("smtp_code", "code"):  # of smtplib, of aiosmtplib
        for code, outcome in ((450, "not_sent"), (421, "not_sent"), (550, "refused"), (535, "refused")):
            error = stand_in("some: SMTPDataError < SMTPResponseException < SMTPException < OSError")("said")
            setattr(error, name, code)
            assert outcome_of(error) == outcome
            assert status_of(error) is None


def test_a_protocol_of_calls_says_its_own_faults() -> None:
    for code, outcome in ((-32603, "unknown"), (-32001, "unknown"), (-32000, "unknown"), (-32602, "refused")):
        assert outcome_of(named("mcp.shared.exceptions", "MCPError", code=code)("said")) == outcome
        held = SimpleNamespace(code=code)
        assert outcome_of(named("mcp.shared.exceptions", "McpError", error=held)("said")) == outcome


def test_an_error_that_may_be_retried_is_not_taken_for_one_that_was_not_sent() -> None:
    kafka = stand_in("aiokafka.errors: NotEnoughReplicasAfterAppendError < BrokerResponseError < KafkaError")
    kafka.retriable = True
    assert outcome_of(kafka("said")) == "unknown"
    kafka.retriable = False
    assert outcome_of(kafka("said")) == "refused"


def test_of_several_tries_the_worst_one_counts() -> None:
    refused, silent = ConnectionRefusedError(), TimeoutError()
    for errors in ((refused, silent), [refused, silent], {"first": refused, "second": silent}):
        error = stand_in("elastic_transport: ConnectionError < TransportError")("said")
        error.errors = errors
        assert outcome_of(raised(error, cause=refused)) == "unknown"
    error = named("paramiko.ssh_exception", "NoValidConnectionsError", OSError)("said")
    error.errors = {("127.0.0.1", 22): refused}
    assert outcome_of(error) == "not_sent"
    error.errors = [{"loc": ("field",), "msg": "bad"}]
    assert outcome_of(error) == "unknown"


def test_a_program_that_was_killed_has_said_nothing() -> None:
    for code, outcome in ((1, "refused"), (-9, "unknown"), (-15, "unknown")):
        assert outcome_of(subprocess.CalledProcessError(code, "git push")) == outcome


def test_another_library_of_grpc_has_the_same_codes() -> None:
    for name, outcome in (("UNAVAILABLE", "unknown"), ("DEADLINE_EXCEEDED", "unknown"), ("NOT_FOUND", "refused")):
        status = SimpleNamespace(name=name, value=1)
        assert outcome_of(named("grpclib.exceptions", "GRPCError", status=status)("said")) == outcome


def test_grpc_of_asyncio_is_grpc() -> None:
    aio = named("grpc.aio._call", "AioRpcError", named("grpc", "RpcError"))("said")
    aio.code, aio.details = rpc_error("UNAVAILABLE").code, lambda: "said"  # type: ignore[attr-defined]
    assert outcome_of(aio) == "unknown"
