"""A long text that a run writes in chunks, with a checkpoint after each of them."""

from pathlib import Path

import pytest

from sessionary.producers import Run, Session
from sessionary.producers.artifacts import ArtifactLibrary, ArtifactStream, continuation_prompt
from sessionary.producers.testing import memory_client
from sessionary.schemas.events import ArtifactChunkAppended, CheckpointSaved

PARAGRAPHS = [f"Paragraph {number}: {'text ' * 40}\n" for number in range(40)]


class Writer:
    """Writes the paragraphs; its process dies after it stored one, before the checkpoint."""

    def __init__(self, library: ArtifactLibrary, session: Session) -> None:
        self.library, self.session = library, session
        self.prompts: list[str] = []

    def write(self, run: Run, dies_in: int | None = None) -> ArtifactStream:
        stream = self._open_stream(run)
        written = stream.read().decode().count("\n")
        self.prompts.append(continuation_prompt(stream.read().decode(), ["the rest"]))
        for number in range(written, len(PARAGRAPHS)):
            done = stream.append(PARAGRAPHS[number])
            if number == dies_in:
                raise KeyboardInterrupt
            run.checkpoint(None, "draft", last_item_id=stream.artifact_id, bytes_written=done)
        return stream

    def _open_stream(self, run: Run) -> ArtifactStream:
        last = run.last_checkpoint
        if last is None:
            return self.library.stream(self.session, "markdown")
        return self.library.stream(
            self.session, "markdown", artifact_id=last.last_item_id, bytes_written=last.bytes_written
        )


def test_a_text_goes_on_where_the_last_checkpoint_was_saved(tmp_path: Path) -> None:
    client, memory = memory_client(artifacts=tmp_path)
    with client, client.session(user_id="u") as session:
        assert client.artifacts is not None
        writer = Writer(client.artifacts, session)
        run = session.run("report", run_id="r")
        run.__enter__()
        with pytest.raises(KeyboardInterrupt):
            writer.write(run, dies_in=35)
        run._leave_metadata()
        before = len(memory.events())
        with session.resume_run("r") as resumed:
            artifact = writer.write(resumed).complete()
        # The chunk behind the checkpoint was cut off: nothing is missing, and nothing is twice.
        assert client.artifacts.load(artifact).decode() == "".join(PARAGRAPHS)
    payloads = [event.payload for event in memory.events()]
    for chunks in (payloads[:before], payloads[before:]):
        offsets = [chunk.offset for chunk in chunks if isinstance(chunk, ArtifactChunkAppended)]
        assert offsets == sorted(set(offsets))
    saved = [payload for payload in payloads if isinstance(payload, CheckpointSaved)]
    assert len(saved) == len(PARAGRAPHS)
    quoted = [line for line in writer.prompts[1].splitlines() if line.startswith("Paragraph")]
    assert len(quoted) <= 30
    assert quoted[-1] == PARAGRAPHS[34].rstrip()
    assert "Continue with the next paragraph. Do not repeat or rewrite" in writer.prompts[1]
