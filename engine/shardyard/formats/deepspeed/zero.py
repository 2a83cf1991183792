"""Masters of one model rank: `param_shapes` walked over the flat vectors of all data ranks.

Stages 1 and 2: for each group, parameters follow one another in the joined vector, with a gap after each where
`param_alignment_paddings` says so.  Stage 3: on every rank the parameters' equal parts follow one another.  The order is that of
`param_shapes` and nothing else: with `round_robin_gradients` it is not the module's, and `param_slice_mappings` is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from shardyard.checkpoint import Role, Tensor
from shardyard.dtypes import BY_NAME, DType
from shardyard.formats.deepspeed.flat import Chain, Columns, FlatVector, Shape, layout_error, mixed_error, partition_size, share
from shardyard.formats.deepspeed.model_file import Shapes
from shardyard.formats.deepspeed.optimizer_file import OptimizerFile
from shardyard.formats.deepspeed.ranks import RankSet
from shardyard.formats.deepspeed.reading import ranges
from shardyard.layouts import Layout
from shardyard.text import printable

Vectors = list[list[FlatVector | None]]
"""Of one group: for each data rank its pieces, one or several."""
Rename = Callable[[str, int, int], str]
"""(local name, expert-parallel rank, expert-parallel size) to the name in the whole model."""


Found = tuple[str, Shape, Layout | None, DType]
"""A parameter's name, shape, layout and type."""


def masters(ranks: RankSet, shapes: Sequence[Shapes], rename: Rename | None = None) -> dict[str, Tensor]:
    """The fp32 weights by name; without layout where a rank that holds them is not here.

    Raises:
        DamagedError: shapes and stored elements do not agree to the last element.
    """
    first = ranks.first
    if first is None:
        return unknown(shapes, "no optimizer file of this step can be read")
    _same_layout(ranks, first)
    if first.partition_groups:
        raise layout_error(f"{printable(first.name)}: its weights are cut over groups of ranks (AutoEP).", first.path)
    absent = f"needs the optimizer file of rank {ranges(ranks.absent())}, which is not here"
    found: dict[str, Tensor] = {}
    for name, shape, layout, dtype in walk(ranks, shapes, [stored(ranks, g) for g in range(len(first.groups))], rename):
        if name in found:
            raise layout_error(f"{printable(name, 80)} stands in two groups of {printable(first.name)}.", first.path)
        note = "" if layout is not None else absent
        found[name] = Tensor(name, dtype, shape, layout, Role.MASTER, trainable=True, note=note)
    return found


def unknown(shapes: Sequence[Shapes], why: str) -> dict[str, Tensor]:
    """The names and shapes of masters whose data cannot be told."""
    return {
        name: Tensor(name, BY_NAME["float32"], shape, None, Role.MASTER, trainable=True, note=why)
        for group in shapes
        for name, shape in group.items()
    }


def walk(ranks: RankSet, shapes: Sequence[Shapes], vectors: Sequence[Vectors], rename: Rename | None = None) -> Iterator[Found]:
    """Each parameter with its layout in the given vectors: those of the masters, or moments that are cut alike."""
    first = ranks.first
    assert first is not None
    if first.stage == 3:
        yield from _walk_columns(first, shapes, vectors, ranks.world)
        return
    if len(shapes) != len(first.groups):
        raise mixed_error(
            f"{printable(first.name)} has {len(first.groups)} groups where the shapes are of {len(shapes)}.", first.path
        )
    for group in range(len(shapes)):
        yield from _walk_chain(ranks, first, group, shapes[group], vectors[group], rename)


def _walk_chain(
    ranks: RankSet, first: OptimizerFile, group: int, shapes: Shapes, vectors: Vectors, rename: Rename | None
) -> Iterator[Found]:
    count = first.counts[group]
    what = f"group {group} of {printable(first.name)}"
    if count != ranks.world and (group not in first.experts or ranks.world % count):
        raise layout_error(f"{what} is cut over {count} of {ranks.world} ranks for a reason that is not known here.", first.path)
    spread = ranks.world // count
    places, total = starts(shapes, first, group)
    masters_of_group = stored(ranks, group)
    for expert_rank in range(spread):
        members = range(expert_rank, ranks.world, spread)
        own = _in_order([masters_of_group[r] for r in members], what, first)
        paddings = [_padding(ranks.ranks[r], group) for r in members] if len(own) == count else [None] * len(own)
        size = partition_size(own, total, paddings, keeps_padding=first.keeps_padding, what=what)
        pieces = _in_order([vectors[r] for r in members], what, first)
        for mine, other in zip(own, pieces, strict=True):
            if mine is not None and other is not None and other.numel < mine.numel:
                raise layout_error(f"{what} has {other.numel} elements where its masters have {mine.numel}.", other.record.path)
        chain, dtype = Chain(pieces, size), _dtype(pieces, first)
        for (name, shape), start in zip(shapes.items(), places, strict=True):
            whole = rename(name, expert_rank, spread) if rename is not None and group in first.experts else name
            yield whole, shape, chain.layout(start, math.prod(shape), dtype), dtype


