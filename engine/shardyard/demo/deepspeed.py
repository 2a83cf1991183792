"""ZeRO-2 and ZeRO-3 folders as DeepSpeed 0.19 and the Hugging Face Trainer leave them."""

from __future__ import annotations

from pathlib import Path

from shardyard.demo import hugging_face
from shardyard.demo.model import EMBEDDING, HEAD, DemoModel
from shardyard.dtypes import BY_NAME
from shardyard.formats.pickles import Call, Dict, Global
from shardyard.formats.torch.writer import Storage, instance, ordered_dict, size, tensor, write_torch

_FLOAT32, _BFLOAT16 = BY_NAME["float32"], BY_NAME["bfloat16"]
_VERSION = "0.19.8"


def write_zero3(folder: Path, model: DemoModel, *, world: int, step: int) -> None:
    """A Trainer's `checkpoint-N` of a ZeRO-3 run, with the gathered 16-bit model beside the step folder."""
    tag = _start(folder, step)
    per = {name: -(-len(data) // 4 // world) for name, data in model.float32.items()}
    for rank in range(world):
        flat = b"".join(_slice(data, rank, per[name]) for name, data in model.float32.items())
        groups = [_with_id(tensor(Storage(_FLOAT32, flat), (len(flat) // 4,)))]
        write_torch(
            tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
            _optimizer_file(
                _dict(
                    loss_scaler=_loss_scaler(),
                    dynamic_loss_scale=False,
                    overflow=False,
                    zero_stage=_stage(3),
                    partition_count=world,
                    optimizer_state_dict=_moments(model, len(flat) // 4),
                    fp32_flat_groups=groups,
                )
            ),
        )
        empty = [(name, tensor(Storage(_BFLOAT16, b""), (0,))) for name in (*model.shapes, HEAD)]
        write_torch(
            tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", _model_file(model, empty, step=step, world=world, rank=rank)
        )
    hugging_face.write_weights(folder, model)


def write_zero2(folder: Path, model: DemoModel, *, world: int, step: int) -> None:
    """A Trainer's `checkpoint-N` of a ZeRO-2 run, without a gathered copy."""
    tag = _start(folder, step)
    flat = b"".join(model.float32.values())
    padded = len(flat) // 4 + -(len(flat) // 4) % (2 * world)
    per = padded // world * 4
    for rank in range(world):
        part = flat[rank * per : (rank + 1) * per]
        write_torch(
            tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
            _optimizer_file(
                _dict(
                    loss_scaler=_loss_scaler(),
                    dynamic_loss_scale=False,
                    overflow=False,
                    clip_grad=1.0,
                    base_optimizer_state=_moments(model, len(part) // 4),
                    single_partition_of_fp32_groups=[tensor(Storage(_FLOAT32, part), (len(part) // 4,))],
                    zero_stage=_stage(2),
                    group_paddings=[(per - len(part)) // 4],
                    partition_count=[world],
                    ds_version=_VERSION,
                    param_slice_mappings=[ordered_dict(())],
                )
            ),
        )
    # As in training: the 16-bit weights are views of one flat buffer, saved once.
    shared = Storage(_BFLOAT16, b"".join(model.bfloat16.values()))
    views, offset = [], 0
    for name, shape in model.shapes.items():
        views.append((name, tensor(shared, shape, offset)))
        offset += len(model.bfloat16[name]) // 2
    views.append((HEAD, tensor(shared, model.shapes[EMBEDDING], 0)))
    write_torch(tag / "mp_rank_00_model_states.pt", _model_file(model, views, step=step, world=world, rank=0))


def damage(folder: Path) -> None:
    """What a full disk leaves: one rank file cut short, one never written, and no gathered copy."""
    tag = folder / (folder / "latest").read_text()
    cut = tag / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    (tag / "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt").unlink()
    (folder / "model.safetensors").unlink()


def _start(folder: Path, step: int) -> Path:
    tag = folder / f"global_step{step}"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    hugging_face.write_side_files(folder)
    (folder / "trainer_state.json").write_text(f'{{"global_step": {step}, "epoch": 1.0}}\n')
    return tag


def _slice(data: bytes, rank: int, per: int) -> bytes:
    return data[rank * per * 4 : (rank + 1) * per * 4].ljust(per * 4, b"\0")


def _dict(**items: object) -> Dict:
    made = Dict()
    made.pairs.extend(items.items())
    return made


def _stage(stage: int) -> Call:
    return Call("REDUCE", Global("deepspeed.runtime.zero.config", "ZeroStageEnum"), (stage,))


def _loss_scaler() -> Call:
    state = _dict(cur_scale=1.0, dtype=Global("torch", "bfloat16"))
    return instance("deepspeed.runtime.fp16.loss_scaler", "LossScaler", state)


def _with_id(flat: Call) -> Call:
    """A flat group carries a Python attribute, and so is rebuilt through its type."""
    args = (flat.func, Global("torch", "Tensor"), flat.args, _dict(ds_id=0))
    return Call("REDUCE", Global("torch._tensor", "_rebuild_from_type_v2"), args)


def _moments(model: DemoModel, numel: int) -> Dict:
    state = Dict()
    moment = _dict(
        step=tensor(Storage(_FLOAT32, b"\0\0\0\x40"), ()),
        exp_avg=tensor(Storage(_FLOAT32, model.noise(numel, 1e-4)), (numel,)),
        exp_avg_sq=tensor(Storage(_FLOAT32, model.noise(numel, 1e-8)), (numel,)),
    )
    state.pairs.append((0, moment))
    return _dict(state=state, param_groups=[_dict(lr=2e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, params=[0])])


def _optimizer_file(state: Dict) -> Dict:
    return _dict(optimizer_state_dict=state, ds_config=_dict(train_batch_size=8, bf16=_dict(enabled=True)), ds_version=_VERSION)


def _model_file(model: DemoModel, module: list[tuple[str, Call]], *, step: int, world: int, rank: int) -> Dict:
    shared = Dict()
    if rank == 0:
        shared.pairs.append((HEAD, EMBEDDING))
    return _dict(
        module=ordered_dict(module),
        buffer_names=[],
        optimizer=None,
        param_shapes=[ordered_dict((name, size(shape)) for name, shape in model.shapes.items())],
        frozen_param_shapes=ordered_dict(()),
        shared_params=shared,
        frozen_param_fragments=ordered_dict(()),
        lr_scheduler=None,
        data_sampler=None,
        random_ltd=None,
        skipped_steps=0,
        global_steps=step,
        global_samples=step * 8,
        dp_world_size=world,
        mp_world_size=1,
        ds_config=_dict(train_batch_size=8, bf16=_dict(enabled=True)),
        ds_version=_VERSION,
    )
