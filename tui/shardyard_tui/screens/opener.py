"""Which checkpoint is opened when: the one that the cursor rests on first, then whatever is in sight."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace

from textual import on, work
from textual.timer import Timer

from shardyard_tui import units
from shardyard_tui.facts import Document, EngineError, Opened, Reading
from shardyard_tui.places import Place, PlaceNode, Places
from shardyard_tui.screens.checkpoint_actions import NOT_READ, CheckpointActions
from shardyard_tui.summary import unopened
from shardyard_tui.views.about import about, nothing_found
from shardyard_tui.views.detail import Detail
from shardyard_tui.widgets.panel import Line
from shardyard_tui.widgets.sheet import wrap
from shardyard_tui.widgets.tree_list import TreeList

PATIENCE_S = 1.5
"""A reader that has worked this long on what is not wanted any more is given up."""
REST_S = 0.08
"""The cursor must rest this long before the checkpoint under it is opened."""
KEPT = 8
"""Opened checkpoints kept whole, with their tensors."""


class Opener(CheckpointActions):
    """A tree on the left, what the row under the cursor is on the right."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.places = Places(path)
        self.kept: OrderedDict[str, Opened] = OrderedDict()
        self.scanning = ""
        """What a search is doing; empty when there is none."""
        self._pause: Timer | None = None
        self._shown_path = ""
        self._wanted: PlaceNode | None = None
        self._opening_since = 0.0
        self._opening = ""
        self._sweeping = ""
        self._early_action: tuple[str, str] | None = None
        """An action, and the checkpoint whose headers it waits for; moving on or Esc forgets it."""

    @property
    def browse(self) -> TreeList[Place]:
        """The tree."""
        return self.query_one("#tree", TreeList)

    @property
    def detail(self) -> Detail:
        """The pane on the right."""
        return self.query_one(Detail)

    @on(TreeList.Moved, "#tree")
    def _moved(self) -> None:
        node = self.meant_by(self.browse.current)
        if self._early_action is not None and (node is None or node.key != self._early_action[1]):
            self._early_action = None
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(REST_S, self.show_current)

    def action_do(self, name: str) -> None:
        node = self.meant_by(self.browse.current)
        waits = node is not None and self.refusal(name) == NOT_READ
        self._early_action = (name, node.key) if node is not None and waits else None
        super().action_do(name)

    def _do_early_action(self, node: PlaceNode) -> None:
        """A key that came before the headers were read counts once they are."""
        if self._early_action is not None and self._early_action[1] == node.key:
            self.call_later(self.action_do, self._early_action[0])
            self._early_action = None

    def checkpoint_at(self, node: PlaceNode | None) -> PlaceNode | None:
        """The checkpoint that a row means: itself, or the only one of a folder."""
        while node is not None and node.value.kind == "folder" and len(node.children) == 1:
            node = node.children[0]
        return node if node is not None and node.value.found is not None else None

    def meant_by(self, node: PlaceNode | None) -> PlaceNode | None:
        """The checkpoint that an action on a row means: that of the row, or for one of its files the one it lies in."""
        found = self.checkpoint_at(node)
        while found is None and node is not None and node.parent is not None and node.value.kind != "folder":
            node = node.parent
            found = node if node.value.found is not None else None
        return found

    def show_current(self) -> None:
        """Show what is under the cursor; open it first if need be."""
        row = self.browse.current
        if row is None:
            return
        node = self.checkpoint_at(row)
        if node is None:
            self._shown_path = ""
            self.detail.explain(lambda width: self._about(row, width), row.value.name)
            around = self.meant_by(row)
            if around is not None and not around.value.problem and around.key not in self.kept:
                self.want(around)
        elif node.value.problem:
            self._shown_path = ""
            problem = node.value.problem
            self.detail.explain(lambda width: unopened(node.value.name, problem, width), node.value.name)
        elif node.key in self.kept:
            if self._shown_path != node.key or self.detail.opened is not self.kept[node.key]:
                self._shown_path = node.key
                self.detail.show(self.kept[node.key])
                self._do_early_action(node)
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

    def _about(self, node: PlaceNode, width: int) -> list[Line]:
        told = about(node, width)
        root = self.places.root.value
        if self.places.checkpoints or self.scanning:
            return told
        return [*nothing_found(root, width), *([] if root.problem else [(), *told])]

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
        self.places.resize(node, opened.nbytes)
        node.value.mtime = opened.stamp or node.value.mtime
        self.kept[node.key] = opened
        self.kept.move_to_end(node.key)
        while len(self.kept) > KEPT:
            path, old = self.kept.popitem(last=False)
            light = self.places.at(path)
            if light is not None and light.value.opened is old:
                # The report stays for the tree; half a million names need not.
                light.value.opened = Opened(old.path, old.report, type(old.table)(), old.stamp, old.owner, old.objects)

    def deep_known(self, path: str, report: Document) -> None:
        node = self.places.at(path)
        if node is not None and node.value.opened is not None:
            self._learnt(node, node.value.opened)
            self._shown_path = ""
            self.browse.refresh_inside()
            self.show_current()
