"""Which rank files belong together: all of one run, none missing, none left over from another.

A folder can hold files of a bigger run that was overwritten, or the same rank with and without the `bf16_` prefix.  The partition
count stands in every optimizer file, so each is asked; the others are named, never mixed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardyard.errors import DamagedError
from shardyard.findings import Blocks, Severity
from shardyard.formats.deepspeed.names import StepFile
from shardyard.formats.deepspeed.optimizer_file import OptimizerFile, read_optimizer_file
from shardyard.formats.deepspeed.reading import Reading, counted, listed, ranges


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


def load_ranks(reading: Reading, files: Sequence[StepFile], said: int | None, *, bf16: bool) -> RankSet:
    """Read the optimizer files of one model rank and settle which of them are one run.

    Args:
        reading: where findings go.
        files: the files, in numeric order.
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
    missing = [r for r in range(world) if r not in opened or (opened[r] is not None and ranks[r] is None)]
    if missing:
        reading.add(
            "missing-rank",
            Severity.ERROR,
            f"The optimizer files of {'rank' if len(missing) == 1 else 'ranks'} {ranges(missing)} of {world} are not here: "
            f"{listed([expected_name(files, r) for r in missing], 4)}.",
            "Add the folder of the node that wrote them, or use an earlier step.",
            paths=[expected_name(files, r) for r in missing],
            blocks=Blocks.UNLESS_ALLOWED,
        )
    return RankSet(world, ranks)


def expected_name(files: Sequence[StepFile], rank: int) -> str:
    """What the file of another rank would be called, after the pattern of those there are."""
    like = files[0] if files else None
    model_rank = like.model_rank if like else 0
    return f"{like.prefix if like else ''}zero_pp_rank_{rank}_mp_rank_{model_rank:02d}_optim_states.pt"


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
    reading.add(
        "stale-file",
        Severity.ERROR,
        f"{listed([names[r] for r in stale])} {'is' if len(stale) == 1 else 'are'} left over{run}; this step is of {counted(world, 'rank')}.",
        "Move the files of the other run away and try again.",
        paths=[names[r] for r in stale],
        blocks=Blocks.MERGE,
    )


def _one_prefix(reading: Reading, files: Sequence[StepFile], *, bf16: bool) -> list[StepFile]:
    """The files, one a rank: where a rank is there with and without the prefix, the kind that the run's config wants."""
    ranks = Counter(f.data_rank for f in files)
    if not any(count > 1 for count in ranks.values()):
        return list(files)
    wanted = "bf16_" if bf16 else ""
    kept = {f.data_rank: f for f in files if f.prefix == wanted} or {f.data_rank: f for f in reversed(files)}
    left_over = [f for f in files if kept.get(f.data_rank) is not f]
    reading.add(
        "stale-file",
        Severity.ERROR,
        f"{listed([f.name for f in left_over])} and {listed([f.name for f in kept.values()])} are files of two runs side by side.",
        "Move the files of the other run away and try again.",
        paths=[f.name for f in left_over],
        blocks=Blocks.MERGE,
    )
    return [kept[r] for r in sorted(kept)]


def check_model_files(reading: Reading, files: Sequence[StepFile], world: int, note: Callable[[int], str]) -> list[int]:
    """Findings about stage-3 model files that are missing or left over, by name alone; the missing ranks."""
    there = {f.data_rank for f in files}
    missing = [r for r in range(world) if r not in there]
    beyond = [f for f in files if f.data_rank >= world]
    if beyond:
        reading.add(
            "stale-file",
            Severity.ERROR,
            f"{listed([f.name for f in beyond])} {'is' if len(beyond) == 1 else 'are'} left over from a bigger run; "
            f"this step is of {counted(world, 'rank')}.",
            "Move the files of the other run away and try again.",
            paths=[f.name for f in beyond],
            blocks=Blocks.MERGE,
        )
    if missing:
        names = [note(r) for r in missing]
        reading.add(
            "missing-rank",
            Severity.ERROR,
            f"The model {'file' if len(missing) == 1 else 'files'} of {'rank' if len(missing) == 1 else 'ranks'} {ranges(missing)} "
            f"of {world} {'is' if len(missing) == 1 else 'are'} not here: {listed(names, 4)}.",
            "Add the folder of the node that wrote them, or use an earlier step.",
            paths=names,
            blocks=Blocks.UNLESS_ALLOWED,
        )
    return missing