def starts(shapes: Shapes, first: OptimizerFile, group: int) -> tuple[list[int], int]:
    """First element of each parameter in the group's vector (stages 1 and 2), and the elements up to the end of the last."""
    gaps = first.gaps[group] if first.gaps is not None and any(first.gaps[group]) else (0,) * len(shapes)
    if len(gaps) != len(shapes):
        raise layout_error(f"{first.name}: group {group} has {len(gaps)} gaps for {len(shapes)} parameters.", first.path)
    places, position = [], 0
    for shape, gap in zip(shapes.values(), gaps, strict=True):
        places.append(position)
        position += math.prod(shape) + gap
    return places, position


def _padding(file: OptimizerFile | None, group: int) -> int | None:
    return file.paddings[group] if file is not None and file.paddings is not None else None


def _in_order(vectors: Sequence[Sequence[FlatVector | None]], what: str, first: OptimizerFile) -> list[FlatVector | None]:
    """Pieces in the order of the joined vector: by rank, or with communication intervals by interval and then by rank."""
    if len({len(v) for v in vectors}) != 1:
        raise layout_error(f"{what} has different numbers of pieces on different ranks.", first.path)
    return [v[i] for i in range(len(vectors[0])) for v in vectors]


def _walk_columns(first: OptimizerFile, shapes: Sequence[Shapes], vectors: Sequence[Vectors], world: int) -> Iterator[Found]:
    columns = [Columns([pieces[0] for pieces in group]) for group in vectors]
    dtypes = [_dtype(c.pieces, first) for c in columns]
    lengths = [_length(c, first) for c in columns]
    if first.single_dict and len(columns) > 1:
        groups = _fill_in_order(shapes[0], lengths, world, first)
    elif len(shapes) == len(columns):
        groups = [list(s.items()) for s in shapes]
    else:
        raise mixed_error(f"{first.name} has {len(columns)} groups where the model file has {len(shapes)}.", first.path)
    for index, (column, dtype, length, members) in enumerate(zip(columns, dtypes, lengths, groups, strict=True)):
        start = 0
        for name, shape in members:
            numel = math.prod(shape)
            per = share(numel, world)
            if length is None or start + per <= length:
                yield name, shape, column.layout(start, numel, dtype), dtype
            start += per
        if length is not None and start != length:
            raise mixed_error(
                f"group {index} of {printable(first.name)}: each rank holds {length} elements where its parameters need {start}.",
                first.path,
            )


def _length(column: Columns, first: OptimizerFile) -> int | None:
    """Elements of a sub group on each rank, the same on all."""
    there = [p for p in column.pieces if p is not None]
    for piece in there:
        if piece.numel != there[0].numel:
            raise layout_error(
                f"{printable(piece.record.path.rsplit('/', 1)[-1])} holds {piece.numel} elements of a group where "
                f"{printable(first.name)} holds {there[0].numel}.",
                piece.record.path,
            )
    return there[0].numel if there else None


def _fill_in_order(
    shapes: Shapes, lengths: Sequence[int | None], world: int, first: OptimizerFile
) -> list[list[tuple[str, Shape]]]:
    """One dict over the sub groups of one optimizer group (before 0.5): parameters in order, each sub group filled exactly."""
    groups: list[list[tuple[str, Shape]]] = [[] for _ in lengths]
    index = filled = 0
    for name, shape in shapes.items():
        per = share(math.prod(shape), world)
        while per and index < len(lengths) and filled == lengths[index]:
            index, filled = index + 1, 0
        if index == len(lengths):
            raise mixed_error(f"{first.name} holds fewer elements than its parameters need.", first.path)
        groups[index].append((name, shape))
        filled += per
    return groups


def stored(ranks: RankSet, group: int) -> Vectors:
    """The masters' pieces of a group by rank, with None for ranks that are not here."""
    first = ranks.first
    assert first is not None
    absent: list[FlatVector | None] = [None] * len(first.groups[group])
    return [list(r.groups[group]) if r is not None else absent for r in ranks.ranks]


def _dtype(pieces: Sequence[FlatVector | None], first: OptimizerFile) -> DType:
    dtypes = {p.dtype for p in pieces if p is not None}
    if len(dtypes) > 1:
        raise layout_error(f"{first.name} and the files of other ranks hold masters of different types.", first.path)
    return dtypes.pop() if dtypes else first.groups[0][0].dtype


def _same_layout(ranks: RankSet, first: OptimizerFile) -> None:
    """Every rank must describe the same groups."""
    for other in ranks.ranks:
        if other is None:
            continue
        same = (other.stage, other.counts, other.gaps, other.keeps_padding, other.experts, len(other.groups)) == (
            first.stage,
            first.counts,
            first.gaps,
            first.keeps_padding,
            first.experts,
            len(first.groups),
        )
        if not same or (other.shapes is not None and other.shapes != first.shapes and not first.experts):
            raise mixed_error(f"{printable(other.name)} describes other groups than {printable(first.name)}.", other.path)
