"""Requests of the workers' transactions that come late, by a proxy between workers and brokers."""

from collections import Counter
from functools import partial
from typing import Final

from confluent_kafka import KafkaError

from tests.late_requests.proxy import How, KafkaProxy, LateRequest
from tests.late_requests.wire import Request

# One after another, by whatever worker sends the next one.
LATE: Final[tuple[tuple[str, How], ...]] = (
    ("EndTxn", "late"),
    ("EndTxn", "repeated"),
    ("AddPartitionsToTxn", "late"),
    ("Produce", "late"),
    ("InitProducerId", "late"),
    ("EndTxn", "late"),
)
_HELD_S = 60.0  # other faults may leave no worker that has a broker
_ANSWERED_S = 20.0


class RequestEndedAnother(Exception):
    """A late request ended a transaction that is not its own."""


def delay_requests(proxy: KafkaProxy) -> str:
    """Let the requests of `LATE` come late; return how many did, and what the brokers said.

    Raises `TimeoutError` if none came, `RequestEndedAnother`.
    """
    answers = Counter[str]()
    for api, how in LATE:
        late = proxy.hold(partial(_is_transactional, api), how)
        lost: list[LateRequest] = []
        if api == "InitProducerId":  # a producer whose transaction's end is in doubt is replaced
            lost.append(proxy.hold(partial(_is_transactional, "EndTxn")))
        try:
            _deliver(late, answers)
        finally:
            for each in (late, *lost):
                proxy.withdraw(each)
    if not answers:
        raise TimeoutError(f"no worker sent any of {', '.join(api for api, _ in LATE)} within {_HELD_S:g} s each")
    return ", ".join(f"{count} times {what}" for what, count in sorted(answers.items()))


def _deliver(late: LateRequest, answers: "Counter[str]") -> None:
    """Deliver a request once it is held, before the second `Produce` that its worker sends then."""
    if not late.wait_held(_HELD_S):
        return
    assert late.request is not None
    produced, transactional_id = 0, late.request.transactional_id

    def is_moment(request: Request) -> bool:
        nonlocal produced
        produced += request.api == "Produce" and request.transactional_id == transactional_id
        return produced >= 2

    late.deliver_before(is_moment)
    if not late.wait_answered(_ANSWERED_S):
        answers[f"{late.request.api} never taken"] += 1  # its broker, or its worker, has ended
        return
    if late.request.api == "EndTxn" and late.met_open and not late.error:
        raise RequestEndedAnother(f"{late.request.label} of {transactional_id} ended another transaction")
    said = "carried out" if not late.error else KafkaError(late.error).name()
    answers[f"{late.request.api} {late.how}, {said}"] += 1


def _is_transactional(api: str, request: Request) -> bool:
    return request.api == api and request.transactional_id is not None
