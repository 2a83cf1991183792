"""A sharded model, opened: every file's own header against the index, both ways, and every fault told by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from shardyard.checkpoint import Checkpoint, FileEntry, Part, Tensor, Usage
from shardyard.dtypes import unknown
from shardyard.errors import ShardyardError
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.candidate import Candidate, OpenOptions
from shardyard.formats.folder import Folder
from shardyard.formats.hugging_face.index_faults import MOST_NAMED, Faults
from shardyard.formats.hugging_face.index_file import MOST_INDEX_BYTES, SHARD_NAME, Index, parse_index
from shardyard.formats.hugging_face.shard import Shard, read_shard
from shardyard.formats.model_config import find_config
from shardyard.text import printable


def open_set(candidate: Candidate, options: OpenOptions) -> Checkpoint:
    """Open a sharded set; see `Candidate.open`."""
    return _Set(candidate, options).open()


class _Set:
    """One opening of one set."""

    def __init__(self, candidate: Candidate, options: OpenOptions) -> None:
        self.candidate = candidate
        self.folder = candidate.folder
        self.options = options
        self.kind = candidate.kind
        self.base = str(candidate.details["base"])
        self.index: Index | None = None
        self.shards: dict[str, Shard] = {}
        self.findings: list[Finding] = []
        self.tensors: dict[str, Tensor] = {}
        self.stale: set[str] = set()

    def open(self) -> Checkpoint:
        self._read_index()
        wanted = self._wanted_files()
        self._read_shards(wanted)
        if self.index is not None and self.index.readable:
            self._by_index(self.index)
        else:
            self._by_numbers()
        for shard in self.shards.values():
            self.findings.extend(shard.findings)
        self._check_total()
        return self._checkpoint()

    def _read_index(self) -> None:
        name = self.candidate.details.get("index")
        if not isinstance(name, str):
            return
        try:
            data = self.folder.small_file(name, MOST_INDEX_BYTES)
            self.index = parse_index(data or b"", name)
        except ShardyardError as error:
            self.index = Index(name, readable=False)
            self.findings.append(Finding("corrupt", Severity.ERROR, error.problem, error.remedy, (name,)))
        self.findings.extend(self.index.findings)

    def _wanted_files(self) -> list[str]:
        """The files that make up the set."""
        if self.index is not None and self.index.readable:
            return list(dict.fromkeys(self.index.weight_map.values()))
        numbered = [n for n in self.candidate.files if SHARD_NAME.fullmatch(n)]
        counts = Counter(_count(n) for n in numbered)
        # Without an index the largest complete numbering is the set; the rest was left over from other saves.
        complete = [c for c, n in counts.items() if n == c]
        chosen = max(complete, default=max(counts, default=0))
        self.stale.update(n for n in numbered if _count(n) != chosen)
        return sorted((n for n in numbered if _count(n) == chosen), key=_number) or [
            n for n in self.candidate.files if not n.endswith(".json")
        ]

    def _read_shards(self, wanted: list[str]) -> None:
        report = self.options.progress
        for done, name in enumerate(wanted):
            if report is not None:
                report(name, done, len(wanted))
            entry = self.folder.entries.get(name)
            if entry is not None:
                self.shards[name] = read_shard(self.options.handles, entry.path, self.kind)

    def _by_index(self, index: Index) -> None:
        where: dict[str, list[str]] = {}
        for shard in self.shards.values():
            for tensor in shard.tensors:
                where.setdefault(tensor, []).append(shard.name)
        faults = Faults(index.name)
        for name, file in index.weight_map.items():
            holders = where.get(name, [])
            named = self.shards.get(file)
            if file in holders and named is not None:
                self.tensors[name] = named.tensors[name]
            elif holders:
                self.tensors[name] = self.shards[holders[0]].tensors[name]
                faults.elsewhere.append((name, file, holders[0]))
            else:
                self.tensors[name] = _absent(name, file, missing=named is None)
                if named is None:
                    faults.missing.setdefault(file, []).append(name)
                elif named.readable:
                    faults.ghosts.append((name, file))
                else:
                    named.findings[0] = _naming(named.findings[0], name)
        for name in index.refused:
            self.tensors[name] = _absent(name, index.refused[name], missing=True)
        for name, holders in where.items():
            if name not in index.weight_map:
                self.tensors[name] = self.shards[holders[0]].tensors[name]
                faults.unlisted.append((name, holders[0]))
            if len(holders) > 1:
                self._several(name, holders, index.weight_map.get(name, holders[0]))
        self.findings.extend(faults.findings())
        self._left_over(index)
        if not index.refused:
            self._gaps([n for n in index.weight_map.values() if SHARD_NAME.fullmatch(n)])

    def _several(self, name: str, holders: list[str], chosen: str) -> None:
        """One name in two files: copies that must agree, or a contradiction."""
        copies = [self.shards[h].tensors[name] for h in holders]
        shown, files = printable(name, 120), " and ".join(printable(h) for h in holders[:3])
        same = len({(t.dtype, t.shape) for t in copies}) == 1 and all(t.layout is not None for t in copies)
        text = f"Tensor {shown} is in {files}; the index picks {printable(chosen)}."
        remedy = "The copies are compared when they are merged; delete the file that does not belong here."
        if same:
            first = self.tensors[name]
            others = tuple(t.layout for t in copies if t is not first and t.layout is not None)
            self.tensors[name] = replace(first, replicas=others)
        self.findings.append(
            Finding(
                "duplicate-copy" if same else "index-mismatch",
                Severity.WARNING if same else Severity.ERROR,
                text if same else f"Tensor {shown} has another shape or dtype in each of {files}.",
                remedy,
                tuple(holders),
                (name,),
                copies[0].nbytes,
                blocks=Blocks.NOTHING if same else Blocks.MERGE,
            )
        )

    def _left_over(self, index: Index) -> None:
        """Files that look like shards of this set and that the index does not mention."""
        named = set(index.weight_map.values())
        ours = [n for n in self.candidate.files if n not in named and n != index.name]
        suffix = self.base[self.base.rfind(".") :]
        odd = [
            n
            for n in self.folder.files
            if n not in self.candidate.files and n.endswith(suffix) and n != self.base and not _own_set(n, self.folder)
        ]
        for name in (*ours, *odd):
            entry = self.folder.files.get(name)
            if entry is None:
                continue
            shard = read_shard(self.options.handles, entry.path, self.kind)
            if not shard.readable:
                self._stale(name, entry.nbytes, "could not be read either")
                continue
            new = [t for t in shard.tensors if t not in index.weight_map]
            if new and (name in ours or _same_family(new, index.weight_map)):
                self._unmentioned(name, shard, new)
            elif not new:
                self._stale(name, entry.nbytes, "is left over from another save")

    def _stale(self, name: str, nbytes: int, why: str) -> None:
        self.stale.add(name)
        text = f"{printable(name)} is not in the index and {why} ({nbytes:,} bytes)."
        self.findings.append(
            Finding(
                "stale-file", Severity.WARNING, text, "Delete it once you are sure that nothing needs it.", (name,), nbytes=nbytes
            )
        )

    def _unmentioned(self, name: str, shard: Shard, new: list[str]) -> None:
        count = f"{len(new)} tensor{'s' if len(new) != 1 else ''}"
        text = f"{printable(name)} holds {count} that the index does not mention, such as {printable(new[0], 120)}."
        self.findings.append(
            Finding(
                "index-mismatch",
                Severity.ERROR,
                text,
                "Write the index again if the file belongs to the model, or delete the file if it is left over.",
                (name,),
                tuple(new[:MOST_NAMED]),
                sum(shard.tensors[t].nbytes for t in new),
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )

    def _gaps(self, names: Iterable[str]) -> None:
        """Numbers that are in neither the index nor the folder."""
        by_count: dict[int, set[int]] = {}
        for name in names:
            by_count.setdefault(_count(name), set()).add(_number(name))
        if len(by_count) != 1:
            return
        count, seen = next(iter(by_count.items()))
        seen |= {_number(n) for n in self.candidate.files if _count(n) == count}
        gaps = [i for i in _expected(seen, count) if i not in seen][:MOST_NAMED]
        if gaps:
            which = f"Shard {gaps[0]}" if len(gaps) == 1 else f"Shards {', '.join(map(str, gaps))}"
            text = f"{which} of {count} {'is' if len(gaps) == 1 else 'are'} neither in the index nor on disk."
            self.findings.append(
                Finding(
                    "missing-shard",
                    Severity.ERROR,
                    text,
                    "Copy the missing files, or fetch the index again.",
                    blocks=Blocks.UNLESS_ALLOWED,
                )
            )

    def _by_numbers(self) -> None:
        """Without a usable index the file names say what belongs together."""
        for shard in self.shards.values():
            for name, tensor in shard.tensors.items():
                if name in self.tensors:
                    holders = [s.name for s in self.shards.values() if name in s.tensors]
                    self._several(name, holders, holders[0])
                    continue
                self.tensors[name] = tensor
        numbered = [n for n in self.shards if SHARD_NAME.fullmatch(n)]
        if numbered:
            seen, count = {_number(n) for n in numbered}, _count(numbered[0])
            missing = [i for i in _expected(seen, count) if i not in seen]
            if missing:
                self._missing_numbers(missing, count, numbered)
            elif self.index is None:
                text = f"{len(numbered)} shards without an index; their names say {count} of {count}, so they are read together."
                self.findings.append(
                    Finding("index-mismatch", Severity.INFO, text, "Most loaders need the index; merging writes one.")
                )
        for name in sorted(self.stale):
            entry = self.folder.files.get(name)
            text = f"{printable(name)} is left over from a save with another number of shards."
            nbytes = entry.nbytes if entry else 0
            self.findings.append(Finding("stale-file", Severity.WARNING, text, "", (name,), nbytes=nbytes))

    def _missing_numbers(self, missing: list[int], count: int, numbered: list[str]) -> None:
        listed = ", ".join(map(str, missing[:MOST_NAMED])) + (", …" if len(missing) > MOST_NAMED else "")
        match = SHARD_NAME.fullmatch(numbered[0])
        paths = (
            tuple(f"{match['stem']}-{i:05d}-of-{match['count']}{match['suffix']}" for i in missing[:MOST_NAMED]) if match else ()
        )
        text = (
            f"{len(missing)} of {count} shards {'is' if len(missing) == 1 else 'are'} missing ({listed}), and there is no index."
        )
        self.findings.append(
            Finding(
                "missing-shard",
                Severity.ERROR,
                text,
                "Copy the missing files from the source.",
                paths,
                blocks=Blocks.UNLESS_ALLOWED,
            )
        )

    def _check_total(self) -> None:
        """The index's total_size counts tied tensors once; a difference alone harms no loader."""
        if self.index is None or self.index.total_size is None or not self.shards:
            return
        present = sum(s.weights for s in self.shards.values())
        if present != self.index.total_size:
            text = f"{printable(self.index.name)} says {self.index.total_size:,} bytes of tensors, the shards hold {present:,}."
            self.findings.append(Finding("index-mismatch", Severity.INFO, text, paths=(self.index.name,)))

    def _checkpoint(self) -> Checkpoint:
        files = [FileEntry(s.name, s.nbytes, "weights") for s in self.shards.values()]
        if self.index is not None:
            entry = self.folder.files.get(self.index.name)
            files.append(FileEntry(self.index.name, entry.nbytes if entry else 0, "index"))
        config, config_folder = find_config(self.folder, above=False)
        weights = sum(s.weights for s in self.shards.values())
        wasted = sum(s.wasted for s in self.shards.values())
        total = sum(f.nbytes for f in files)
        metadata = next((s.metadata for s in self.shards.values() if s.metadata), {})
        return Checkpoint(
            self.candidate.path,
            self.kind,
            files,
            {"model": Part("model", self.tensors, model=True)},
            "model",
            ties=[tie for s in self.shards.values() for tie in s.ties],
            composites=[c for s in self.shards.values() for c in s.composites],
            findings=self.findings,
            usage=Usage(weights=weights, wasted=wasted, other=max(0, total - weights - wasted)),
            config=config,
            config_folder=config_folder,
            checked={"headers", "shapes"},
            metadata=metadata,
            globals=sum((s.globals for s in self.shards.values()), Counter()),
        )


