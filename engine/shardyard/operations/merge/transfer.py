"""Moving the bytes: work units are filled block by block and written once, by a few threads, each with its own buffer.

A straight block is one preadv and one pwrite and needs neither numpy nor torch.  A batch of units counts as done when its data
is on disk and the ledger says so.  Memory does not depend on the size of anything.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from typing import TYPE_CHECKING

from shardyard.errors import DamagedError
from shardyard.files import FileHandles
from shardyard.limits import disk
from shardyard.operations import gather
from shardyard.operations.context import Context, Progress
from shardyard.operations.merge import agreement
from shardyard.operations.merge.adapters import Fold
from shardyard.operations.merge.casts import CAST_BLOCK, cast_block
from shardyard.operations.merge.ledger import Ledger, UnitDone
from shardyard.operations.merge.outputs import Segment
from shardyard.operations.merge.plan import Plan, Unit
from shardyard.operations.merge.sources import Seen, SourceChecks, check_records
from shardyard.operations.merge.written import Written
from shardyard.operations.parallel import spread
from shardyard.operations.write_back import STEP, WriteBehind, write_at

if TYPE_CHECKING:
    from shardyard.operations.merge.low_rank import LowRank

BLOCK = gather.BLOCK
BATCH_S = 2.0
BATCH_BYTES = 512 << 20
MOST_STRIDED_BYTES = 64 << 20
"""What blocks of badly strided tensors may take in all threads together."""


class Transfer:
    """The work of one task of one plan."""

    def __init__(self, plan: Plan, context: Context, ledger: Ledger, checks: SourceChecks) -> None:
        self.plan = plan
        self.context = context
        self.ledger = ledger
        self.checks = checks
        self.handles = FileHandles()
        self.handles.spool.folder = str(plan.place.staging)
        self.verify = plan.options.verify
        self.total = 0
        self.done = 0
        self.written = 0
        self._fds: dict[str, int] = {}
        self._lock = threading.Lock()
        self._batch: list[UnitDone] = []
        self._touched: set[int] = set()
        self.write_behind = WriteBehind(plan.nbytes)
        self._batch_bytes = 0
        self._batch_at = time.monotonic()
        self._commit_lock = threading.Lock()
        self._strided = MOST_STRIDED_BYTES

    def run(self, numbers: list[int], threads: int, already: int) -> None:
        """Do these units; `already` counts bytes that were done before.

        Raises:
            ShardyardError: what stopped it; units that were finished are in the ledger.
        """
        self.done = already
        self.total = already + sum(u.hi - u.lo for u in map(self.plan.unit, numbers))
        self._strided = max(BLOCK, MOST_STRIDED_BYTES // threads)
        try:
            try:
                spread(numbers, self._work, threads, self.context.check)
            finally:
                self._commit()
        except OSError as error:
            full = disk.no_room(error, self.plan.place.out, self.total - self.done)
            if full is not None:
                raise full from error
            raise

    def close(self) -> None:
        """Close what it opened."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self.handles.close()

    def _work(self, number: int) -> None:
        unit = self.plan.unit(number)
        self._finish(unit, _UnitWork(self, unit).run())

    def _finish(self, unit: Unit, done: UnitDone) -> None:
        fd = self.fd(unit)
        with self._lock:
            for record, parts in done.source_parts:
                self.checks.add(record, parts)
            self._batch.append(done)
            self._touched.add(fd)
            self._batch_bytes += unit.hi - unit.lo
            due = self._batch_bytes >= BATCH_BYTES or time.monotonic() - self._batch_at >= BATCH_S
        if due and self._commit_lock.acquire(blocking=False):
            try:
                self._commit_batch()
            finally:
                self._commit_lock.release()

    def _commit(self) -> None:
        with self._commit_lock:
            self._commit_batch()

    def _commit_batch(self) -> None:
        with self._lock:
            batch, self._batch = self._batch, []
            touched, self._touched = self._touched, set()
            self._batch_bytes, self._batch_at = 0, time.monotonic()
        for fd in touched:
            os.fdatasync(fd)
        self.ledger.append(batch)

    def fd(self, unit: Unit) -> int:
        """The output file, open for writing."""
        with self._lock:
            fd = self._fds.get(unit.file.name)
            if fd is None:
                path = self.plan.place.files / unit.file.name
                fd = self._fds[unit.file.name] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            return fd

    def moved(self, nbytes: int, item: str) -> None:
        """Count bytes that were written and say so."""
        with self._lock:
            self.done += nbytes
            self.written += nbytes
            progress = Progress(self.done, self.total, self.handles.bytes_read, self.written, item)
        self.context.progress(progress)

    def strided_limit(self) -> int:
        """The largest block that a thread may gather."""
        return self._strided


