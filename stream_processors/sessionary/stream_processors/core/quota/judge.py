"""The judge of quotas, over a separate log, and its rows.

A row has all claims to one quota of a tenant, and its tokens; it goes when there are neither. While
a claim waits, the limits are looked at every few seconds, because an operator may raise them. The
tokens of a window are forgotten when it ends.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import Decoder, encode_record, record_headers
from sessionary.schemas.errors import DecodeError, Invalid
from sessionary.schemas.ids import checked_name, quota_key
from sessionary.schemas.records import QuotaNotice, TenantQuota, Tick
from sessionary.schemas.types import ClockRepair, RejectionReason, RuleSet
from sessionary.stream_processors.core.clock import NEVER_MS
from sessionary.stream_processors.core.judge import NO_SESSION, Arrival
from sessionary.stream_processors.core.model import (
    Decision,
    Emitted,
    EventLog,
    LogRecord,
    OutputCause,
    RowLookup,
    Stream,
)
from sessionary.stream_processors.core.quota.claims import has_waiting, look_again, take_notice
from sessionary.stream_processors.core.quota.limits import LimitsOf
from sessionary.stream_processors.core.rows import AnyRows, RowKind

LOOK_MS: Final = 2_000
_FIXED_BYTES, _CLAIM_BYTES = 200, 20


class ClaimsChanged(NamedTuple):
    """The claims to a quota changed to these; None: there are none."""

    row: TenantQuota | None


class QuotaJudge:
    """Implements `Judge`, and `Rows` of its only family, for the claims to quotas.

    `limits_of` returns a tenant's limits as they are now.
    """

    def __init__(self, limits_of: LimitsOf) -> None:
        self.kinds = (RowKind(TenantQuota, live=True, prefixes=record_headers(TenantQuota), encode=encode_record),)
        self.families: Sequence[AnyRows] = (self,)
        self.streams: frozenset[Stream] = frozenset()
        self.reported_facts: frozenset[type[Any]] = frozenset()
        self._limits_of = limits_of
        self._decoder = Decoder()

    def read(
        self,
        record: LogRecord,
        row: Any,
        decoder: Decoder,
        log: EventLog,
        now_ms: int,
        rules: RuleSet,
        outage_end_ms: int = 0,
    ) -> Arrival | None:
        """Read a record of the topic of quotas; None for a tick. `decide` reads the value."""
        if record.key is None:
            try:
                if isinstance(decoder.decode_event(record.value), Tick):
                    return None
            except DecodeError:
                pass
        return Arrival(record, NO_SESSION, None, None, log, now_ms, rules, outage_end_ms)

    def decode(self, value: bytes) -> TenantQuota:
        """Return the claims to a quota. Raises `DecodeError`."""
        row = self._decoder.decode_record(value)
        if not isinstance(row, TenantQuota):
            raise DecodeError("unknown_schema", f"a {type(row).__name__} is no row of quotas")
        return row

    def decide(self, row: TenantQuota | None, arrival: Arrival, rows: RowLookup) -> Decision:
        """Decide on a session's notice. Any other record is rejected, and changes nothing."""
        notice = self._read_notice(arrival)
        if not isinstance(notice, QuotaNotice):
            return Decision((), rejection=notice)
        limits = self._limits_of(notice.tenant_id)
        try:
            after = take_notice(row, notice, limits, arrival.now_ms, arrival.clock_repair)
        except OverflowError:
            return Decision((), rejection="too_many_children")
        return Decision(() if after is row else (ClaimsChanged(after),))

    def _read_notice(self, arrival: Arrival) -> QuotaNotice | RejectionReason:
        """Return the notice in a record, or why the record is none."""
        try:
            notice = self._decoder.decode_record(arrival.record.value)
        except DecodeError as error:
            return error.reason
        if not isinstance(notice, QuotaNotice):
            return "unknown_event_type"
        if "UNKNOWN" in (notice.quota, notice.step):
            return "invalid_value"
        try:
            checked_name("tenant", notice.tenant_id)
        except Invalid:
            return "invalid_value"
        return notice if quota_key(notice.tenant_id, notice.quota) == arrival.record.key else "bad_key"

    def evolve(self, row: TenantQuota | None, fact: ClaimsChanged) -> TenantQuota | None:
        """Return the claims of the fact."""
        return fact.row

    def report(
        self,
        key: bytes,
        row: TenantQuota | None,
        after: TenantQuota | None,
        fact: ClaimsChanged,
        arrival: Arrival | None,
        cause: OutputCause,
    ) -> Sequence[Emitted]:
        """Return nothing: verdicts are sent from the committed rows."""
        return ()

    def estimate_bytes(self, row: TenantQuota) -> int:
        """Return about how many bytes a row takes in the changelog."""
        texts = (len(claim.session_id) + len(claim.run_id) for claim in row.claims)
        return _FIXED_BYTES + _CLAIM_BYTES * len(row.claims) + sum(texts)

    def due_ms(self, row: TenantQuota, outage_end_ms: int = 0) -> int:
        """Return when the limits are looked at again, or the window of the tokens ends."""
        look_ms = row.looked_at + LOOK_MS if has_waiting(row) else NEVER_MS
        return min(look_ms, row.tokens_until) if row.tokens_until else look_ms

    def repair_times(self, row: TenantQuota, repairs: Sequence[ClockRepair]) -> TenantQuota:
        """Return a row with its times as they are after repairs of the partition's clock.

        A window of tokens ends by the clock, so it is left; `look_again` cuts one that is too long.
        """
        for number, _, clock_ms, shift_ms, _ in repairs:
            if number > row.clock_repair:
                row = row._replace(looked_at=min(row.looked_at + shift_ms, clock_ms), clock_repair=number)
        return row

    def is_only_postponed(self, row: TenantQuota, after: TenantQuota) -> bool:
        """Return True if no claim waits, and no token is counted: then the row is never due."""
        return not after.tokens_until and not has_waiting(after)

    def fire(self, key: bytes, row: TenantQuota, rows: RowLookup, now_ms: int, outage_end_ms: int = 0) -> Decision:
        """Look at the limits again."""
        return Decision((ClaimsChanged(look_again(row, self._limits_of(row.tenant_id), now_ms)),))
