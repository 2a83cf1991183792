"""Every action of the app: its name, its keys, what it says in the help, and the command that does the same.

One letter means one thing on every screen.  Screens name the actions they offer; bindings, the key line, the help and the
palette are all made from this table, so none of them can drift from another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Action:
    """Something a key does."""

    id: str
    """What a user's key map calls it."""
    keys: str
    """Textual's names of its keys, with commas between."""
    shown: str
    """The key as the key line and the help write it."""
    label: str
    """One or two words for the key line."""
    help: str
    """What the help says."""
    group: str
    """Move, Look, Act, Jobs or Program."""
    command: str = ""
    """The command line that does the same; empty only for what moves, sorts or shows differently what is on the screen."""


_TABLE: tuple[Action, ...] = (
    Action("down", "j,down", "j ↓", "down", "down", "Move"),
    Action("up", "k,up", "k ↑", "up", "up", "Move"),
    Action("first", "g,home", "g", "top", "top", "Move"),
    Action("last", "G,end", "G", "bottom", "bottom", "Move"),
    Action("half-down", "ctrl+d", "^d", "half page", "half a page down", "Move"),
    Action("half-up", "ctrl+u", "^u", "half page", "half a page up", "Move"),
    Action("page-down", "ctrl+f,pagedown", "^f", "page", "a page down", "Move"),
    Action("page-up", "ctrl+b,pageup", "^b", "page", "a page up", "Move"),
    Action("open", "enter", "Enter", "open", "open what is under the cursor", "Move"),
    Action("expand", "l,right", "l →", "open", "open a folder", "Move"),
    Action("collapse", "left", "←", "close", "close a folder, or go to the one above", "Move"),
    Action("next-value", "l,right,space", "l →", "change", "the option's next value, or type it", "Move"),
    Action("previous-value", "h,left", "h ←", "change back", "the option's value before", "Move"),
    Action("parent", "minus,backspace", "-", "up", "the folder above", "Move"),
    Action("next-pane", "tab", "Tab", "pane", "the next pane", "Move"),
    Action("previous-pane", "shift+tab", "S-Tab", "pane", "the pane before", "Move"),
    Action("tab-1", "1", "1", "summary", "summary", "Look", "shardyard inspect"),
    Action("tab-2", "2", "2", "tensors", "tensors", "Look", "shardyard inspect --tensors"),
    Action("tab-3", "3", "3", "health", "health", "Look", "shardyard inspect"),
    Action("tab-4", "4", "4", "files", "files", "Look", "shardyard inspect"),
    Action("zoom", "plus", "+", "zoom", "one pane alone, and back", "Look"),
    Action("filter", "slash", "/", "filter", "filter as you type: text, ~fuzzy, /regex/, !not", "Look"),
    Action("next-match", "n", "n", "next", "next row that matches", "Look"),
    Action("previous-match", "N", "N", "previous", "the matching row before", "Look"),
    Action("sort", "s", "s", "sort", "sort: then a letter for the column", "Look"),
    Action("reverse", "S", "S", "reverse", "reverse the order", "Look"),
    Action("fold", "f", "f", "fold", "fold layers into patterns such as layers.#", "Look"),
    Action("look", "i", "i", "look", "look closer: tensors, then one with its statistics", "Look", "shardyard stats"),
    Action("health", "h", "h", "health", "what is wrong, why it matters, what to do", "Look", "shardyard inspect"),
    Action("disk", "u", "u", "disk", "where the bytes are, and what could be given back", "Look", "shardyard inspect"),
    Action("hidden", "full_stop", ".", "all files", "folders and files that are no checkpoint", "Look"),
    Action("reread", "R", "R", "read again", "read it again from disk", "Look", "shardyard inspect"),
    Action("mark", "space", "Space", "mark", "mark, and go one down", "Act"),
    Action("mark-range", "v", "v", "mark range", "mark from here to where v is pressed again", "Act"),
    Action("mark-all", "asterisk", "*", "mark all", "mark everything that is shown", "Act"),
    Action("unmark", "U", "U", "unmark", "unmark everything", "Act"),
    Action("start", "enter", "Enter", "start", "start what the plan says", "Act", "shardyard merge"),
    Action("merge", "m", "m", "merge", "merge into one set of weights: shows the plan first", "Act", "shardyard merge"),
    Action("merge-now", "M", "M", "merge now", "merge at once, if every check passes", "Act", "shardyard merge"),
    Action("export", "e", "e", "export", "export a folder that a model loader opens", "Act", "shardyard export"),
    Action("shrink", "x", "x", "shrink", "drop stored bytes that no tensor uses", "Act", "shardyard shrink"),
    Action(
        "compare",
        "c",
        "c",
        "compare",
        "compare the two marked, or c here and c on another",
        "Act",
        "shardyard compare",
    ),
    Action("verify", "V", "V", "read values", "read the data: checksums, NaN, copies", "Act", "shardyard inspect --deep"),
    Action("stats", "B", "B", "statistics", "statistics of every tensor shown", "Act", "shardyard stats"),
    Action("copy", "y", "y", "copy", "copy the path or the name", "Act"),
    Action("copy-command", "Y", "Y", "copy command", "copy what is on the screen as a command", "Act"),
    Action("jobs", "J", "J", "jobs", "jobs, running and finished", "Jobs", "shardyard jobs list"),
    Action("follow", "F", "F", "follow", "follow a job, or let the view stand still", "Jobs", "shardyard jobs follow"),
    Action("cancel", "X", "X", "cancel", "cancel the job: asks first", "Jobs", "shardyard jobs cancel"),
    Action("resume", "r", "r", "resume", "go on from the last finished unit", "Jobs", "shardyard jobs resume"),
    Action("clean", "C", "C", "clean up", "forget finished jobs: asks first", "Jobs", "shardyard jobs clean --done"),
    Action("scale", "b", "b", "log scale", "linear or logarithmic bars", "Look"),
    Action("doctor", "D", "D", "doctor", "versions, limits, terminal: what a bug report needs", "Program", "shardyard doctor"),
    Action("palette", "colon,ctrl+p", ":", "any command", "any action by name", "Program"),
    Action("help", "question_mark,f1", "?", "help", "this help", "Program", "shardyard --help"),
    Action("theme", "T", "T", "colours", "dark, light, or the terminal's own colours", "Program"),
    Action("redraw", "ctrl+l", "^l", "redraw", "draw the screen again", "Program"),
    Action("suspend", "ctrl+z", "^z", "shell", "to the shell; fg comes back", "Program"),
    Action("back", "escape", "Esc", "back", "back, or stop what is being read", "Program"),
    Action("quit", "q", "q", "quit", "quit; jobs go on", "Program"),
)

ACTIONS: dict[str, Action] = {action.id: action for action in _TABLE}
MOVES = ("down", "up", "first", "last", "half-down", "half-up", "page-down", "page-up")
EVERYWHERE = ("jobs", "doctor", "palette", "help", "theme", "redraw", "suspend", "back", "quit")


def bindings(ids: Iterable[str], method: str = "do", *, priority: bool = False) -> list[Binding]:
    """Bindings that call `action_<method>(id)`; their ids are what a key map changes."""
    return [
        Binding(a.keys, f"{method}({a.id!r})", a.label, show=False, id=a.id, key_display=a.shown, priority=priority)
        for a in (ACTIONS[i] for i in ids)
    ]
