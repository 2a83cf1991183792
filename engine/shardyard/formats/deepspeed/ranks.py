"""Which rank files belong together: all of one run, none missing, none left over from another.

A folder can hold files of a bigger run that was overwritten, or the same rank with and without the `bf16_` prefix.  The partition
count stands in every optimizer file, so each is asked; the others are named, never mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shardyard.errors import DamagedError
from shardyard.files import fingerprint
from shardyard.findings import Blocks, Finding, Severity
from shardyard.formats.deepspeed.names import StepFile
from shardyard.formats.deepspeed.optimizer_file import OptimizerFile, read_optimizer_file
from shardyard.formats.deepspeed.reading import Reading, are, counted, listed, numbered
from shardyard.pieces import InlineRecord


@dataclass(slots=True)
class RankSet:
    """The optimizer files of one model rank."""

    world: int
    ranks: list[OptimizerFile | None]
    """By data rank; None where the file is missing or damaged."""

    @property
    def first(self) -> OptimizerFile | None:
        return next((r for r in self.ranks if r is not None), None)

    @property
    def whole(self) -> bool:
        return None not in self.ranks

    def absent(self) -> list[int]:
        """Ranks that are missing or damaged."""
        return [i for i, r in enumerate(self.ranks) if r is None]


def load_ranks(reading: Reading, files: Sequence[StepFile], model_rank: int, said: int | None, *, bf16: bool) -> RankSet:
    """Read the optimizer files of one model rank and settle which of them are one run.

    Args:
        reading: where findings go.
        files: the files, in numeric order.
        model_rank: the pipeline stage or tensor-parallel rank that they are of.
        said: data ranks that the model file records, if it is there.
        bf16: whether the run's config enables bf16, which decides the file prefix.
    """
    files = _one_prefix(reading, files, bf16=bf16)
    opened: dict[int, OptimizerFile | None] = {}
    names: dict[int, str] = {}
    for file in files:
        names[file.data_rank] = file.name
        opened[file.data_rank] = _open(reading, file)
    claims = Counter(o.world for o in opened.values() if o is not None)
    if said is not None and (said in claims or not claims):
        world = said
    elif claims:
        # The count that most files give; among equals the smaller, since a bigger run leaves files behind.
        world = min(claims, key=lambda w: (-claims[w], w))
    else:
        world = max(opened, default=-1) + 1
    _report_stale(reading, opened, names, world)
    ranks = [_of_world(opened.get(r), world) for r in range(world)]
    _refuse_doubles(reading, ranks)
    missing = [r for r in range(world) if r not in opened or (opened[r] is not None and ranks[r] is None)]
    if missing:
        lost = [_expected_name(files, model_rank, r) for r in missing]
        message = f"The optimizer files of {numbered('rank', missing)} of {world} are not here: {listed(lost, 4)}."
        reading.missing("missing-rank", message, lost)
    return RankSet(world, ranks)


def _refuse_doubles(reading: Reading, ranks: Sequence[OptimizerFile | None]) -> None:
    """One file under two ranks' names. Archives that were written without a name, and older files, show it by nothing else."""
    seen: dict[object, OptimizerFile] = {}
    for rank in ranks:
        if rank is None or rank.named:
            continue
        found = fingerprint(reading.options.handles, rank.path)
        first = seen.setdefault((found["bytes"], found["sha256"]), rank)
        if first is not rank and _holds_something(reading, rank):
            reading.add(
                Finding(
                    "duplicate-copy",
                    Severity.ERROR,
                    f"{rank.name} is {first.name} over again: one rank's part of the weights is missing.",
                    "Copy the step again from where it was written.",
                    paths=(rank.name, first.name),
                    blocks=Blocks.MERGE,
                )
            )


def _holds_something(reading: Reading, rank: OptimizerFile) -> bool:
    """Whether its masters are more than padding, which is alike on all ranks that have nothing else."""
    handles = reading.options.handles
    for vector in (v for pieces in rank.groups for v in pieces if v.numel):
        head = min(vector.numel * vector.dtype.itemsize, 1 << 16)
        record = vector.record
        if isinstance(record, InlineRecord) or any(handles.read(record.path, record.locate(handles) + vector.offset, head)):
            return True
    return False


def _expected_name(files: Sequence[StepFile], model_rank: int, rank: int) -> str:
    """What the file of another rank would be called, after the pattern of those there are."""
    return f"{files[0].prefix if files else ''}zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt"


def _open(reading: Reading, file: StepFile) -> OptimizerFile | None:
    opened = reading.open(file.entry)
    if opened is None:
        return None
    try:
        return read_optimizer_file(opened)
    except DamagedError as error:
        reading.refuse(error, file.name)
        return None


def _of_world(file: OptimizerFile | None, world: int) -> OptimizerFile | None:
    return file if file is not None and file.world == world else None


def _report_stale(reading: Reading, opened: dict[int, OptimizerFile | None], names: dict[int, str], world: int) -> None:
    other = {r: o for r, o in opened.items() if o is not None and o.world != world}
    beyond = [r for r in opened if r >= world]
    stale = sorted({*other, *beyond})
    if not stale:
        return
    worlds = sorted({o.world for o in other.values()})
    run = f" of a run of {listed(worlds)} ranks" if worlds else ""
    stale_names = [names[r] for r in stale]
    reading.left_over(
        f"{listed(stale_names)} {are(stale)} left over{run}; this step is of {counted(world, 'rank')}.", stale_names
    )


def _one_prefix(reading: Reading, files: Sequence[StepFile], *, bf16: bool) -> list[StepFile]:
    """The files of one prefix: a run writes all of its files with or all without `bf16_`, as its config says."""
    prefixes = {f.prefix for f in files}
    if len(prefixes) < 2:
        return list(files)
    wanted = "bf16_" if bf16 and "bf16_" in prefixes else "" if "" in prefixes else min(prefixes)
    kept = [f for f in files if f.prefix == wanted]
    others = [f.name for f in files if f.prefix != wanted]
    reading.left_over(f"{listed(others)} {are(others)} of another run than {listed([f.name for f in kept])}.", others)
    return kept


def check_model_files(reading: Reading, files: Sequence[StepFile], world: int) -> None:
    """Findings about stage-3 model files that are missing or left over, by name alone."""
    there = {f.data_rank for f in files}
    missing = [r for r in range(world) if r not in there]
    beyond = [f.name for f in files if f.data_rank >= world]
    if beyond:
        message = f"{listed(beyond)} {are(beyond)} left over from a bigger run; this step is of {counted(world, 'rank')}."
        reading.left_over(message, beyond)
    if missing:
        model_rank = files[0].model_rank if files else 0
        names = [f"zero_pp_rank_{r}_mp_rank_{model_rank:02d}_model_states.pt" for r in missing]
        message = f"The model files of {numbered('rank', missing)} of {world} are not here: {listed(names, 4)}."
        reading.missing("missing-rank", message, names)
