"""The engine as the app sees it: one Protocol, and the real one behind it.

Whatever touches a checkpoint happens in reader processes: a dead mount can hang one without hanging the app (it is killed and
forgotten), a checkpoint of half a million tensors is parsed there and arrives as a small table, and neither numpy nor a format
reader is ever loaded here.  Job folders are read in a thread, since they are tiny and are looked at twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import queue
import shutil
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from shardyard_tui.facts import (
    ByteMap,
    Document,
    EngineError,
    Found,
    JobRequest,
    JobView,
    Listing,
    Opened,
    Reading,
    Scanning,
    TensorDetail,
)

T = TypeVar("T")

REST_S = 30.0
"""A reader that was not asked for this long is ended: it holds memory on a shared machine."""


class Engine(Protocol):
    """All that the screens ask for. Nothing here blocks; what is cancelled stops reading."""

    def scan(self, folder: str) -> AsyncIterator[Found | Scanning]:
        """The checkpoints below a folder, as they are found."""
        ...

    async def listing(self, folder: str) -> Listing:
        """What lies in a folder."""
        ...

    async def open(
        self, path: str, *, tag: str | None = None, progress: Callable[[Reading], None] | None = None, lane: str = "look"
    ) -> Opened:
        """Read a checkpoint's headers."""
        ...

    async def tensor(self, path: str, name: str) -> TensorDetail:
        """Where one tensor's bytes are."""
        ...

    async def statistics(self, path: str, name: str, *, progress: Callable[[Reading], None] | None = None) -> Document:
        """Everything about one tensor's values; reads them all."""
        ...

    async def byte_map(self, path: str, file: str) -> ByteMap:
        """What each part of one of its files is for."""
        ...

    async def stamp(self, path: str) -> float:
        """The newest change of its files."""
        ...

    async def plan(self, request: JobRequest) -> Document:
        """The plan of a merge, export or shrink; no data is read."""
        ...

    async def default_out(self, source: str, verb: str, started_in: str) -> str:
        """A free name for an output, beside the source where that can be written."""
        ...

    async def doctor(self) -> Document:
        """What `shardyard doctor --json` says."""
        ...

    async def has_slurm(self) -> bool:
        """Whether jobs can be handed to Slurm from here."""
        ...

    async def jobs(self) -> list[JobView]:
        """All jobs, the newest first."""
        ...

    async def events(self, job: str, offset: Mapping[str, int]) -> tuple[list[Document], Mapping[str, int]]:
        """A job's events after `offset`, and where to go on from."""
        ...

    async def rows(self, job: str, offset: int) -> tuple[list[Document], int]:
        """The rows that a compare or statistics job has written after `offset`, and where to go on from."""
        ...

    async def start(self, request: JobRequest) -> str:
        """Start a job; returns its ID."""
        ...

    async def cancel(self, job: str) -> None:
        """Ask a job to stop."""
        ...

    async def resume(self, job: str) -> None:
        """Start a job again."""
        ...

    async def clean(self) -> int:
        """Forget the jobs that are done or cancelled; returns how many."""
        ...

    async def close(self) -> None:
        """Let go of everything but the jobs."""
        ...


class Lane:
    """One reader process, asked one thing at a time. It starts when it is first needed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._busy = asyncio.Lock()
        self._rest: asyncio.TimerHandle | None = None

    async def ask(self, question: str, /, **arguments: Any) -> AsyncIterator[Any]:
        """The values that the reader gives, as they come.

        Leaving early (cancelled, or the iterator closed) kills the reader: whatever it hangs on is not waited for.
        """
        async with self._busy:
            if self._rest is not None:
                self._rest.cancel()
            finished = False
            try:
                process = await self._running()
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(_frame((question, arguments)))
                await process.stdin.drain()
                while True:
                    kind, value = pickle.loads(await _read_frame(process.stdout))
                    if kind == "end":
                        break
                    if kind == "error":
                        finished = True
                        raise value
                    yield value
                finished = True
            except (EOFError, OSError, asyncio.IncompleteReadError) as error:
                raise EngineError(self._why_gone(), "JobError") from error
            finally:
                if finished:
                    self._rest = asyncio.get_running_loop().call_later(REST_S, self.end)
                else:
                    self.end()

    @property
    def resting(self) -> bool:
        """Whether its reader is there and has nothing to do."""
        return self._process is not None and self._process.returncode is None and not self._busy.locked()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            # Its stderr must not reach ours: that is the screen.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "shardyard_tui.reader",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=1 << 20,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        return self._process

    def _why_gone(self) -> str:
        code = self._process.returncode if self._process is not None else None
        how = f"by signal {-code}" if code is not None and code < 0 else "unexpectedly"
        return f"The process that reads checkpoints ended {how}; R reads again."

    def end(self) -> None:
        """Kill the reader; the next question starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def close(self) -> None:
        """End the reader and let go of its pipes; one that a dead mount holds is left to the kernel."""
        process = self._process
        if self._rest is not None:
            self._rest.cancel()
        self.end()
        if process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), 1.0)


