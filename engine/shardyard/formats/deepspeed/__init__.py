"""DeepSpeed checkpoints of every stage and version: a folder of rank files as one catalogue of weights.

`names` parses file names; `model_file` and `optimizer_file` take the two kinds of files apart; `ranks` settles which files are
one run; `flat` and `zero` do ZeRO's arithmetic; `frozen`, `weights` and `moe` add what masters do not hold; `zero_step`,
`unsharded`, `pipeline`, `universal` and `split` are the layouts; `tags` and `opening` find and open the step that is meant.

The layouts were read from folders written by DeepSpeed 0.3.16, 0.5.10, 0.7.7, 0.9.5, 0.12.6, 0.14.5 and 0.19.8, and checked
against the live weights of the runs that wrote them.  MiCS, AutoEP, fused stage-0 optimizers and `expert_E` files without a
layer number are known from DeepSpeed's source only.
"""

from __future__ import annotations

from shardyard.formats.deepspeed.recognition import FORMAT

__all__ = ["FORMAT"]