class _UnitWork:
    """One unit in one thread."""

    def __init__(self, transfer: Transfer, unit: Unit) -> None:
        self.transfer = transfer
        self.unit = unit
        self.buffer = memoryview(bytearray(BLOCK))
        self.handles = transfer.handles
        self.done = UnitDone(unit.number)
        self.seen = Seen() if transfer.verify != "none" else None
        self.item = unit.file.name
        self.matrices: dict[str, LowRank] = {}

    def run(self) -> UnitDone:
        unit, segments = self.unit, self.unit.file.segments
        fd = self.transfer.fd(unit)
        position = behind = unit.lo
        k = unit.file.first_segment(position)
        crc = 0
        verify = self.transfer.verify
        while position < unit.hi:
            end = self._block_end(segments, k, position)
            view = self.buffer[: end - position]
            k = self._fill(segments, k, position, end, view)
            if position == unit.lo and verify == "sample":
                self.done.first = len(view), zlib.crc32(view)
            elif verify == "full":
                crc = zlib.crc32(view, crc)
            write_at(fd, view, position)
            self.transfer.moved(len(view), self.item)
            position = end
            if position - behind >= STEP or position == unit.hi:
                self.transfer.write_behind.wrote(fd, behind, position)
                behind = position
        if verify == "full":
            self.done.crc = crc
        if self.seen is not None:
            self.done.source_parts = list(self.seen.parts(self.handles))
        return self.done

    def _block_end(self, segments: list[Segment], k: int, position: int) -> int:
        """Where the block that begins at `position` ends: at a multiple of its size, or later if the source is badly strided."""
        end = min(self.unit.hi, (position // BLOCK + 1) * BLOCK)
        if k < len(segments):
            segment = segments[k]
            written = segment.content
            if isinstance(written, Written) and segment.start <= position and segment.end > end:
                first, last = self._source_range(written, segment, position, min(segment.end, self.unit.hi))
                size = gather.block_size(written.tensor, first, last, BLOCK, self.transfer.strided_limit())
                if size > BLOCK:
                    ratio = written.dtype.itemsize / written.tensor.dtype.itemsize if written.cast else 1
                    far = min(segment.end, self.unit.hi, position + int(size * ratio))
                    end = far if far in (segment.end, self.unit.hi) else max(end, far // BLOCK * BLOCK)
        if end - position > len(self.buffer):
            self.buffer = memoryview(bytearray(end - position))
        return end

    def _source_range(self, written: Written, segment: Segment, lo: int, hi: int) -> tuple[int, int]:
        a, b = lo - segment.start, hi - segment.start
        if not written.cast:
            return a, b
        small, large = written.dtype.itemsize, written.tensor.dtype.itemsize
        return a // small * large, -(-b // small) * large

    def _fill(self, segments: list[Segment], k: int, lo: int, hi: int, view: memoryview) -> int:
        """Assemble the file's bytes [lo, hi); returns the segment that the next block begins in."""
        position = lo
        while position < hi:
            segment = segments[k] if k < len(segments) else None
            start = segment.start if segment is not None else hi
            if position < start:
                # The tail's place: zeros until the publisher fills it.
                stop = min(hi, start)
                view[position - lo : stop - lo] = bytes(stop - position)
                position = stop
                continue
            assert segment is not None
            stop = min(hi, segment.end)
            part = view[position - lo : stop - lo]
            if isinstance(segment.content, bytes):
                part[:] = memoryview(segment.content)[position - segment.start : stop - segment.start]
            else:
                self._tensor(segment, segment.content, position, part)
            if segment.record is not None:
                self._output_part(segment.record, position - segment.start, part)
            position = stop
            if stop == segment.end:
                k += 1
        return k

    def _output_part(self, record: int, offset: int, data: memoryview) -> None:
        parts = self.done.output_parts
        if parts and parts[-1][0] == record and parts[-1][1] + parts[-1][2] == offset:
            parts[-1][3] = zlib.crc32(data, parts[-1][3])
            parts[-1][2] += len(data)
        else:
            parts.append([record, offset, len(data), zlib.crc32(data)])

    def _tensor(self, segment: Segment, written: Written, position: int, part: memoryview) -> None:
        lo = position - segment.start
        self.item = written.name
        if lo == 0 and self.transfer.verify != "none":
            self._check_copies(written)
        if written.cast:
            self._cast(written, lo, part)
            return
        gather.read_range(written.tensor, lo, lo + len(part), part, self.handles, self.seen)
        for copy in written.copies:
            agreement.check_tied(written, copy, lo, part, self.handles)

    def _check_copies(self, written: Written) -> None:
        tensor = written.tensor
        try:
            self.done.checked += agreement.check_copies(written, self.handles, everything=self.transfer.verify == "full")
        except DamagedError:
            # If one of the copies is damaged, that is the thing to say.
            for layout in (tensor.layout, *tensor.replicas, tensor.copy16.layout if tensor.copy16 else None):
                if layout is not None:
                    check_records(layout.records(), self.handles)
            raise

    def _cast(self, written: Written, lo: int, part: memoryview) -> None:
        """Output bytes [lo, lo + len(part)) of a cast tensor."""
        kind, wanted = written.tensor.dtype, written.dtype
        if lo % wanted.itemsize or len(part) % wanted.itemsize:
            self._cast_unaligned(written, lo, part)
            return
        step = CAST_BLOCK if len(part) <= BLOCK else len(part)
        scratch = _scratch(step // wanted.itemsize * kind.itemsize)
        for a in range(0, len(part), step):
            out = part[a : a + step]
            first = (lo + a) // wanted.itemsize * kind.itemsize
            source = scratch[: len(out) // wanted.itemsize * kind.itemsize]
            gather.read_range(written.tensor, first, first + len(source), source, self.handles, self.seen)
            for copy in written.copies:
                agreement.check_tied(written, copy, first, source, self.handles)
            if written.fold is not None:
                count = self._fold(written, written.fold, first, source, out)
            else:
                count = cast_block(source, kind, out, wanted)
            if count:
                overflows = self.done.overflows
                overflows[written.name] = overflows.get(written.name, 0) + count

    def _fold(self, written: Written, fold: Fold, first: int, source: memoryview, out: memoryview) -> int:
        """Add a low-rank change to stored bytes from `first` on; both matrices are kept for the rest of the unit."""
        from shardyard.operations.merge.low_rank import LowRank

        if written.name not in self.matrices:
            # One at a time: a unit's tensors come one after the other.
            self.matrices = {written.name: LowRank(fold, self.handles)}
        return self.matrices[written.name].add(written, first, source, out)

    def _cast_unaligned(self, written: Written, lo: int, part: memoryview) -> None:
        """A block that cuts an element in two: cast whole ones, keep the middle."""
        item = written.dtype.itemsize
        first, last = lo // item * item, -(-(lo + len(part)) // item) * item
        whole = memoryview(bytearray(last - first))
        self._cast(written, first, whole)
        part[:] = whole[lo - first : lo - first + len(part)]


_threads = threading.local()


def _scratch(nbytes: int) -> memoryview:
    """A buffer of this thread for the source of casts."""
    buffer: bytearray | None = getattr(_threads, "cast", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _threads.cast = bytearray(nbytes)
    return memoryview(buffer)[:nbytes]