def _count(name: str) -> int:
    match = SHARD_NAME.fullmatch(name)
    return int(match["count"]) if match else 0


def _number(name: str) -> int:
    match = SHARD_NAME.fullmatch(name)
    return int(match["number"]) if match else 0


def _expected(seen: set[int], count: int) -> range:
    """Shards are counted from 1, by some writers from 0."""
    first = 0 if 0 in seen and count not in seen else 1
    return range(first, first + min(count, 1_000_000))


def _absent(name: str, file: str, *, missing: bool) -> Tensor:
    where = printable(file, 120)
    note = f"in {where}, which is missing" if missing else f"not in {where}, where the index says it is"
    return Tensor(name, unknown("unknown"), (), None, note=note, nbytes_stored=0)


def _naming(finding: Finding, tensor: str) -> Finding:
    if len(finding.tensors) >= MOST_NAMED:
        return finding
    message = finding.message if finding.tensors else f"{finding.message.rstrip('.')}; {printable(tensor, 120)} cannot be read."
    return replace(finding, tensors=(*finding.tensors, tensor), message=message)


def _own_set(name: str, folder: Folder) -> bool:
    """Whether a file is a checkpoint of its own by name: an adapter, the original consolidated weights, another index's shard."""
    match = SHARD_NAME.fullmatch(name)
    stem = match["stem"] if match else name.rsplit(".", 1)[0]
    return (
        stem.startswith(("adapter", "consolidated", "optimizer", "pytorch_lora", "pytorch_model", "model", "training_args"))
        or stem.startswith(("scheduler", "rng_state", "scaler", "random_states"))
        or any(n.startswith(stem + ".") and n.endswith(".json") and ".index" in n for n in folder.files)
    )


def _same_family(new: list[str], known: dict[str, str]) -> bool:
    """Whether unlisted tensors are named like the model's own (`model.layers.…`)."""
    heads = {n.rsplit(".", 2)[0].split(".", 1)[0] for n in known}
    return any(n.split(".", 1)[0] in heads for n in new)
