"""The first screen: a tree of folders with the checkpoints in them, and what the one under the cursor is."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal

from shardyard.text import printable
from shardyard_tui import units
from shardyard_tui.facts import EngineError, Found, JobView, Opened
from shardyard_tui.places import Place, PlaceNode, Places
from shardyard_tui.screens.opener import Opener
from shardyard_tui.views.about import nothing_found
from shardyard_tui.views.detail import Detail
from shardyard_tui.views.places import COLUMNS
from shardyard_tui.widgets.job_strip import JobStrip
from shardyard_tui.widgets.tree_list import Node, TreeList

OPEN_ROWS = 60
"""Folders are shown open until the tree has this many rows."""
WRITERS = ("merge", "export", "shrink")
"""Jobs that leave a checkpoint."""
DRAW_S = 0.2
"""While a search runs, the tree is drawn again this often."""


class Browser(Opener):
    """See the module."""

    NAME = "Checkpoints"
    EXPLAINS = "Every checkpoint below the folder you started in. Headers are read, never data; no code in a file is run."
    OFFERS = ("open", "merge", "mark", "filter", "export", "compare", "health", "look", "shrink", "disk", "jobs", "sort", "copy")
    ALSO = (
        *("merge-now", "hidden", "reread", "zoom", "verify", "stats", "copy-command", "reverse"),
        *("tab-1", "tab-2", "tab-3", "tab-4"),
    )

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.show_all = False
        self._drawn = 0
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
    def strip(self) -> JobStrip:
        return self.query_one(JobStrip)

    def where(self) -> Sequence[str]:
        path = self.places.root_path
        home = os.path.expanduser("~").rstrip("/")
        if home and (path == home or path.startswith(home + "/")):
            path = "~" + path[len(home) :]
        return [printable(part) for part in path.split("/") if part] or ["/"]

    def on_screen_resume(self) -> None:
        if self.is_mounted:
            # What changed while another screen was in front was told to that one.
            self.jobs_changed()

    def jobs_changed(self) -> None:
        self.strip.show(self.home.jobs, self.home.jobs_problem)

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
                elif item.problem:
                    self.places.add_unread(item.unread, item.problem)
                else:
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
            self.detail.explain(lambda width: nothing_found(self.places.root.value, width))
            if not self.places.root.value.listed:
                self.list_files(self.places.root)
        self.learn_states()

    def _title(self) -> None:
        found = units.plural(self.places.checkpoints, "checkpoint")
        if self.places.unread:
            found += f", {units.plural(self.places.unread, 'folder')} not read"
        if self.scanning:
            self.browse.title = f"{found}, {self.scanning} (Esc stops)"
        else:
            self.browse.title = found if self.places.checkpoints or self.places.unread else "Files"

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

    # What actions act on

    def targets(self) -> list[str]:
        if not self.is_mounted:
            return []
        nodes = (self.meant_by(node) for node in self.browse.chosen)
        return list(dict.fromkeys(node.key for node in nodes if node is not None))

    def target_at_hand(self) -> Opened | None:
        node = self.meant_by(self.browse.current) if self.is_mounted else None
        return self.kept.get(node.key) if node is not None else None

    def known(self, path: str) -> Opened | None:
        node = self.places.at(path)
        if node is not None and node.value.problem:
            return Opened.unreadable(path, node.value.problem)
        return self.kept.get(path) or (node.value.opened if node is not None else None)

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
