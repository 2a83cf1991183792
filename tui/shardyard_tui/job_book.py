"""Job folders, read into `JobView`s; how far an event file was read is remembered, so looking again reads only what is new."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardyard.errors import ShardyardError
from shardyard.jobs import store
from shardyard.jobs.events import Combined
from shardyard.jobs.folder import Spec, State
from shardyard_tui.facts import Document, EngineError, JobRequest, JobView

ROWS = "tensors.jsonl"
"""Where a job writes one line a tensor."""
MOST_ROWS_BYTES = 1 << 20


@dataclass(slots=True)
class _Tail:
    """How far a job's events were read."""

    offset: Mapping[str, int] = field(default_factory=dict)
    combined: Combined = field(default_factory=Combined)
    progress: Document | None = None
    ended: JobView | None = None
    """The last view of a job that has ended: nothing of it changes any more, unless it is resumed."""


class JobBook:
    """All jobs of this user, as `shardyard jobs list` knows them."""

    def __init__(self) -> None:
        self._tails: dict[str, _Tail] = {}
        self._views: list[JobView] = []
        self._rests: dict[str, int] | None = None
        """When each job's folder changed last, if all have ended; None while one may go on."""

    def jobs(self) -> list[JobView]:
        """All jobs, the newest first. Where all have ended nothing is read, for ended jobs change only by a change of folder."""
        times = _folder_times()
        if times != self._rests:
            self._views = self._all_views()
            ended = len(self._views) == len(times) and all(view.outcome is not None for view in self._views)
            self._rests = times if ended else None
        return self._views

    def _all_views(self) -> list[JobView]:
        found = store.jobs()
        store.refresh(found)
        views = []
        for job in found:
            # A folder that somebody else's program damaged is passed over, as `jobs list` does with what is no job.
            with contextlib.suppress(OSError, ShardyardError, ValueError, KeyError, TypeError):
                views.append(self._view(job))
        return views

    def events(self, job: str, offset: Mapping[str, int]) -> tuple[list[Document], Mapping[str, int]]:
        """Events of one job after `offset`."""
        with said():
            events, after = store.find(job).events(offset)
            return [sound(event) for event in events], after

    def rows(self, job: str, offset: int) -> tuple[list[Document], int]:
        """Whole lines of the job's rows file after `offset`, at most `MOST_ROWS_BYTES` at once."""
        with said():
            path = store.find(job).folder / ROWS
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(MOST_ROWS_BYTES)
        except OSError:
            return [], offset
        end = data.rfind(b"\n") + 1
        return [json.loads(line) for line in data[:end].splitlines()], offset + end

    def start(self, request: JobRequest) -> str:
        """Create a job folder and start its worker."""
        with said():
            job = store.create(Spec(request.verb, request.sources, request.out, dict(request.options), request.slurm))
            job.start()
            return job.id

    def cancel(self, job: str) -> None:
        """Ask a job to stop."""
        with said():
            store.find(job).cancel()

    def resume(self, job: str) -> None:
        """Start a job again."""
        with said():
            self._tails.pop(job, None)
            store.find(job).resume()

    def clean(self) -> int:
        """Remove what is done or cancelled; failed and lost ones may still be resumed."""
        with said():
            gone = [job for job in store.jobs() if job.state() in (State.DONE, State.CANCELLED)]
            for job in gone:
                job.remove()
            return len(gone)

    def _view(self, job: store.Job) -> JobView:
        tail = self._tails.setdefault(job.id, _Tail())
        outcome = job.outcome()
        if tail.ended is not None and outcome is not None and tail.ended.ended == outcome.get("time"):
            return tail.ended
        with contextlib.suppress(OSError):
            events, tail.offset = job.events(tail.offset)
            for event in tail.combined.take(events):
                if event["event"] == "progress":
                    tail.progress = sound(event)
        owner = job.owner()
        view = JobView(
            id=job.id,
            verb=job.spec.verb,
            title=job.title,
            state=job.state().value,
            sources=job.spec.sources,
            out=job.spec.out or "",
            options=job.spec.options,
            created=job.created,
            ended=float((outcome or {}).get("time") or 0.0),
            cancelling=job.cancel_asked,
            progress=tail.progress,
            outcome=outcome,
            host=owner.host if owner else "",
            pid=owner.pid if owner else 0,
            folder=str(job.folder),
            slurm="" if job.spec.slurm is None else job.where(),
        )
        tail.ended = view if outcome is not None else None
        return view


@contextlib.contextmanager
def said() -> Iterator[None]:
    """Turn the library's errors into those of the app."""
    try:
        yield
    except ShardyardError as error:
        raise EngineError(error.message, type(error).__name__, getattr(error, "candidates", ())) from error
    except OSError as error:
        raise EngineError(f"The job folder cannot be used: {(error.strerror or str(error)).lower()}.", "JobError") from error


def _folder_times() -> dict[str, int]:
    try:
        with os.scandir(store.root()) as entries:
            return {entry.name: entry.stat().st_mtime_ns for entry in entries}
    except OSError:
        return {}


def sound(event: Document) -> Document:
    """The event with numbers where numbers belong: what the screens compute with must not be able to stop them."""
    if event.get("event") != "progress":
        return event
    groups = {key: _numbers(event.get(key), ()) for key in ("memory", "disk")}
    return {
        **event,
        **_numbers(event, ("done", "total", "read", "written", "rate", "eta")),
        **groups,
        "item": str(event.get("item") or ""),
    }


def _numbers(given: object, names: tuple[str, ...]) -> dict[str, float | int | None]:
    """The named values (all, without names), None where one is no number."""
    values = given if isinstance(given, Mapping) else {}
    wanted = names or tuple(values)
    return {
        str(name): value if isinstance(value := values.get(name), (int, float)) and not isinstance(value, bool) else None
        for name in wanted
    }
