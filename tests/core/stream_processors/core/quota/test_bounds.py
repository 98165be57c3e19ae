"""The bounds of a tenant's claims."""

import pytest

from sessionary.stream_processors.core.quota import claims as claims_module
from sessionary.stream_processors.core.quota.claims import take_notice
from tests.core.stream_processors.core.quota.test_claims import QUEUED, notice, states, take


def test_the_row_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "WAITING_MAX", 1)
    monkeypatch.setattr(claims_module, "CLAIMS_MAX", 4)
    row = take(QUEUED, *(("requested", run_id) for run_id in "abcd"))
    assert states(row) == {"a": "granted", "b": "granted", "c": "waiting", "d": "rejected"}
    with pytest.raises(OverflowError, match="tenant acme has 4 claims"):
        take_notice(row, notice("requested", "e"), QUEUED, 9)
