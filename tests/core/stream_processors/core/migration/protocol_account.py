"""The six invariants of migrations, each by what was sent and what was written, and nothing else.

Like the model it imports nothing of the product.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.core.stream_processors.core.migration.protocol_model import Said, hash_of

EPOCHS = "accepted epochs never fall"
OWNERS = "an epoch has one owner"
COMMITS = "nothing of an epoch is accepted after the record that ends it"
HASHES = "the target's hash is that of all accepted events"
AUDITS = "each rejected event is audited exactly once"
SUCCESSES = "a key succeeds once"
INVARIANTS = (EPOCHS, OWNERS, COMMITS, HASHES, AUDITS, SUCCESSES)


class Line(NamedTuple):
    """An audit record: its kind, and what it says of the session after it."""

    kind: str
    event_id: str | None
    epoch: int
    owner: str | None
    step: str | None = None  # of a migration


class Step(NamedTuple):
    """An event, or None if time passed: its verdict, what was written, and the session after it."""

    said: Said | None
    event_id: str
    verdict: str
    lines: Sequence[Line]
    letters: Sequence[str]  # reasons of rejected records
    epoch: int
    owner: str
    version: int
    content: str


class ProtocolAccount:
    """What was seen of one session; `found`: by invariant, what is wrong."""

    def __init__(self, owner: str) -> None:
        self.found: Mapping[str, list[str]] = {name: [] for name in INVARIANTS}
        self._epoch = self._accepted = self._begun = 1
        self._owners = {1: owner}
        self._version, self._content = 1, "{}"
        self._audited: Counter[str] = Counter()
        self._late_epochs: set[int] = set()
        self._successes: set[str] = set()

    def take(self, step: Step) -> None:
        """Take the next thing that happened, in the order of the log."""
        checks = {
            EPOCHS: self._check_epochs,
            OWNERS: self._check_owners,
            COMMITS: self._check_commits,
            HASHES: self._check_hashes,
            AUDITS: self._check_audits,
            SUCCESSES: self._check_successes,
        }
        for name, check in checks.items():
            self.found[name].extend(check(step))

    def _check_epochs(self, step: Step) -> Iterator[str]:
        if step.epoch < self._epoch:
            yield f"the session's epoch is {step.epoch} after {self._epoch}"
        self._epoch = max(self._epoch, step.epoch)
        if step.said is not None and step.verdict == "applied":
            if step.said.epoch < self._accepted:
                yield f"{step.said} is accepted after one of epoch {self._accepted}"
            self._accepted = max(self._accepted, step.said.epoch)

    def _check_owners(self, step: Step) -> Iterator[str]:
        reported = [(line.epoch, line.owner) for line in step.lines if line.owner is not None]
        for epoch, owner in (*reported, (step.epoch, step.owner)):
            if self._owners.setdefault(epoch, owner) != owner:
                yield f"epoch {epoch} is {owner}'s, after {self._owners[epoch]}"

    def _check_commits(self, step: Step) -> Iterator[str]:
        if step.said is not None and step.verdict == "applied" and step.said.epoch < self._begun:
            yield f"{step.said} is accepted, though epoch {self._begun} had begun"
        for line in step.lines:
            if line.step == "completed" or line.kind == "take_over":
                self._begun = max(self._begun, line.epoch)

    def _check_hashes(self, step: Step) -> Iterator[str]:
        said = step.said
        if said is not None and step.verdict == "applied":
            if said.kind == "write":
                self._version, self._content = self._version + 1, said.content
            elif said.kind == "accept" and (said.version, said.content) != (self._version, hash_of(self._content)):
                yield f"the target has version {said.version} of another content than {self._content!r}"
        if (step.version, step.content) != (self._version, self._content):
            yield f"the session has version {step.version}, {step.content!r}, not {self._version}, {self._content!r}"

    def _check_audits(self, step: Step) -> Iterator[str]:
        """A beat is never audited; lateness is once in an epoch."""
        rejections = [line for line in step.lines if line.kind == "rejection"]
        self._audited.update(line.event_id or "" for line in rejections)
        wanted, reason = 0, step.verdict.removeprefix("rejected ")
        is_beat = step.said is not None and step.said.kind == "beat"
        if reason != step.verdict and not is_beat:
            is_reported = reason == "late" and step.epoch in self._late_epochs
            wanted = 0 if is_reported else 1
            if reason == "late":
                self._late_epochs.add(step.epoch)
            if list(step.letters) != [reason]:
                yield f"{step.said}: the letters are {step.letters}, the verdict is {step.verdict}"
        if len(rejections) != wanted or self._audited[step.event_id] > 1:
            yield f"{step.said}, {step.verdict}: {len(rejections)} audit records instead of {wanted}"

    def _check_successes(self, step: Step) -> Iterator[str]:
        said = step.said
        if said is not None and said.kind == "end_call" and said.succeeded and step.verdict == "applied":
            if said.key in self._successes:
                yield f"{said.key} succeeds again: {said}"
            self._successes.add(said.key)
