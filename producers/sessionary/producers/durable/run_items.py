"""The progress of a run: its checkpoints, and lists that it works through item by item."""

import re
import uuid
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.durable.call_keys import checked_text
from sessionary.producers.durable.checkpoints import fetch_checkpoints, send_checkpoint
from sessionary.producers.durable.flow import Do, Flow, Pause, run_flow, run_flow_async
from sessionary.producers.durable.large_values import load_value
from sessionary.producers.durable.recorder import Recorder
from sessionary.producers.errors import Invalid, SessionaryError
from sessionary.producers.ports import Json
from sessionary.producers.process.safe_text import replace_surrogates
from sessionary.producers.run_ports import CheckpointView
from sessionary.schemas.events import CheckpointSaved
from sessionary.schemas.limits import NAME_CHARACTERS_MAX
from sessionary.schemas.types import Checkpoint

T = TypeVar("T")
_BORDER = re.compile(r"(?:before|after) call (.+?): (.+)", re.DOTALL)


class ListPosition(NamedTuple):
    """The position in a list."""

    name: str
    done: int = 0
    item_id: str | None = None


class _OpenList(NamedTuple):
    """A list whose loop has begun, and did not end; the loop is gone if it was left."""

    name: str
    loop: "weakref.ref[Any]"


class RunProgress:
    """The checkpoints of one run."""

    def __init__(self, recorder: Recorder, run_id: str) -> None:
        self.last: Checkpoint | None = None  # as the run was resumed
        self.is_resumed = False
        self.current: ListPosition | None = None  # the list that is worked through
        self.open_list: _OpenList | None = None
        self.recorder = recorder
        self._fields = EnvelopeFields(run_id=run_id)

    def item_name(self) -> str | None:
        """Return list and number of the item that is worked on; None outside of lists."""
        if self.current is None or self.open_list is None or self.open_list.loop() is None:
            return None
        return f"{self.current.name} {self.current.done + 1}"

    def place_of(self, name: str) -> ListPosition:
        """Return how far a list was worked through before the run was resumed."""
        last = self.last
        if last is None or last.operation != name or last.processed_count is None:
            return ListPosition(name)
        return ListPosition(name, last.processed_count, last.last_item_id)

    def read_saved(self, name: str) -> tuple[ListPosition | None, list[Json]]:
        """Return the place at a list's last checkpoint with data, and its results. Blocks.

        Without such a checkpoint, or if the run is not resumed, the place is None.
        """
        if not self.is_resumed:
            return None, []
        found = fetch_checkpoints(self.recorder, self._fields.run_id, name)
        saved = next((each for each in reversed(found) if each.processed_count is not None), None)
        if saved is None or saved.processed_count is None:
            return None, []
        data = load_value(self.recorder.artifacts, saved.data_json)
        results = data.get("partial_results") if isinstance(data, dict) else None
        place = ListPosition(name, saved.processed_count, saved.last_item_id)
        return place, results if isinstance(results, list) else []

    def save_position(self, place: ListPosition, results: list[Json]) -> None:
        """Save how far a list got; returns once the broker has it. Raises as `Session.emit`."""
        saved = CheckpointSaved(str(uuid.uuid4()), place.name, processed_count=place.done, last_item_id=place.item_id)
        data = {"processed_count": place.done, "partial_results": results, "last_item_id": place.item_id}
        send_checkpoint(self.recorder, saved, data, self._fields)

    def save_again(self, found: CheckpointView) -> None:
        """Make an older checkpoint the run's last one: the run goes on from there."""
        place = found.stage, found.processed_count, found.last_item_id, found.bytes_written, found.data_json, found.kind
        saved = CheckpointSaved(str(uuid.uuid4()), found.operation, *place)
        self.recorder.send_acknowledged(saved, self._fields)
        kept = found.kind, found.stage, found.processed_count, found.last_item_id, found.bytes_written
        self.last = Checkpoint(saved.checkpoint_id, found.operation, found.at_ms, *kept)

    def keep_place(self, saved: CheckpointSaved) -> CheckpointSaved:
        """Return a checkpoint with the place in the list that is worked through, if there is one.

        A run's row has only its last checkpoint: without the place a resumed list would do again
        what followed the list's own checkpoint. One with data is kept by itself.
        """
        if self.current is None or saved.processed_count is not None or saved.data_json is not None:
            return saved
        name, done, item_id = self.current
        stage = saved.operation if saved.stage is None else saved.stage
        return saved._replace(operation=name, stage=stage, processed_count=done, last_item_id=item_id)

    def save_border(self, tool_name: str, side: str, idem_key: str, fields: EnvelopeFields) -> None:
        """Save that a tool with an effect is about to be called, or was. Raises nothing.

        In a list the checkpoint is the list's, so that a resumed run finds the list's position.
        """
        stage = f"{side} call {tool_name}: {idem_key}"[:NAME_CHARACTERS_MAX]
        saved = self.keep_place(CheckpointSaved(str(uuid.uuid4()), tool_name, stage))
        if side == "after":
            saved = saved._replace(kind="tool_calls_done")
        try:
            self.recorder.send(saved, fields)
        except SessionaryError as error:  # the call itself is recorded
            self.recorder.on_error(error)


def border_call(checkpoint: Checkpoint | None) -> tuple[str, str] | None:
    """Return tool and key of the call at whose border a checkpoint was saved; None for others."""
    found = _BORDER.fullmatch((checkpoint and checkpoint.stage) or "")
    if found is None or len(found[0]) == NAME_CHARACTERS_MAX:  # perhaps it was cut
        return None
    return found[1], found[2]


