"""What is about torch: checkpoints as state dicts, saving without bloat, and gathering a model that is being trained.

The extra `shardyard[torch]`.  Training frameworks are used where they are installed and none is imported before it is needed.
"""

from shardyard.torch.gathering import consolidate
from shardyard.torch.loading import StateDict, load_into, state_dict
from shardyard.torch.saving import save

__all__ = ["StateDict", "consolidate", "load_into", "save", "state_dict"]
