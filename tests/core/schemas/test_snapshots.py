"""Deltas, compressed snapshots and chains of snapshots."""

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionary.schemas.ids import snapshot_hash
from sessionary.schemas.limits import STATE_LEVELS_MAX
from sessionary.schemas.snapshots import (
    COMPRESSED_ABOVE,
    WHOLE_EVERY,
    SnapshotCorrupt,
    content_size,
    examine_chain,
    find_state_fault,
    read_chain,
    read_snapshot,
    stored_snapshot,
    whole_snapshot,
)
from sessionary.schemas.types import AccessedResource, Snapshot, SnapshotMessage, ToolExecution

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
STATES = st.dictionaries(st.text(max_size=4), VALUES, max_size=5)
CONTEXTS = st.none() | st.text(max_size=40)


def dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def make(number: int, state: Any, parent: Snapshot | None = None, **fields: Any) -> Snapshot:
    """Return a whole snapshot."""
    parent_id = None if parent is None else parent.snapshot_id
    made = Snapshot(f"snap_{number:012x}", parent_id, 1, dump(state), None, "", "full", "none")._replace(**fields)
    made = made._replace(content_bytes=content_size(made))
    return made._replace(content_hash=snapshot_hash(made))


def corrupt(snapshot: Snapshot, parent: Snapshot | None = None) -> str:
    with pytest.raises(SnapshotCorrupt) as caught:
        whole_snapshot(snapshot, parent)
    assert caught.value.snapshot_id == snapshot.snapshot_id
    return caught.value.reason


@settings(max_examples=50)
@given(STATES, STATES, CONTEXTS, CONTEXTS)
def test_a_delta_gives_back_the_very_text(old: Any, new: Any, before: str | None, after: str | None) -> None:
    pad = {"pad": ["x" * 50 for _ in range(40)]}  # so that a delta is worth it
    parent = make(1, {**old, **pad}, context=before)
    child = make(2, {**new, **pad}, parent, context=after)
    assert whole_snapshot(stored_snapshot(child, parent), parent) == child


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (0, False), (None, 0), ([1], [True]), (-0.0, 0.0), ({"a": None}, {}), ({}, {"a": None})],
)
def test_values_that_python_takes_for_equal_are_told_apart(old: Any, new: Any) -> None:
    pad = ["x" * 50 for _ in range(40)]
    parent = make(1, {"value": old, "pad": pad})
    child = make(2, {"value": new, "pad": pad}, parent)
    assert whole_snapshot(stored_snapshot(child, parent), parent).state_json == child.state_json


def test_one_field_of_a_megabyte_is_a_small_delta() -> None:
    """R-003-65: and the reconstruction is equal."""
    state = {f"key {number}": "x" * 100 for number in range(10_000)}
    parent = make(1, state)
    delta = stored_snapshot(make(2, {**state, "key 5000": "changed"}, parent), parent)
    assert parent.content_bytes > 1_000_000
    assert delta.state_json == '[{"op":"replace","path":"/state/key 5000","value":"changed"}]'


def test_a_window_of_messages_that_moves_on_is_a_small_delta() -> None:
    messages = [SnapshotMessage("user", f"{number:064x}", 5) for number in range(300)]
    parent = make(1, {}, messages=tuple(messages[:200]))
    delta = stored_snapshot(make(2, {}, parent, messages=tuple(messages[2:202])), parent)
    assert [step["op"] for step in json.loads(delta.state_json)] == ["remove", "remove", "add", "add"]


def test_a_large_content_is_compressed_and_comes_back_the_same() -> None:
    """R-003-64."""
    text = "a text that repeats " * 1_000
    whole = make(1, {"text": text}, context=text)
    stored = stored_snapshot(whole, None)
    assert (stored.compression, stored.state_json, stored.context) == ("gzip", "", None)
    assert len(stored.body or b"") < whole.content_bytes // 20
    assert whole_snapshot(stored, None) == whole
    small = make(2, {"text": "x" * (COMPRESSED_ABOVE - 100)})
    assert stored_snapshot(small, None) == small