class ListSteps(NamedTuple):
    """Records a list as a step of its run."""

    # The list's name, and how many items its last checkpoint has. None: it was worked through.
    begin: Callable[[str, int | None], Flow[EnvelopeFields | None]]
    finish: Callable[[str, int, EnvelopeFields], Flow[None]]


class RunItems(Generic[T]):
    """The items of a list that are still to be done, made by `Run.items`. Use it once.

    For `for` and `async for`; the latter never blocks the event loop.

    Attributes:
        results: The results of the items so far, as JSON can hold them: append each item's own.
            They are saved with each checkpoint, and a resumed list begins with those of its
            checkpoint.
    """

    def __init__(
        self,
        progress: RunProgress,
        steps: ListSteps,
        source: "Iterable[T] | AsyncIterable[T]",
        name: str,
        every: int,
        item_id: Callable[[T], str] | None,
    ) -> None:
        if every < 1:
            raise Invalid("invalid_value", f"every is {every}: use 1 or more")
        self._progress = progress
        self._steps = steps
        checked_text(f"{name}", "the name of a list")
        self._source = source
        self._every = every
        self._item_id = item_id
        self.results: list[Json] = []
        self._fields = EnvelopeFields()
        self._place = ListPosition(name)
        self._before = progress.place_of(name)  # of an earlier process
        self._saved = 0
        self._loop: weakref.ref[Any] | None = None

    @property
    def _pause(self) -> Pause | None:
        return self._progress.recorder.waits.pause

    def __iter__(self) -> Iterator[T]:
        if isinstance(self._source, AsyncIterable):
            raise TypeError("the items come asynchronously: use `async for`")
        loop = self._loop_over(self._source)
        self._loop = weakref.ref(loop)
        return loop

    def __aiter__(self) -> AsyncIterator[T]:
        loop = self._loop_async()
        self._loop = weakref.ref(loop)
        return loop

    def _loop_over(self, source: Iterable[T]) -> Iterator[T]:
        if not run_flow(self._begin(), self._pause):
            return
        for item in source:
            if not self._was_done(item):
                yield item
                run_flow(self._count_item(item), self._pause)
        run_flow(self._finish(), self._pause)

    async def _loop_async(self) -> AsyncIterator[T]:
        if not await run_flow_async(self._begin(), self._pause):
            return
        async for item in _each(self._source):
            if not self._was_done(item):
                yield item
                await run_flow_async(self._count_item(item), self._pause)
        await run_flow_async(self._finish(), self._pause)

    def _begin(self) -> Flow[bool]:
        """Begin the list; return False if it was worked through before."""
        self._check_alone()
        saved, results = yield Do(lambda: self._progress.read_saved(self._place.name))
        fields = yield from self._steps.begin(self._place.name, None if saved is None else saved.done)
        self.results += results
        if fields is None:
            return False
        # A checkpoint that a tool left within the list may be a later one, and has no results.
        if saved is not None and (results or saved.done >= self._before.done):
            self._before = saved
        self._fields = fields
        assert self._loop is not None
        self._progress.open_list = _OpenList(self._place.name, self._loop)
        self._progress.current = self._before
        self._saved = self._before.done
        return True

    def _check_alone(self) -> None:
        """Raise `Invalid` within the loop over another list: a checkpoint has one list's place."""
        other = self._progress.open_list
        if other is not None and other.loop() is not None:
            raise Invalid(
                "invalid_value",
                f"the list {self._place.name!r} begins before {other.name!r} has ended, and a run remembers its place "
                "in one list at a time: make one list of both, or do the inner one in a run.step",
            )

    def _was_done(self, item: T) -> bool:
        """Count an item that an earlier process has done. Raises `Invalid` if it was another."""
        if self._place.done >= self._before.done:
            return False
        self._place = self._after(item)
        if self._place.done == self._before.done and self._place.item_id != self._before.item_id:
            raise Invalid(
                "invalid_value",
                f"the list {self._place.name} is another one: item {self._place.done} was "
                f"{self._before.item_id!r}, and is {self._place.item_id!r}",
            )
        return True

    def _count_item(self, item: T) -> Flow[None]:
        self._place = self._progress.current = self._after(item)
        if self._place.done % self._every == 0:
            yield from self._save()

    def _finish(self) -> Flow[None]:
        if self._place.done < self._before.done:
            raise Invalid(
                "invalid_value",
                f"the list {self._place.name} is another one: {self._before.done} items were done, and it has "
                f"{self._place.done}",
            )
        if self._place.done != self._saved:
            yield from self._save()
        yield from self._steps.finish(self._place.name, self._place.done, self._fields)
        self._progress.current = self._progress.open_list = None

    def _save(self) -> Flow[None]:
        place, results = self._place, self.results
        yield Do(lambda: self._progress.save_position(place, results))
        self._saved = place.done

    def _after(self, item: T) -> ListPosition:
        if self._item_id is not None:
            item_id: str | None = self._item_id(item)
        else:
            item_id = f"{item}" if isinstance(item, str | int) else None
        return ListPosition(self._place.name, self._place.done + 1, _short_id(item_id))


def _short_id(item_id: str | None) -> str | None:
    return None if item_id is None else replace_surrogates(item_id)[:NAME_CHARACTERS_MAX]


async def _each(source: Any) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
