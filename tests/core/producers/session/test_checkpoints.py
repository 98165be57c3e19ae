"""Checkpoints with data: saved by an operation's name, and loaded by another process.

Covers R-003-14, R-003-38, R-003-39, R-003-40, R-003-52 and R-003-53 in memory; the client that
loads is another one than the client that saved.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, RunOver, Session, SessionClient
from sessionary.producers.artifacts import ArtifactLibrary, FolderStore
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import CheckpointSaved
from tests.core.producers.durable.test_run_items import checkpoints

PAPERS = [f"paper-{number}" for number in range(1, 13)]


class Killed(BaseException):
    """Stands for the death of the process."""


@pytest.fixture
def memory() -> InMemoryTransport:
    return InMemoryTransport()


def client_on(memory: InMemoryTransport, **settings: Any) -> SessionClient:
    client, _ = memory_client(memory=memory, **settings)
    return client


def test_two_saves_are_kept_and_the_latest_is_loaded(memory: InMemoryTransport) -> None:
    """R-003-39, R-003-40."""
    client = client_on(memory)
    session = client.create(user_id="u").start()
    assert session.load_checkpoint("import") is None
    first = session.save_checkpoint("import", {"processed": 1})
    second = session.save_checkpoint("import", {"processed": 2}, stage="half")
    session.save_checkpoint("export", [])
    assert first != second
    with client_on(memory) as other:
        loaded = other.attach(session.session_id)
        assert loaded.load_checkpoint("import") == {"processed": 2}
        assert loaded.load_checkpoint("import", first) == {"processed": 1}
        assert loaded.load_checkpoint("export") == []
    assert [each.stage for each in checkpoints(memory)] == [None, "half", None]
    assert memory.rejections() == []


def test_a_checkpoint_is_never_that_of_another_session_tenant_or_run(memory: InMemoryTransport) -> None:
    """R-003-40; trap 11: keyed by the operation alone, checkpoints leak."""
    client = client_on(memory)
    session = client.create(user_id="u").start()
    session.save_checkpoint("import", "mine")
    assert client.create(user_id="u").start().load_checkpoint("import") is None
    with client_on(memory, tenant_id="zeta") as foreign:
        assert foreign.create(user_id="u").start().load_checkpoint("import") is None
    with session.run("r", run_id="r1"):
        assert session.load_checkpoint("import") is None
        session.save_checkpoint("import", "the run's")
        assert session.load_checkpoint("import") == "the run's"
    assert session.load_checkpoint("import") == "mine"


def test_an_unknown_checkpoint_and_a_bad_name_are_errors(memory: InMemoryTransport) -> None:
    session = client_on(memory).create(user_id="u").start()
    session.save_checkpoint("import", 1)
    with pytest.raises(Invalid, match="has no checkpoint c-9: the last 16"):
        session.load_checkpoint("import", "c-9")
    with pytest.raises(Invalid, match="an operation is named ''"):
        session.save_checkpoint("", 1)
    with pytest.raises(Invalid):
        session.save_checkpoint("import", {1, 2})
    assert len(checkpoints(memory)) == 1


def test_the_last_sixteen_are_kept(memory: InMemoryTransport) -> None:
    session = client_on(memory).create(user_id="u").start()
    ids = [session.save_checkpoint("import", number) for number in range(20)]
    assert [session.load_checkpoint("import", each) for each in ids[4:]] == [*range(4, 20)]
    with pytest.raises(Invalid):
        session.load_checkpoint("import", ids[3])


def test_large_data_are_an_artifact(memory: InMemoryTransport, tmp_path: Path) -> None:
    library = ArtifactLibrary(FolderStore(tmp_path))
    data = {"text": "x" * 300_000}
    session = client_on(memory, artifacts=library).create(user_id="u").start()
    session.save_checkpoint("import", data)
    assert session.load_checkpoint("import") == data
    (saved,) = checkpoints(memory)
    assert saved.data_json is not None
    assert len(saved.data_json) < 1_000


def test_the_verbs_of_asyncio_do_the_same() -> None:
    async def work() -> None:
        client = AsyncSessionClient.wrap(memory_client()[0])
        async with client, client.session(user_id="u") as session:
            first = await session.save_checkpoint("import", [1])
            await session.save_checkpoint("import", [1, 2])
            assert await session.load_checkpoint("import") == [1, 2]
            assert await session.load_checkpoint("import", first) == [1]

    asyncio.run(work())


# Lists that a run works through.


class Analyser:
    """Analyses papers; it is killed in the paper after some number of them."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.computed: list[str] = []
        self.dies_after = dies_after

    def analyse(self, paper: str) -> str:
        if len(self.computed) == self.dies_after:
            raise Killed
        self.computed.append(paper)
        return f"analysis of {paper}"

    def analyse_all(self, session: Session, run_id: str, every: int = 5, **resume: Any) -> list[Any]:
        run = session.resume_run(run_id, **resume) if resume else session.run("r", run_id=run_id, resume=True)
        run.__enter__()
        try:
            analyses = run.items(PAPERS, name="analyse", every=every)
            for paper in analyses:
                analyses.results.append(self.analyse(paper))
        except Killed:
            run._leave_metadata()  # no event says that it ended
            raise
        run.result = analyses.results
        run.__exit__(None, None, None)
        return analyses.results