def _frame(value: object) -> bytes:
    data = pickle.dumps(value, protocol=5)
    return struct.pack("<Q", len(data)) + data


async def _read_frame(stream: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("<Q", await stream.readexactly(8))
    return await stream.readexactly(length)


class Aside:
    """One daemon thread that does what it is asked in turn; a hung one is left behind, never joined."""

    def __init__(self) -> None:
        self._todo: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """The work's result, computed in the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="jobs")
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._todo.put((work, future, loop))
        return await future

    def _run(self) -> None:
        while True:
            work, future, loop = self._todo.get()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # the thread's outermost edge: whatever it was belongs to whoever asked
                failure = error
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, result, failure)


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)


class RealEngine:
    """Readers for checkpoints, a thread for job folders."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._aside = Aside()
        self._book: Any = None

    def _lane(self, name: str) -> Lane:
        return self._lanes.setdefault(name, Lane())

    async def _one(self, lane: str, question: str, progress: Callable[[Reading], None] | None = None, /, **arguments: Any) -> Any:
        result: Any = None
        async for value in self._lane(lane).ask(question, **arguments):
            if isinstance(value, Reading):
                if progress is not None:
                    progress(value)
            else:
                result = value
        return result

    def scan(self, folder: str) -> AsyncIterator[Found | Scanning]:
        return self._lane("scan").ask("scan", folder=folder)

    async def listing(self, folder: str) -> Listing:
        # A reader that is there already answers before another could start.
        lane = "scan" if self._lane("scan").resting else "list"
        found: Listing = await self._one(lane, "listing", folder=folder)
        return found

    async def open(
        self, path: str, *, tag: str | None = None, progress: Callable[[Reading], None] | None = None, lane: str = "look"
    ) -> Opened:
        opened: Opened = await self._one(lane, "open", progress, path=path, tag=tag)
        return opened

    async def tensor(self, path: str, name: str) -> TensorDetail:
        detail: TensorDetail = await self._one("look", "tensor", path=path, name=name)
        return detail

    async def statistics(self, path: str, name: str, *, progress: Callable[[Reading], None] | None = None) -> Document:
        found: Document = await self._one("values", "statistics", progress, path=path, name=name)
        return found

    async def byte_map(self, path: str, file: str) -> ByteMap:
        found: ByteMap = await self._one("look", "byte_map", path=path, file=file)
        return found

    async def stamp(self, path: str) -> float:
        return float(await self._one("list", "stamp", path=path))

    async def plan(self, request: JobRequest) -> Document:
        plan: Document = await self._one("plan", "plan", request=request)
        return plan

    async def default_out(self, source: str, verb: str, started_in: str) -> str:
        return str(await self._one("list", "default_out", source=source, verb=verb, started_in=started_in))

    async def doctor(self) -> Document:
        found: Document = await self._one("list", "doctor")
        return found

    def _jobs_book(self) -> Any:
        if self._book is None:
            from shardyard_tui.job_book import JobBook

            self._book = JobBook()
        return self._book

    async def has_slurm(self) -> bool:
        return await self._aside.do(lambda: shutil.which("sbatch") is not None)

    async def jobs(self) -> list[JobView]:
        return await self._aside.do(lambda: self._jobs_book().jobs())

    async def events(self, job: str, offset: Mapping[str, int]) -> tuple[list[Document], Mapping[str, int]]:
        return await self._aside.do(lambda: self._jobs_book().events(job, offset))

    async def rows(self, job: str, offset: int) -> tuple[list[Document], int]:
        return await self._aside.do(lambda: self._jobs_book().rows(job, offset))

    async def start(self, request: JobRequest) -> str:
        return await self._aside.do(lambda: self._jobs_book().start(request))

    async def cancel(self, job: str) -> None:
        await self._aside.do(lambda: self._jobs_book().cancel(job))

    async def resume(self, job: str) -> None:
        await self._aside.do(lambda: self._jobs_book().resume(job))

    async def clean(self) -> int:
        return await self._aside.do(lambda: self._jobs_book().clean())

    async def close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))


def absolute(path: str | Path) -> str:
    """The path from the root, links left alone."""
    return os.path.abspath(path)
