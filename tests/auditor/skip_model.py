"""The oracle's model of records that were not folded, because an operator decided so."""

from dataclasses import dataclass

from tests.auditor.decoding import Decision, LogEntry, Row


@dataclass
class Decided:
    """A decision that was taken at an offset, and the offsets that it leaves unfolded, if any.

    `rejected` counts the records among them that are rejected; `is_cut`: a log that was cut gave
    the offsets to other records.
    """

    offset: int
    first: int = 0
    last: int = -1
    event_type: str = ""
    rejects: bool = False
    is_cut: bool = False
    rejected: int = 0


class SkipModel:
    """Which records are left out, and what is wrong with the decisions to do so (`faults`)."""

    number: int
    rejected: list[Row]
    outcomes: dict[int, str]

    def __init__(self) -> None:
        super().__init__()
        self.next_offset = 0
        self.decided: list[Decided] = []
        self.faults: list[str] = []

    def take_decisions(self, offset: int) -> None:
        raise NotImplementedError

    def leave_offsets(self, decision: Decision) -> Row:
        """Leave offsets unfolded from now on; return what the audit trail must say."""
        first, last, is_cut = decision.first, decision.last, decision.event_type == "log_truncation_accepted"
        what = f"{decision.event_type} of offsets {first} to {last} of partition {self.number}"
        if first > last or (last >= decision.offset if is_cut else first != decision.offset):
            self.faults.append(f"{what} was decided at offset {decision.offset}")
        if decision.offset < self.next_offset:
            self.faults.append(f"{what} came after offset {self.next_offset - 1} was done")
        if not is_cut:
            self.next_offset = max(self.next_offset, last + 1)
        rejects = decision.event_type != "log_gap_accepted"
        self.decided.append(Decided(decision.offset, first, last, decision.event_type, rejects, is_cut))
        return {"kind": "decision", "reason_code": decision.event_type}

    def leave_out(self, entry: LogEntry) -> str:
        """Return the outcome of a record that is not folded, '' if it is to be folded."""
        if entry.offset >= self.next_offset:
            self.next_offset = entry.offset + 1
            return ""
        decided = self._decision_about(entry.offset)
        if decided is None:
            self.take_decisions(self.next_offset)  # the log was cut
            decided = self._decision_about(entry.offset)
        if decided is None:
            self.faults.append(f"offset {entry.offset} of partition {self.number} came again, and no decision says so")
            return "unfolded"
        if decided.event_type == "log_gap_accepted":
            self.faults.append(f"the gap that was accepted in partition {self.number} has a record at {entry.offset}")
        outcome = "unfolded"
        if decided.rejects and not (decided.is_cut and entry.key is None):  # ticks of a cut log are left out
            place = {"source_partition": self.number, "source_offset": entry.offset}
            self.rejected.append({**place, "reason": "skipped"})
            decided.rejected += 1
            outcome = "rejected skipped"
        if not decided.is_cut:
            self.outcomes[entry.offset] = outcome
        return outcome

    def _decision_about(self, offset: int) -> Decided | None:
        return next((one for one in reversed(self.decided) if one.first <= offset <= one.last), None)
