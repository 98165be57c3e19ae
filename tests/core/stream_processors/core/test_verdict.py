"""The first checks of a record: whose event it is, by its key and by its bytes."""

import pytest

from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory

BAD_KEYS = [None, b"acme", b"\xff\xfe", b":"]


def audit_kinds(rig: OracleRig) -> list[str]:
    """Return what the last record left in the audit trail."""
    return [line.kind for _, line in rig.outcomes[-1].records_on("audit")]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_heartbeat_under_a_bad_key_is_rejected_without_an_audit_record(key: bytes | None) -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent)
    assert rig.append(key, agent.event_bytes("heartbeat")) == "rejected bad_key"
    assert audit_kinds(rig) == []
    ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
    assert (rejected.event_type, rejected.tenant_id, rejected.session_id) == ("heartbeat", None, None)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_any_other_event_under_a_bad_key_is_audited(key: bytes | None) -> None:
    rig, agent = OracleRig(), EventFactory()
    for value in (agent.event_bytes("session_activity"), b"x", agent.event_bytes("heartbeat", {"user_id": "u" * 300})):
        assert rig.append(key, value) == "rejected bad_key"
        assert audit_kinds(rig) == ["rejection"]
        ((_, rejected),) = rig.outcomes[-1].records_on("rejected")
        assert rejected.event_type is None
