"""The first screen: a tree of folders with the checkpoints in them, and what the one under the cursor is."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.timer import Timer

from shardyard.text import printable
from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError, Found, JobView, Opened, Reading, Scanning
from shardyard_tui.places import Place, PlaceNode, Places
from shardyard_tui.screens.checkpoint_actions import CheckpointActions
from shardyard_tui.summary import state_span, unopened
from shardyard_tui.views.detail import Detail
from shardyard_tui.widgets.job_strip import JobStrip
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.row_list import Column
from shardyard_tui.widgets.sheet import wrap
from shardyard_tui.widgets.tree_list import Node, TreeList
from shardyard_tui.words import KINDS, kind_name, short_kind

PATIENCE_S = 1.5
"""A reader that has worked this long on what is not wanted any more is given up."""
REST_S = 0.08
"""The cursor must rest this long before the checkpoint under it is opened."""
OPEN_ROWS = 60
"""Folders are shown open until the tree has this many rows."""
KEPT = 8
"""Opened checkpoints kept whole, with their tensors."""
WRITERS = ("merge", "export", "shrink")
"""Jobs that leave a checkpoint."""
DRAW_S = 0.2
"""While a search runs, the tree is drawn again this often."""


def _name(node: PlaceNode) -> str:
    place = node.value
    slash = "/" if place.kind == "folder" or (place.found is not None and place.found.is_folder) else ""
    return f"{node.indent}{place.name}{slash}"


def _kind(node: PlaceNode) -> str:
    place = node.value
    if place.opened is not None:
        return kind_name(place.opened.report)
    return KINDS.get(place.found.kind, ("", ""))[0] if place.found is not None else ""


def _short(node: PlaceNode) -> str:
    """The kind in a few letters; what cannot be used says so in its place."""
    place = node.value
    if place.state in ("incomplete", "unreadable"):
        return "broken" if place.state == "unreadable" else "partial"
    return short_kind(place.found.kind) if place.found is not None else ""


def _short_style(node: PlaceNode) -> str:
    return "error" if node.value.state in ("incomplete", "unreadable") else "dim"


def _style(node: PlaceNode) -> str:
    state = node.value.state
    if state in ("incomplete", "unreadable"):
        return "error"
    return "text" if node.value.kind in ("checkpoint", "folder") else "dim"


COLUMNS: Sequence[Column[PlaceNode]] = (
    Column("Name", _name, style=_style, sort="n", key=lambda n: units.natural(n.value.name)),
    Column("Kind", _short, 7, most=65, style=_short_style, sort="k"),
    Column("Kind", _kind, 25, least=66, style="dim"),
    Column("State", lambda n: state_span(n.value.state)[0], 12, least=55, style=lambda n: state_span(n.value.state)[1]),
    Column(
        "Size",
        lambda n: units.size(n.value.nbytes) if n.value.nbytes or n.value.kind != "folder" else "",
        9,
        right=True,
        style="dim",
        sort="s",
        key=lambda n: n.value.nbytes,
        falling=True,
    ),
    Column(
        "Age",
        lambda n: units.age(max(0.0, _now() - n.value.mtime)) if n.value.mtime else "",
        8,
        right=True,
        least=90,
        style="dim",
        sort="t",
        key=lambda n: n.value.mtime,
        falling=True,
    ),
)


def _now() -> float:
    return time.time()


class Browser(CheckpointActions):
    """See the module."""

    NAME = "Checkpoints"
    EXPLAINS = "Every checkpoint below the folder you started in. Headers are read, never data; no code in a file is run."
    OFFERS = ("open", "merge", "mark", "filter", "export", "compare", "health", "look", "shrink", "disk", "jobs", "sort", "copy")
    ALSO = (
        *("merge-now", "hidden", "reread", "zoom", "verify", "stats", "copy-command", "reverse"),
        *("tab-1", "tab-2", "tab-3", "tab-4"),
    )

    def __init__(self, path: str) -> None:
        super().__init__()
        self.places = Places(path)
        self.kept: OrderedDict[str, Opened] = OrderedDict()
        self.scanning: str = ""
        self.show_all = False
        self._pause: Timer | None = None
        self._shown_path = ""
        self._wanted: PlaceNode | None = None
        self._opening_since = 0.0
        self._opening = ""
        self._sweeping = ""
        self._drawn = 0
        self._live_jobs: set[str] = set()
        self._return_to: str | None = None
        """Where the cursor goes once it is found again."""

    # Building

    def body(self) -> ComposeResult:
        tree: TreeList[Place] = TreeList(
            COLUMNS, lambda n: n.value.path, "Checkpoints", empty="Looking for checkpoints.", id="tree"
        )
        tree.roots = self.places.root.children
        with Horizontal(id="panes"):
            yield tree
            yield Detail(id="detail")
        yield JobStrip()

    def on_mount(self) -> None:
        super().on_mount()
        self.browse.lay_out()
        self.browse.focus()
        self.scan()

    @property
    def browse(self) -> TreeList[Place]:
        return self.query_one("#tree", TreeList)

    @property
    def detail(self) -> Detail:
        return self.query_one(Detail)

    @property
    def strip(self) -> JobStrip:
        return self.query_one(JobStrip)

    def where(self) -> Sequence[str]:
        path = self.places.root_path
        home = os.path.expanduser("~").rstrip("/")
        if home and (path == home or path.startswith(home + "/")):
            path = "~" + path[len(home) :]
        return [printable(part) for part in path.split("/") if part] or ["/"]

    def jobs_changed(self) -> None:
        self.strip.show(self.home.jobs, self.home.jobs_problem)
        running = {job.id for job in self.home.jobs if job.running}
        ended = [job for job in self.home.jobs if job.id in self._live_jobs and job.state == "done"]
        self._live_jobs = running
        if any(job.out.startswith(self.places.root_path) for job in ended) and not self.scanning:
            # What a job wrote here belongs into the tree.
            self.scan()

    # Searching

    @work(exclusive=True, group="scan")
    async def scan(self) -> None:
        """Fill the tree; Esc stops and keeps what was found."""
        self.scanning = "looking"
        self._title()
        drawing = self.set_interval(DRAW_S, self._draw)
        try:
            async for item in self.home.engine.scan(self.places.root_path):
                if isinstance(item, Found):
                    self.places.add(item, opened=len(self.browse.all) < OPEN_ROWS)
                elif isinstance(item, Scanning):
                    self.scanning = f"looking: {units.plural(item.folders, 'folder')}"
            self.browse.empty = "Nothing here."
        except EngineError as error:
            self.places.root.value.problem = error.message
        finally:
            drawing.stop()
            self.scanning = ""
        self._finished()

    def job_done(self, job: JobView) -> None:
        """Give what it wrote a row; read again what it changed in place."""
        changed = self.places.at(job.out or job.sources[0]) if job.verb in WRITERS and job.sources else None
        if changed is not None and changed.value.opened is not None:
            self.look_again(changed, changed.value.opened.stamp)
        elif job.verb in WRITERS and job.out.startswith(self.places.root_path.rstrip("/") + "/") and not self.scanning:
            self.add_output(job.out)

    @work(group="output")
    async def add_output(self, path: str) -> None:
        """Put a new checkpoint into the tree, the cursor and everything else staying as they are."""
        places = self.places
        with contextlib.suppress(EngineError):
            async for item in self.home.engine.scan(path):
                if isinstance(item, Found):
                    places.add(item, opened=len(self.browse.all) < OPEN_ROWS)
        if places is self.places:
            self._title()
            self.browse.lay_out()
            self.learn_states()

    def _draw(self) -> None:
        """Show what a search has found so far."""
        self._title()
        if self._drawn != self.places.checkpoints:
            self._drawn = self.places.checkpoints
            self.browse.lay_out()

    def _finished(self) -> None:
        self._title()
        self.browse.lay_out()
        if self._return_to is not None:
            self.browse.go_to(self._return_to)
            self._return_to = None
        if not self.places.checkpoints:
            self.detail.explain(self._nothing_found)
            if not self.places.root.value.listed:
                self.list_files(self.places.root)
        self.learn_states()

    def _title(self) -> None:
        found = units.plural(self.places.checkpoints, "checkpoint")
        if self.scanning:
            self.browse.title = f"{found}, {self.scanning} (Esc stops)"
        else:
            self.browse.title = found if self.places.checkpoints else "Files"

    def _nothing_found(self, width: int) -> list[Line]:
        root = self.places.root.value
        if root.problem:
            return [*wrap(root.problem, width, "error"), (), *wrap("R looks again.", width, "dim")]
        return [
            *wrap("No checkpoint was found here.", width, "strong"),
            (),
            *wrap(
                "Known are DeepSpeed ZeRO (also pipeline, MoE and universal), torch DCP and FSDP, rank files, Hugging Face "
                "folders, torch files, safetensors, LoRA adapters, GGUF and NumPy archives. Start one level up, or on the folder "
                "that a training run wrote; what lies here is on the left.",
                width,
                "dim",
            ),
        ]

    @work(exclusive=True, group="states")
    async def learn_states(self) -> None:
        """Open what is in sight and not known yet, in order, so that the tree tells what is whole and what is not."""
        while True:
            tree = self.browse
            seen = [tree.all[i] for i in tree.shown[tree.top : tree.top + tree.window]]
            node = next((n for n in seen if self._unknown(n)), None)
            if node is None:
                return
            self._sweeping = node.key
            try:
                self._learnt(node, await self.home.engine.open(node.key, lane="scan"))
            except EngineError as error:
                node.value.problem = error.message
            finally:
                self._sweeping = ""
            tree.refresh_inside()
            if self._shown_path == node.key:
                self._shown_path = ""
                self.show_current()

    def _unknown(self, node: PlaceNode) -> bool:
        """Whether it is a checkpoint whose state is not known, nor being found out for the other pane."""
        place = node.value
        return place.found is not None and place.opened is None and not place.problem and node.key != self._opening

    def _learnt(self, node: PlaceNode, opened: Opened) -> None:
        deep = self.home.deep.get(node.key)
        if deep is not None and deep[0] == opened.stamp:
            opened = replace(opened, report=deep[1])
        node.value.opened = opened
        node.value.problem = ""
        node.value.nbytes = opened.nbytes or node.value.nbytes
        node.value.mtime = opened.stamp or node.value.mtime
        self.kept[node.key] = opened
        self.kept.move_to_end(node.key)
        while len(self.kept) > KEPT:
            path, old = self.kept.popitem(last=False)
            light = self.places.at(path)
            if light is not None and light.value.opened is old:
                # The report stays for the tree; half a million names need not.
                light.value.opened = Opened(old.path, old.report, type(old.table)(), old.stamp, old.owner, old.objects)

    # The pane on the right

    @on(TreeList.Moved, "#tree")
    def _moved(self) -> None:
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(REST_S, self.show_current)

    def checkpoint_at(self, node: PlaceNode | None) -> PlaceNode | None:
        """The checkpoint that a row means: itself, or the only one of a folder."""
        while node is not None and node.value.kind == "folder" and len(node.children) == 1:
            node = node.children[0]
        return node if node is not None and node.value.found is not None else None

    def show_current(self) -> None:
        """Show what is under the cursor; open it first if need be."""
        row = self.browse.current
        if row is None:
            return
        node = self.checkpoint_at(row)
        if node is None:
            self._shown_path = ""
            self.detail.explain(lambda width: self._about(row.value, width), row.value.name)
        elif node.value.problem:
            self._shown_path = ""
            problem = node.value.problem
            self.detail.explain(lambda width: unopened(node.value.name, problem, width), node.value.name)
        elif node.key in self.kept:
            if self._shown_path != node.key or self.detail.opened is not self.kept[node.key]:
                self._shown_path = node.key
                self.detail.show(self.kept[node.key])
        elif self._shown_path != node.key:
            self._shown_path = node.key
            self.detail.explain(lambda width: wrap("Reading its headers.", width, "dim"), node.value.name)
            self.want(node)
        self.show_keys()
        if not self.scanning:
            self.learn_states()

    def want(self, node: PlaceNode) -> None:
        """Open the node next. What is being opened may finish, unless it takes long: a new reader costs more than waiting."""
        self._wanted = node
        busy = self._opening_since and time.monotonic() - self._opening_since
        if node.key != self._sweeping and (not busy or busy > PATIENCE_S):
            self.open_wanted()

    @work(exclusive=True, group="open")
    async def open_wanted(self) -> None:
        """Open what the cursor rests on, then whatever it rests on by then."""

        def progress(reading: Reading) -> None:
            if self._shown_path == node.key:
                part = f" ({units.count(reading.done)} of {units.count(reading.total)})" if reading.total else ""
                text = f"Reading {reading.what}{part}. Esc stops."
                self.detail.explain(lambda width: wrap(text, width, "dim"), node.value.name)

        try:
            while self._wanted is not None:
                node, self._wanted = self._wanted, None
                self._opening_since, self._opening = time.monotonic(), node.key
                try:
                    opened = await self.home.engine.open(node.key, progress=progress)
                except EngineError as error:
                    node.value.problem = error.message
                else:
                    self._learnt(node, opened)
                self.browse.refresh_inside()
                if self._shown_path == node.key:
                    self._shown_path = ""
                    self.show_current()
        finally:
            self._opening_since, self._opening = 0.0, ""

    def _about(self, place: Place, width: int) -> list[Line]:
        about = self._about_place(place, width)
        return about if self.places.checkpoints or self.scanning else [*self._nothing_found(width), (), *about]

    def _about_place(self, place: Place, width: int) -> list[Line]:
        if place.problem:
            return wrap(place.problem, width, "error")
        node = self.places.at(place.path)
        if place.kind == "folder" and node is not None:
            below = [n for n in _below(node) if n.value.found is not None]
            text = f"A folder with {units.plural(len(below), 'checkpoint')}, {units.size(place.nbytes)} in all."
            lines = wrap(text if below else "A folder without a checkpoint.", width, "strong")
            if below:
                lines += [(), *wrap("u shows where its bytes are. Enter opens or closes it.", width, "dim")]
            return lines
        if place.kind == "group":
            many = units.plural(len(place.members), "file")
            return wrap(f"{many} of one kind, {units.size(place.nbytes)} in all.", width, "strong")
        if place.kind == "note":
            return wrap(place.name, width, "dim")
        changed = f", changed {units.age(max(0.0, _now() - place.mtime))} ago" if place.mtime else ""
        return wrap(f"A file of {units.size(place.nbytes)}{changed}. It is no checkpoint of its own.", width, "text")

    # The tree

    @on(TreeList.Chosen, "#tree")
    def _chosen(self) -> None:
        node = self.browse.current
        if node is None:
            return
        if node.value.found is not None:
            self.do_look() if self.target_at_hand() is not None else self.show_current()
        elif node.can_open:
            self.browse.close_node(node) if node.is_open else self.browse.open_node(node)

    @on(TreeList.Opened, "#tree")
    def _node_opened(self, event: TreeList.Opened) -> None:
        node: PlaceNode = event.node
        if not node.value.listed and (node.value.kind == "checkpoint" or self.show_all):
            self.list_files(node)

    @work(group="list")
    async def list_files(self, node: PlaceNode) -> None:
        """Put the files of the node's folder under it; until they are there, a row says so."""
        waiting: PlaceNode = Node(f"{node.key}//waiting", Place("note", node.key, "reading this folder"))
        if node is not self.places.root:
            node.add(waiting)
            self.browse.lay_out()
        try:
            listing = await self.home.engine.listing(node.key)
        except EngineError as error:
            node.value.problem = error.message
        else:
            self.places.add_files(node, listing, folders=self.show_all)
        finally:
            node.children[:] = [child for child in node.children if child is not waiting]
        self.browse.lay_out()

    def do_hidden(self) -> None:
        self.show_all = not self.show_all
        if self.show_all:
            for node in self.places.nodes:
                if node.is_open and not node.value.listed and (node.value.found is None or node.value.found.is_folder):
                    self.list_files(node)
            self.say("All files and folders are shown; . hides them again.")
        else:
            self.places.forget_files()
            self.browse.lay_out()

    def do_reread(self) -> None:
        """Read again: the checkpoint under the cursor, and the folders."""
        self.kept.clear()
        self._shown_path = ""
        for node in self.places.nodes:
            node.value.opened = None
            node.value.problem = ""
        here = self.browse.current.key if self.browse.current is not None else None
        marked = self.browse.marked
        self.places = Places(self.places.root_path)
        self.browse.roots = self.places.root.children
        self.browse.marked = marked
        self.browse.lay_out()
        self._return_to = here
        self.workers.cancel_group(self, "states")
        self.scan()

    def came_back(self) -> None:
        node = self.browse.current
        if node is not None and node.value.opened is not None:
            self.look_again(node, node.value.opened.stamp)

    @work(exclusive=True, group="stamp")
    async def look_again(self, node: PlaceNode, before: float) -> None:
        """Read the checkpoint again if its files changed while the terminal was elsewhere."""
        try:
            changed = await self.home.engine.stamp(node.key) != before
        except EngineError:
            changed = True
        if changed:
            self.kept.pop(node.key, None)
            self._shown_path = ""
            self.say(f"{node.value.name} has changed; it is read again.")
            self.show_current()

    def do_back(self) -> None:
        """Stop what is being read; else clear the filter; else unmark. It never leaves and never destroys."""
        tree = self.browse
        if self.scanning:
            self.workers.cancel_group(self, "scan")
            self.scanning = ""
            self.say("Stopped; what was found so far is shown. R looks again.")
            self._finished()
        elif not tree.filter.empty:
            tree.set_filter("")
        elif self.has_class("-zoom-tree") or self.has_class("-zoom-detail"):
            self.do_zoom()
        else:
            self.workers.cancel_group(self, "open")
            self.browse.focus()

    def do_zoom(self) -> None:
        """One pane alone, and back."""
        zoomed = [c for c in ("-zoom-tree", "-zoom-detail") if self.has_class(c)]
        if zoomed:
            self.remove_class(*zoomed)
        else:
            self.add_class("-zoom-tree" if self.browse.has_focus else "-zoom-detail")

    def do_tab_1(self) -> None:
        self.detail.tab = "summary"

    def do_tab_2(self) -> None:
        self.detail.tab = "tensors"

    def do_tab_3(self) -> None:
        self.detail.tab = "health"

    def do_tab_4(self) -> None:
        self.detail.tab = "files"

    def deep_known(self, path: str, report: Document) -> None:
        node = self.places.at(path)
        if node is not None and node.value.opened is not None:
            self._learnt(node, node.value.opened)
            self._shown_path = ""
            self.browse.refresh_inside()
            self.show_current()

    # What actions act on

    def targets(self) -> list[str]:
        nodes = (self.checkpoint_at(node) for node in self.browse.chosen)
        return list(dict.fromkeys(node.key for node in nodes if node is not None))

    def target_at_hand(self) -> Opened | None:
        node = self.checkpoint_at(self.browse.current) if self.is_mounted else None
        return self.kept.get(node.key) if node is not None else None

    def folder_at_hand(self) -> str:
        node = self.browse.current
        while node is not None and node.value.kind != "folder":
            node = node.parent
        return node.key if node is not None else self.places.root_path

    def copied(self) -> str:
        node = self.browse.current
        return node.value.path if node is not None else self.places.root_path

    def command(self) -> str:
        return f"shardyard inspect {shlex.quote(self.copied())}"


def _below(node: PlaceNode) -> list[PlaceNode]:
    found = [node]
    for child in node.children:
        found += _below(child)
    return found