WANTED = [f"analysis of {paper}" for paper in PAPERS]


def test_a_kill_at_item_eight_redoes_six_to_eight_and_the_result_is_equal(memory: InMemoryTransport) -> None:
    """R-003-52, R-003-53; trap 16: the tail after the last multiple is saved."""
    first, second = Analyser(dies_after=7), Analyser()
    session = client_on(memory).create(user_id="u").start()
    with pytest.raises(Killed):
        first.analyse_all(session, "r")
    with client_on(memory) as other:
        assert second.analyse_all(other.attach(session.session_id, take_over=True), "r") == WANTED
    assert first.computed == PAPERS[:7]
    assert second.computed == PAPERS[5:]
    saved = [(each.processed_count, each.last_item_id) for each in checkpoints(memory)]
    assert saved == [(5, "paper-5"), (10, "paper-10"), (12, "paper-12")]
    assert memory.rejections() == []


def test_of_five_papers_a_kill_after_three_leaves_two_to_compute(memory: InMemoryTransport) -> None:
    """R-003-38: one checkpoint after each new item, and all analyses in the order asked."""
    first, second = Analyser(dies_after=3), Analyser()
    session = client_on(memory).create(user_id="u").start()
    for analyser in (first, second):
        run = session.run("r", run_id="r", resume=True)
        run.__enter__()
        try:
            analyses = run.items(PAPERS[:5], every=1)
            for paper in analyses:
                analyses.results.append(analyser.analyse(paper))
        except Killed:
            run._leave_metadata()
    assert second.computed == PAPERS[3:5]
    assert analyses.results == WANTED[:5]


@pytest.mark.parametrize("place", range(5))
def test_a_run_goes_on_from_each_of_five_checkpoints(memory: InMemoryTransport, place: int) -> None:
    """R-003-14: whichever checkpoint it goes on from, the final result is equal."""
    session = client_on(memory).create(user_id="u").start()
    run = session.run("r", run_id="r")
    run.__enter__()
    analyses = run.items(PAPERS[:10], name="analyse", every=2)
    for paper in analyses:
        analyses.results.append(f"analysis of {paper}")
    run._leave_metadata()  # it dies with its work done, and its end not recorded
    saved = checkpoints(memory)
    assert [each.processed_count for each in saved] == [2, 4, 6, 8, 10]
    again = Analyser()
    with client_on(memory) as other:
        attached = other.attach(session.session_id, take_over=True)
        with attached.resume_run("r", from_checkpoint=saved[place].checkpoint_id) as resumed:
            analyses = resumed.items(PAPERS[:10], name="analyse", every=2)
            for paper in analyses:
                analyses.results.append(again.analyse(paper))
            resumed.result = analyses.results
    assert resumed.result == WANTED[:10]
    assert again.computed == PAPERS[2 * (place + 1) : 10]
    assert memory.rejections() == []


def test_a_run_that_went_back_and_was_killed_goes_on_from_there(memory: InMemoryTransport) -> None:
    session = client_on(memory).create(user_id="u").start()
    with pytest.raises(Killed):
        Analyser(dies_after=11).analyse_all(session, "r", every=2)
    first = checkpoints(memory)[0]
    killed, last = Analyser(dies_after=3), Analyser()
    with pytest.raises(Killed):
        killed.analyse_all(session, "r", every=2, from_checkpoint=first.checkpoint_id)
    assert last.analyse_all(session, "r", every=2) == WANTED
    assert killed.computed == PAPERS[2:5]
    assert last.computed == PAPERS[4:]


def test_an_unknown_checkpoint_or_a_complete_run_is_refused(memory: InMemoryTransport) -> None:
    session = client_on(memory).create(user_id="u").start()
    with pytest.raises(Killed):
        Analyser(dies_after=6).analyse_all(session, "r")
    before = len(memory.events())
    with pytest.raises(Invalid, match="run r has no checkpoint nowhere"):
        session.resume_run("r", from_checkpoint="nowhere").__enter__()
    assert len(memory.events()) == before
    Analyser().analyse_all(session, "r")
    with pytest.raises(RunOver, match="completed"):
        session.resume_run("r", from_checkpoint=checkpoints(memory)[0].checkpoint_id).__enter__()


def test_data_of_a_run_are_loaded_in_its_block(memory: InMemoryTransport) -> None:
    session = client_on(memory).create(user_id="u").start()
    with session.run("r", run_id="r") as run:
        for page in run.items(["a", "b"], every=1):
            run.checkpoint("draft_made", "write", data={"page": page})
        assert session.load_checkpoint("write") == {"page": "b"}
        assert session.load_checkpoint("items") == {
            "processed_count": 2,
            "partial_results": [],
            "last_item_id": "b",
        }
    assert CheckpointSaved in {type(event.payload) for event in memory.events()}
