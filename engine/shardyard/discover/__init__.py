"""From paths to checkpoints: which lie in a tree, which one is meant, and opening it.

`scan` finds all below a folder and fills as it goes.  `find` answers which checkpoint a path means, one level too high or too low
included, and never guesses: where several qualify it lists them.  `open_checkpoint` opens it with everything that lies beside it.
"""

from shardyard.discover.choose import enclosing, find
from shardyard.discover.look import Look, look
from shardyard.discover.opening import config_only, open_candidate, open_checkpoint, unreadable
from shardyard.discover.walk import Visit, scan, walk

__all__ = [
    "Look",
    "Visit",
    "config_only",
    "enclosing",
    "find",
    "look",
    "open_candidate",
    "open_checkpoint",
    "scan",
    "unreadable",
    "walk",
]
