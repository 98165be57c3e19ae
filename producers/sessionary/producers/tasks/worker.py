"""A worker: takes the requests for tasks of one service, and carries out several at once.

The offset of a request is committed once its task has ended. So the task of a worker that dies is
delivered to another one, which does it again.
"""

import threading
from collections.abc import Mapping

from sessionary.producers.client import SessionClient
from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import ProducerError, QueueFull, SessionaryError
from sessionary.producers.ports import OnReceipt, Receipt
from sessionary.producers.request_ports import Condition
from sessionary.producers.tasks.attempt import DEFAULT_TIMES, TaskAttempt, TaskTimes
from sessionary.producers.tasks.functions import TaskFunction
from sessionary.producers.tasks.sender import TaskSender
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import TaskRequest

_DONE = Receipt(None, None)
_STOPPING = "the worker stops"
_TaskKey = tuple[str, str]  # session id, run id


class TaskWorker:
    """Carries out the tasks of a client's tenant and service. Start it once, and close it.

        with SessionClient(tenant_id="acme", service_id="billing", agent_id="worker-1") as client:
            worker = TaskWorker(client, {"model_training": train})
            worker.start()
            stop.wait()
            worker.close()

    Each task has a thread of its own. A function that is running when the worker closes is not
    awaited for long: the task is delivered again, to another worker.
    """

    def __init__(
        self,
        client: SessionClient,
        functions: Mapping[str, TaskFunction],
        *,
        concurrency: int = 4,
        times: TaskTimes = DEFAULT_TIMES,
    ) -> None:
        """Connect to nothing yet.

        Args:
            client: Sends the tasks' events. Its settings name Kafka and the control API; its
                library keeps what is too large for events.
            functions: The functions, by the type of task; `functions_of` finds those of a module.
            concurrency: How many tasks are carried out at once.
            times: When a silent task is heard of, and when a lost worker's task begins again.

        Raises:
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ProducerError: The client's ports serve no workers.
        """
        requests, lookup = client.core.ports.task_requests, client.core.ports.tasks
        if requests is None or lookup is None:
            raise ProducerError("the ports of this client serve no workers of tasks")
        client.core.ports.control.check_configured()
        self._client = client
        self._requests, self._lookup = requests, lookup
        self._functions = functions
        self._concurrency = concurrency
        self._times = times
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._at_work: dict[_TaskKey, list[OnReceipt]] = {}
        self._threads: set[threading.Thread] = set()

    def health(self) -> Condition:
        """Return whether requests are still read, and a line for people. Kafka may be away."""
        return (True, _STOPPING) if self._stopped.is_set() else self._requests.state.health()

    def readiness(self) -> Condition:
        """Return whether the worker can be given tasks, and a line for people: if not, why not."""
        return (False, _STOPPING) if self._stopped.is_set() else self._requests.state.readiness()

    def start(self) -> None:
        """Begin to take requests, on a thread of its own."""
        self._requests.start(self._take_request)

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no further requests; wait up to `timeout_s` for the tasks at work."""
        self._stopped.set()
        self._requests.close(0.0)
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s / len(threads))
        self._requests.close(timeout_s)

    def _take_request(self, request: TaskRequest, on_receipt: OnReceipt) -> None:
        """Begin a task on a thread of its own. Raises `QueueFull` if all threads are at work."""
        key = request.session_id, request.run_id
        with self._lock:
            if (waiting := self._at_work.get(key)) is not None:
                waiting.append(on_receipt)  # delivered again after a rebalance: one end is for all
                return
            if len(self._at_work) >= self._concurrency:
                raise QueueFull(f"{self._concurrency} tasks are at work")
            self._at_work[key] = [on_receipt]
            thread = threading.Thread(
                target=self._carry_out, args=(request, key), name=f"sessionary-task-{request.run_id}", daemon=True
            )
            self._threads.add(thread)
        thread.start()

    def _carry_out(self, request: TaskRequest, key: _TaskKey) -> None:
        receipt = _DONE
        sender = TaskSender(self._new_emitter(request), request.run_id, self._stopped.is_set)
        parts = (request, self._lookup, sender, self._client.core.on_error, self._stopped.is_set, self._times)
        try:
            TaskAttempt(*parts, self._client.artifacts).carry_out(self._functions)
        except SessionaryError as error:
            if not self._stopped.is_set():
                self._client.core.on_error(error)
            receipt = Receipt(None, None, str(error))  # it is asked for again
        finally:
            with self._lock:
                waiting = self._at_work.pop(key)
                self._threads.discard(threading.current_thread())
            sender.close()
        for on_receipt in waiting:
            on_receipt(receipt)

    def _new_emitter(self, request: TaskRequest) -> Emitter:
        key = SessionKey(request.tenant_id, request.session_id)
        emitter = self._client.core.new_emitter(key, request.user_id, request.data_classes)
        emitter.epoch = request.epoch
        return emitter