def test_a_conversation_of_200_turns_is_stored_in_a_fifth() -> None:
    turns, context, parent, chain = [], "", None, list[Snapshot]()
    plain = stored = 0
    for number in range(200):
        turns.append(
            {"role": "user" if number % 2 == 0 else "assistant", "text": f"turn {number}: {number**7:x} " * 20}
        )
        context += f"{turns[-1]['role']}: {turns[-1]['text']}\n"
        whole = make(number, {"turns": turns}, parent, context=context)
        as_sent = stored_snapshot(whole, parent if number % 10 else None)
        chain.append(as_sent)
        plain += whole.content_bytes
        stored += len(as_sent.state_json) + len(as_sent.context or "") + len(as_sent.body or b"")
        parent = whole
    assert stored * 5 <= plain
    whole_ones = read_chain({each.snapshot_id: each for each in chain}, chain[-1].snapshot_id)
    assert whole_ones[-1] == parent


class Touched(dict[str, Snapshot]):
    """Notes which snapshots are read."""

    def __init__(self, chain: list[Snapshot]) -> None:
        super().__init__({each.snapshot_id: each for each in chain})
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Snapshot:
        self.names.add(name)
        return super().__getitem__(name)


def test_one_snapshot_is_read_from_one_whole_one_and_the_deltas_after_it() -> None:
    pad = {"pad": ["x" * 50 for _ in range(40)]}
    wholes, chain = list[Snapshot](), list[Snapshot]()
    for number in range(3 * WHOLE_EVERY):
        parent = wholes[-1] if wholes else None
        wholes.append(make(number, {"n": number, **pad}, parent))
        chain.append(stored_snapshot(wholes[-1], parent if number % WHOLE_EVERY else None))
    for number, whole in enumerate(wholes):
        touched = Touched(chain)
        assert read_snapshot(touched, whole.snapshot_id) == whole
        deltas = number % WHOLE_EVERY
        assert [each.encoding for each in chain if each.snapshot_id in touched.names] == ["full", *["delta"] * deltas]
    # Neither those before it nor their damage matter.
    known = {each.snapshot_id: each for each in chain[WHOLE_EVERY:]}
    assert read_snapshot(known, chain[-1].snapshot_id) == wholes[-1]
    del known[chain[-2].snapshot_id]
    with pytest.raises(SnapshotCorrupt, match=f"snapshot {chain[-2].snapshot_id}, the parent of .*, is missing"):
        read_snapshot(known, chain[-1].snapshot_id)


def test_any_flipped_byte_is_found() -> None:
    tool = ToolExecution("call", "search", "{}", "succeeded", "[1]", 7)
    resources = (AccessedResource("file:///a", 1, "read"),)
    whole = make(1, {"a": 1}, turn=3, tool=tool, resources=resources, metadata={"server_version": "1"})
    for damaged in (
        whole._replace(state_json='{"a":2}'),
        whole._replace(turn=4),
        whole._replace(tool=tool._replace(data_json="[2]")),
        whole._replace(resources=()),
        whole._replace(metadata={}),
    ):
        assert corrupt(damaged) == "hash_mismatch"


def test_any_flipped_byte_of_a_compressed_body_is_found() -> None:
    whole = make(1, {"text": [f"{number**3:x}" for number in range(1_000)]})
    packed = stored_snapshot(whole, None)
    body = packed.body or b""
    unharmed = 0
    for place in range(len(body)):
        flipped = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        try:
            assert whole_snapshot(packed._replace(body=flipped), None) == whole
            unharmed += 1
        except SnapshotCorrupt:
            continue
    assert unharmed < 20, "time, system and padding of the file are no content"


@pytest.mark.parametrize(
    "patch",
    [
        "no JSON",
        "{}",
        '[{"op":"copy","from":"/state","path":"/state/a"}]',
        '[{"op":"remove","path":"/state/none"}]',
        '[{"op":"add","path":"/messages/01","value":["user","x",1]}]',
        '[{"op":"add","path":"/messages/-","value":["user"]}]',
        '[{"op":"replace","path":"","value":1}]',
        '[{"op":"add","path":"/state/a","value":NaN}]',
    ],
)
def test_a_patch_that_makes_no_sense_is_damage(patch: str) -> None:
    parent = make(1, {})
    delta = make(2, {}, parent)._replace(encoding="delta", state_json=patch)
    assert corrupt(delta, parent) == "hash_mismatch"


