"""Research in five steps; the model fails in the fourth. Nothing is downloaded or read twice.

python -m examples.research.agent FOLDER SESSION_ID "heat pumps" down    # no model: kill it
python -m examples.research.agent FOLDER SESSION_ID "heat pumps"         # resumes with the analysis

FOLDER holds the downloaded papers, SESSION_ID is any UUID.
"""

import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from examples.workflow.workflow import open_session
from sessionary.producers import Session, SessionClient
from sessionary.producers.artifacts import ArtifactLibrary

PLAN = ["search", "download", "extract", "analyze", "summarize"]


class Web:
    """Stand in for the web: each request is a line of a file."""

    def __init__(self, requests: Path) -> None:
        self._requests = requests
        self._requests.touch()

    def requests(self) -> list[str]:
        """Return all requests, in order."""
        return self._requests.read_text("utf-8").splitlines()

    def search(self, topic: str) -> list[str]:
        """Return addresses of papers."""
        self._count(f"search {topic}")
        return [f"https://papers.example/{number}" for number in (1, 2)]

    def download(self, url: str) -> bytes:
        """Return a paper."""
        self._count(f"download {url}")
        return f"Paper {url}.\nFinding {url[-1]}.\n".encode() * 1_000

    def _count(self, request: str) -> None:
        with self._requests.open("a", encoding="utf-8") as file:
            file.write(request + "\n")


class Model:
    """Stand in for a model, which may be down."""

    def __init__(self, *, down: bool = False, patience_s: float = 0.0) -> None:
        """`down`: `analyze` fails after `patience_s` seconds."""
        self._down = down
        self._patience_s = patience_s

    def analyze(self, findings: Sequence[str]) -> str:
        """Return the sum of the findings. Raises `TimeoutError` if the model is down."""
        if self._down:
            print("the model is down", flush=True)
            time.sleep(self._patience_s)
            raise TimeoutError("the model does not answer")
        return " and ".join(findings)


def research(session: Session, library: ArtifactLibrary, web: Web, model: Model, topic: str) -> str:
    """Do the remaining steps of a run. Each step saves a checkpoint with its progress.

    Papers are too large for events: a step returns their references, and the library has them.
    """

    def download(urls: list[str]) -> list[str]:
        papers = [str(library.save(session, web.download(url), "paper").reference) for url in urls]
        run.checkpoint("sources_fetched", "download", processed_count=len(papers))
        return papers

    def extract(papers: list[str]) -> list[str]:
        findings = [library.load(paper).decode().splitlines()[1] for paper in papers]
        run.checkpoint("tool_calls_done", "extract", processed_count=len(findings))
        return findings

    def analyze(findings: list[str]) -> str:
        draft = model.analyze(findings)
        run.checkpoint("draft_made", "analyze")
        return draft

    def summarize(draft: str) -> str:
        summary = draft.upper()
        library.save(session, summary, "summary")
        run.checkpoint("published", "summarize")
        return summary

    run_id = str(uuid.uuid5(uuid.UUID(session.session_id), topic))
    with session.run("research", run_id=run_id, input=topic, plan=PLAN, mode="detached", resume=True) as run:
        if run.last_checkpoint is None:  # no earlier process began the run
            run.checkpoint("plan_made", "research")
        urls = run.step("search", web.search, topic)
        papers = run.step("download", download, urls)
        findings = run.step("extract", extract, papers)
        draft = run.step("analyze", analyze, findings)
        run.result = run.step("summarize", summarize, draft)
    return str(run.result)


def main(folder: str, session_id: str, topic: str, model_is: str = "up") -> None:
    """Work on one topic, from the point that an earlier process reached."""
    place = Path(folder)
    library = ArtifactLibrary(place / "papers")
    web, model = Web(place / "requests.txt"), Model(down=model_is == "down", patience_s=60)
    with SessionClient(tenant_id="acme", service_id="research", agent_id="researcher") as client:
        print("session", session_id, flush=True)
        session = open_session(client, session_id)
        print("summary", research(session, library, web, model, topic))
        session.complete("researched")


if __name__ == "__main__":
    main(*sys.argv[1:])
