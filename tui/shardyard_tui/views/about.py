"""What is said of a place that is no checkpoint, and of a search that found none."""

from __future__ import annotations

import time

from shardyard_tui import units
from shardyard_tui.places import Place, PlaceNode
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import wrap

KNOWN = (
    "Known are DeepSpeed ZeRO (also pipeline, MoE and universal), torch DCP and FSDP, rank files, Hugging Face folders, torch "
    "files, safetensors, LoRA adapters, GGUF and NumPy archives. Start one level up, or on the folder that a training run wrote; "
    "what lies here is on the left."
)


def nothing_found(root: Place, width: int) -> list[Line]:
    """Kindly, with what to try next."""
    if root.problem:
        return [*wrap(root.problem, width, "error"), (), *wrap("R looks again.", width, "dim")]
    return [*wrap("No checkpoint was found here.", width, "strong"), (), *wrap(KNOWN, width, "dim")]


def about(node: PlaceNode, width: int) -> list[Line]:
    """A folder, a file, many files of one kind, a remark."""
    place = node.value
    if place.problem:
        return [*wrap(place.problem, width, "error"), (), *wrap("R looks again.", width, "dim")]
    if place.kind == "folder":
        below = sum(n.value.found is not None for n in everything_in(node))
        text = f"A folder with {units.plural(below, 'checkpoint')}, {units.size(place.nbytes)} in all."
        lines = wrap(text if below else "A folder without a checkpoint.", width, "strong")
        if below:
            lines += [(), *wrap("u shows where its bytes are. Enter opens or closes it.", width, "dim")]
        return lines
    if place.kind == "group":
        many = units.plural(len(place.members), "file")
        return wrap(f"{many} of one kind, {units.size(place.nbytes)} in all.", width, "strong")
    if place.kind == "note":
        return wrap(place.name, width, "dim")
    changed = f", changed {units.age(max(0.0, time.time() - place.mtime))} ago" if place.mtime else ""
    return wrap(f"A file of {units.size(place.nbytes)}{changed}. It is no checkpoint of its own.", width, "text")


def everything_in(node: PlaceNode) -> list[PlaceNode]:
    """The node and all below it."""
    found = [node]
    for child in node.children:
        found += everything_in(child)
    return found
