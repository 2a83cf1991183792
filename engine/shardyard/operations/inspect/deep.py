"""The checks that read the data: checksums, the 16-bit copy against the masters, copies of one tensor, a scan of values."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

from shardyard.checkpoint import Checkpoint, Tensor
from shardyard.errors import CheckpointError, UsageError
from shardyard.files import FileHandles
from shardyard.findings import Finding, Severity
from shardyard.formats.declared_ties import declared_ties
from shardyard.health import facts
from shardyard.health.neighbours import HUB_KINDS
from shardyard.health.words import listing, plural, size
from shardyard.operations import gather
from shardyard.operations.context import Context, Progress
from shardyard.operations.copy_check import Disagreement, check_copy
from shardyard.operations.inspect.scan import Scan, scan
from shardyard.pieces import EncodedRecord, InlineRecord, Record
from shardyard.text import printable

BLOCK = 1 << 20
MOST_NAMED = 20


def examine(checkpoint: Checkpoint, handles: FileHandles, context: Context) -> list[Finding]:
    """Read everything and tell what is wrong; `checkpoint.checked` gains what was looked at."""
    return _Examination(checkpoint, handles, context).run()


class _Examination:
    """One deep look at one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, handles: FileHandles, context: Context) -> None:
        self.checkpoint = checkpoint
        self.handles = handles
        self.context = context
        self.findings: list[Finding] = []
        self.done = 0
        self.tensors = {n: t for n, t in checkpoint.tensors.items() if t.layout is not None}
        self.records = list(_records(checkpoint))
        self.total = sum(r.nbytes for r in self.records) + sum(t.nbytes for t in self.tensors.values())

    def run(self) -> list[Finding]:
        if not self.tensors and not self.records:
            return []
        damaged = self.check_records()
        self.check_copies()
        seen = self.check_values() if self.tensors else None
        if seen is not None:
            self.compare_ties(seen)
            self.checkpoint.checked.update(("values", "ties"))
        if not damaged:
            self.checkpoint.checked.add("crc")
        return self.findings

    def moved(self, nbytes: int, item: str) -> None:
        self.context.check()
        self.done += nbytes
        self.context.progress(Progress(min(self.done, self.total), self.total, self.handles.bytes_read, 0, item))

    # Checksums

    def check_records(self) -> bool:
        """Whether a record could not be checked at all."""
        wrong: dict[str, list[Record]] = {}
        unreadable = False
        for record in self.records:
            intact = self._intact(record)
            unreadable = unreadable or intact is None
            if intact is False:
                wrong.setdefault(record.path, []).append(record)
        for path, records in wrong.items():
            starts = {r.start for r in records}
            names = sorted(n for n, t in facts.all_tensors(self.checkpoint).items() if _touches(t, starts, path))
            text = f"{printable(_name(path))}: {plural(len(records), 'record')} such as {listing([records[0].name])} "
            text += f"fail{'s' if len(records) == 1 else ''} the checksum, so stored bytes were changed"
            text += f"; {listing(names)} {'is' if len(names) == 1 else 'are'} touched." if names else "."
            remedy = "Copy the file again from where it was written, or use another step."
            self.add(Finding("corrupt", Severity.ERROR, text, remedy, (_name(path),), tuple(names[:MOST_NAMED])))
        return unreadable

    def _intact(self, record: Record) -> bool | None:
        """Whether a record's bytes have its checksum; None if it has none or cannot be read."""
        crc = 0
        try:
            # Some records learn their checksum when they are located.
            start = record.locate(self.handles)
            for offset in range(0, record.nbytes if record.crc32 is not None else 0, BLOCK):
                block = self.handles.read(record.path, start + offset, min(BLOCK, record.nbytes - offset))
                crc = zlib.crc32(block, crc)
                self.moved(len(block), record.name)
        except (CheckpointError, UsageError) as error:
            code = error.code if isinstance(error, CheckpointError) else "corrupt"
            self.add(Finding(code, Severity.ERROR, error.problem, error.remedy, (_name(record.path),)))
            return None
        return crc == record.crc32 if record.crc32 is not None else True

    # Copies

    def check_copies(self) -> None:
        """The masters against their 16-bit copies, and replicas against each other."""
        apart: list[Disagreement] = []
        for name, tensor in self.tensors.items():
            self.context.check()
            try:
                found = check_copy(tensor, self.handles, watch=lambda n: self.moved(0, ""))
                if found is not None:
                    apart.append(found)
                for layout in tensor.replicas:
                    if self._digest(replace(tensor, layout=layout, replicas=())) != self._digest(tensor):
                        text = f"{printable(name, 120)} is stored more than once, and the copies differ."
                        remedy = "Files of different runs or steps are mixed; find the one that does not belong."
                        self.add(Finding("duplicate-copy", Severity.ERROR, text, remedy, tensors=(name,)))
            except (CheckpointError, UsageError) as error:
                self.unread(name, error)
        if apart:
            names = [d.name for d in apart]
            text = (
                f"The masters of {plural(len(apart), 'tensor')} such as {listing(names[:1])} do not round to their 16-bit copy: "
            )
            remedy = "Ranks of different runs, or a layout read wrongly; or the model was changed after its last step."
            self.add(
                Finding("copy-disagrees", Severity.WARNING, text + apart[0].sentence, remedy, tensors=tuple(names[:MOST_NAMED]))
            )

    def _digest(self, tensor: Tensor) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for _, block in gather.blocks(tensor, self.handles, BLOCK):
            digest.update(block)
        return digest.digest()

    # Values

    def check_values(self) -> Scan | None:
        """NaN, zeros and equal copies, in one pass over the model's tensors."""
        try:
            return scan(self.checkpoint, self.context)
        except (CheckpointError, UsageError) as error:
            code = error.code if isinstance(error, CheckpointError) else "corrupt"
            self.add(Finding(code, Severity.ERROR, error.problem, error.remedy))
            return None

    def compare_ties(self, seen: Scan) -> None:
        """What config.json ties, by its bytes; and equal copies that nothing ties."""
        recorded = {n: i for i, group in enumerate(facts.tied_groups(self.checkpoint)) for n in group}
        told: set[str] = set()
        for group in declared_ties(self.checkpoint.config, {n: t.shape for n, t in self.tensors.items()}):
            names = list({recorded.get(n, n): n for n in group if n in seen.seen}.values())
            if len(names) > 1:
                told.update(names)
                self._declared(names, equal=_equal(seen, names))
        self.findings.extend(f for f in seen.findings() if f.code != "duplicate-copy" or not told.issuperset(f.tensors))

    def _declared(self, names: list[str], *, equal: bool) -> None:
        """Replace the guess from headers by what the bytes say."""
        self.checkpoint.findings[:] = [
            f
            for f in self.checkpoint.findings
            if not (f.code == "duplicate-copy" and not f.sure and set(f.tensors) <= set(names))
        ]
        if not equal:
            text = f"config.json ties {listing(names)}, but their stored values differ."
            remedy = "Both are kept; set tie_word_embeddings to false if they are separate weights, or drop the wrong one."
            self.add(Finding("tie-disagrees", Severity.WARNING, text, remedy, tensors=tuple(names)))
            return
        nbytes = self.tensors[names[0]].nbytes * (len(names) - 1)
        text = f"{listing(names)} hold equal values; config.json ties them, and {size(nbytes)} are stored more than once."
        remedy = "`shardyard shrink --dedupe-tied` drops the copy."
        severity = Severity.WARNING if self.checkpoint.kind in HUB_KINDS else Severity.INFO
        self.add(Finding("duplicate-copy", severity, text, remedy, tensors=tuple(names), nbytes=nbytes))

    def unread(self, name: str, error: CheckpointError | UsageError) -> None:
        code = error.code if isinstance(error, CheckpointError) else "corrupt"
        text = f"The values of {printable(name, 120)} cannot be read: {error.message}"
        self.add(Finding(code, Severity.ERROR, text, tensors=(name,)))

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.context.finding(finding)


def _records(checkpoint: Checkpoint) -> Iterator[Record]:
    """Every stored record that may have a checksum, of all parts, once."""
    seen: set[tuple[str, str, int]] = set()
    for tensor in facts.all_tensors(checkpoint).values():
        for layout in (tensor.layout, *tensor.replicas, tensor.copy16.layout if tensor.copy16 else None):
            for record in layout.records() if layout is not None else ():
                key = (record.path, record.name, record.start)
                if key not in seen and not isinstance(record, (EncodedRecord, InlineRecord)):
                    seen.add(key)
                    yield record


def _equal(seen: Scan, names: list[str]) -> bool:
    """Whether tensors hold equal bytes: proved by the scan, or all one value (which it leaves out) with one checksum."""
    if any(set(names) <= set(group) for group in seen.copies):
        return True
    return len({seen.seen[n].crc32 for n in names}) == 1 and all(seen.seen[n].constant for n in names)


def _touches(tensor: Tensor, starts: set[int], path: str) -> bool:
    """Whether a tensor has bytes in one of the records that begin at these places; all records are located by now."""
    return tensor.layout is not None and any(r.path == path and r.start in starts for r in tensor.layout.records())


def _name(path: str) -> str:
    return path.rpartition("/")[2]