def test_a_compressed_bomb_is_not_read() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(b'["' + b"x" * (9 << 20) + b'",null]') + packer.flush()
    bomb = make(1, {})._replace(compression="gzip", body=body)
    assert corrupt(bomb) == "hash_mismatch"


def test_a_chain_is_read_root_first() -> None:
    first = make(1, {"a": 1})
    second = make(2, {"a": 2}, first)
    third = make(3, {"a": 3}, second)
    known = {each.snapshot_id: each for each in (third, first, second)}
    assert read_chain(known, third.snapshot_id) == [first, second, third]


def test_a_cycle_and_a_missing_parent_are_corruption() -> None:
    """R-003-42."""
    first = make(1, {}, make(2, {}))
    second = make(2, {}, first)
    with pytest.raises(SnapshotCorrupt, match=r"comes back to snapshot snap_000000000002") as cycle:
        read_chain({each.snapshot_id: each for each in (first, second)}, second.snapshot_id)
    assert cycle.value.reason == "broken_chain"
    with pytest.raises(SnapshotCorrupt, match=r"snap_000000000001, the parent of snap_000000000002, is missing"):
        read_chain({second.snapshot_id: second}, second.snapshot_id)
    with pytest.raises(SnapshotCorrupt, match=r"the snapshot asked for, is missing"):
        read_chain({}, "snap_00000000000f")


def test_a_damaged_one_is_reported_and_the_last_good_one_found() -> None:
    """R-003-68."""
    lines = [f"line {number}" for number in range(300)]
    chain: list[Snapshot] = [make(0, {"lines": lines, "number": 0})]
    for number in range(1, 6):
        chain.append(make(number, {"lines": lines, "number": number}, chain[-1]))
    known = {chain[0].snapshot_id: chain[0]}
    known |= {each.snapshot_id: stored_snapshot(each, chain[n]) for n, each in enumerate(chain[1:])}
    hurt = known[chain[3].snapshot_id]
    known[hurt.snapshot_id] = hurt._replace(state_json=hurt.state_json.replace("3", "7"))
    good, faults = examine_chain(known, chain[5].snapshot_id)
    assert good == chain[:3], "of the deltas after it nothing is known"
    assert [(fault.reason, fault.snapshot_id) for fault in faults] == [("hash_mismatch", hurt.snapshot_id)]
    known[chain[4].snapshot_id] = chain[4]  # a whole one: the chain goes on with it
    assert examine_chain(known, chain[5].snapshot_id).good == [*chain[:3], *chain[4:]]
    del known[chain[0].snapshot_id]
    found = examine_chain(known, chain[5].snapshot_id)
    assert (found.good, [fault.reason for fault in found.faults]) == (chain[4:], ["broken_chain"])


def test_a_form_of_a_later_release_is_named() -> None:
    assert corrupt(make(1, {})._replace(compression="zstd")) == "invalid_value"
    assert corrupt(make(1, {})._replace(encoding="delta", state_json="[]")) == "broken_chain"


DEEP = f'{{"a":{"[" * 499}{"]" * 499}}}'


@pytest.mark.parametrize("text", ["{}", ' {"a": 1.5e300}\n', '{"ä":"\\ud800"}', DEEP, f'{{"a":"{"[" * 900}"}}'])
def test_a_json_object_is_a_state(text: str) -> None:
    assert find_state_fault(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", " ", "[1]", "3", "null", '"x"', "{x}", "{} {}", '{"a":NaN}', '{"a":-Infinity}', f'{{"a":{"9" * 5_000}}}'],
)
def test_another_text_is_no_state(text: str) -> None:
    assert find_state_fault(text) == "is not a JSON object, such as {}"


@pytest.mark.parametrize(
    "text", [DEEP.replace("[]", "[{}]"), '["\\"",' * 600, "[" * 600 + '"\\"' * 100_001, '{"a":' * 200_000]
)
def test_a_text_that_is_nested_too_deep_is_not_read(text: str) -> None:
    """Reading it would fail at another depth in another process."""
    assert find_state_fault(text) == f"is nested more than {STATE_LEVELS_MAX} levels deep"


@given(STATES)
@settings(max_examples=50)
def test_what_a_client_writes_is_a_state(state: dict[str, Any]) -> None:
    assert find_state_fault(dump(state)) == ""
