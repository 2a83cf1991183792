"""An engine that reads nothing: checkpoints made up in memory, jobs that replay recorded events."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardyard_tui.facts import (
    ByteMap,
    Document,
    EngineError,
    Found,
    JobRequest,
    JobView,
    Listed,
    Listing,
    Opened,
    PieceFacts,
    Reading,
    Scanning,
    Stretch,
    TensorDetail,
)
from shardyard_tui.table import Facts, TableBuilder, TensorTable

ROOT = "/scratch/anna/runs"
NOW = 1_796_000_000.0
"""The moment at which everything happens."""
GIB = 1 << 30


def table(layers: int = 4, hidden: int = 2048, dtype: str = "float32") -> TensorTable:
    """A small Llama's names."""
    builder = TableBuilder()
    size = {"float32": 4, "bfloat16": 2}[dtype]

    def add(name: str, *shape: int, tied: str = "") -> None:
        nbytes = size
        for dim in shape:
            nbytes *= dim
        builder.add(name, Facts(dtype, shape, nbytes, "", ("rank_0.pt", "rank_1.pt")), tied)

    add("model.embed_tokens.weight", 32_000, hidden)
    add("lm_head.weight", 32_000, hidden, tied="model.embed_tokens.weight")
    add("model.norm.weight", hidden)
    for layer in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            add(f"model.layers.{layer}.self_attn.{part}.weight", hidden, hidden)
        for part in ("gate_proj", "up_proj", "down_proj"):
            add(f"model.layers.{layer}.mlp.{part}.weight", 5632, hidden)
        add(f"model.layers.{layer}.input_layernorm.weight", hidden)
    return builder.build()


def large_table(rows: int) -> TensorTable:
    """A mixture of experts with this many tensors, laid out directly: building it the usual way takes seconds."""
    facts = [Facts("bfloat16", (2048, 7168), 2048 * 7168 * 2, "", ("model-00001.safetensors",))]
    texts = [("model.layers.", ".mlp.experts.", f".{part}_proj.weight") for part in ("down", "gate", "up")]
    table = TensorTable(texts, facts)
    table.pattern.extend(number % 3 for number in range(rows))
    table.fact.extend(0 for _ in range(rows))
    table.start.extend(number * 2 for number in range(rows))
    for number in range(rows):
        table.numbers.append(number // 6144)
        table.numbers.append(number // 3 % 2048)
    return table


def finding(code: str, severity: str, message: str, **more: Any) -> Document:
    """A finding in the contract's shape."""
    return {
        "code": code, "severity": severity, "certainty": "sure", "message": message, "paths": [], "tensors": [], "bytes": 0,
        "remedy": "", **more,
    }  # fmt: skip


def report(kind: str, verdict: str, **more: Any) -> dict[str, Any]:
    """A checkpoint of `inspect --json`."""
    return {
        "path": ".", "kind": kind, "title": kind, "verdict": verdict, "complete": True, "mergeable": True, "world_size": None,
        "step": None, "tags": None, "tag": None, "tensors": 35, "parameters": 1_100_048_384,
        "bytes": {"files": 0, "weights": 0, "masters": 0, "optimizer": 0, "other": 0, "wasted": 0},
        "dtypes": {"float32": 35}, "tied": [], "files": [], "findings": [], "checked": ["headers", "shapes", "ties"],
        "not_checked": ["crc", "values"], **more,
    }  # fmt: skip


def checkpoints() -> dict[str, Opened | EngineError]:
    """A tree with everything that the screens must show."""
    tied = [["model.embed_tokens.weight", "lm_head.weight"]]
    zero3 = report(
        "deepspeed-zero3",
        "The whole model in fp32 masters, split over 8 ranks; the optimizer is here too. m merges the weights.",
        world_size=8, step=200, tags=["global_step100", "global_step200"], tag="global_step200", tied=tied,
        bytes={"files": 13 * GIB, "weights": 0, "masters": 4 * GIB, "optimizer": 9 * GIB, "other": 12_000, "wasted": 0},
        files=[
            {"path": f"global_step200/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt", "bytes": 13 * GIB // 8,
             "role": "masters+optimizer"} for r in range(8)
        ] + [{"path": "zero_to_fp32.py", "bytes": 33_000, "role": "other"}],
        findings=[finding("tie-missing", "info", "lm_head.weight is model.embed_tokens.weight, by config.json.",
                          tensors=["lm_head.weight"])],
        checked=["headers", "ranks", "shapes", "ties"],
    )  # fmt: skip
    broken = report(
        "fsdp-ranks",
        "Not whole: rank 3 of 8 is missing, so every tensor would lack an eighth of its rows.",
        complete=False, mergeable=False, world_size=8,
        bytes={"files": 3 * GIB, "weights": 3 * GIB, "masters": 0, "optimizer": 0, "other": 0, "wasted": 0},
        files=[{"path": f"model_world_size_8_rank_{r}.pt", "bytes": 3 * GIB // 7, "role": "weights"} for r in range(8) if r != 3],
        findings=[
            finding("missing-rank", "error", "Rank 3 of 8 is missing: there is no model_world_size_8_rank_3.pt.",
                    paths=["model_world_size_8_rank_3.pt"],
                    remedy="Look on the local disk of the node that ran rank 3, or use an earlier step."),
            finding("truncated", "error", "model_world_size_8_rank_5.pt is cut short by 41 MiB.",
                    paths=["model_world_size_8_rank_5.pt"], bytes=41 << 20, remedy="Copy it again from where it was written."),
            finding("bloat", "warning", "value_head.weight stores five times the bytes it uses.", tensors=["value_head.weight"],
                    bytes=41 << 20, remedy="x shrinks the file."),
        ],
        checked=["headers", "ranks"],
    )  # fmt: skip
    bloated = report(
        "torch-sharded",
        "The whole model in bfloat16, with 2.0 GiB stored that no tensor uses; x gives them back.",
        bytes={"files": 4 * GIB, "weights": 2 * GIB, "masters": 0, "optimizer": 0, "other": 900, "wasted": 2 * GIB},
        dtypes={"bfloat16": 35},
        files=[{"path": f"pytorch_model-0000{n}-of-00002.bin", "bytes": 2 * GIB, "role": "weights"} for n in (1, 2)]
        + [{"path": "pytorch_model.bin.index.json", "bytes": 3_000, "role": "index"}, {"path": "config.json", "bytes": 700,
           "role": "config"}],
        findings=[finding("bloat", "warning", "2.0 GiB of 4.0 GiB are stored and never used.", bytes=2 * GIB,
                          remedy="x drops them; ties stay ties.", paths=["pytorch_model-00001-of-00002.bin"])],
    )  # fmt: skip
    model = report(
        "safetensors-sharded", "The whole model in bfloat16, ready to load. Nothing needs doing.", tied=tied,
        bytes={"files": 2 * GIB, "weights": 2 * GIB, "masters": 0, "optimizer": 0, "other": 4_000, "wasted": 0},
        dtypes={"bfloat16": 35},
        files=[{"path": f"model-0000{n}-of-00002.safetensors", "bytes": GIB, "role": "weights"} for n in (1, 2)]
        + [{"path": "model.safetensors.index.json", "bytes": 3_000, "role": "index"}],
    )  # fmt: skip
    return {
        f"{ROOT}/llama-sft/checkpoint-200": _opened(f"{ROOT}/llama-sft/checkpoint-200", zero3, table()),
        f"{ROOT}/llama-sft/hf": _opened(f"{ROOT}/llama-sft/hf", model, table(dtype="bfloat16")),
        f"{ROOT}/qwen-ppo/actor": _opened(f"{ROOT}/qwen-ppo/actor", broken, table()),
        f"{ROOT}/qwen-ppo/bloated": _opened(f"{ROOT}/qwen-ppo/bloated", bloated, table(dtype="bfloat16")),
        f"{ROOT}/old.ckpt": EngineError("old.ckpt ends 512 bytes too early; copy it again from where it was written."),
    }


def _opened(path: str, facts: dict[str, Any], rows: TensorTable) -> Opened:
    return Opened(path, facts, rows, NOW - 7200, "anna", (("lr_scheduler", "{'last_epoch': 200}"),))


def plan(request: JobRequest) -> dict[str, Any]:
    """A plan in the shape that `--dry-run` prints."""
    dtype = request.options.get("dtype") or "keep"
    written = 2 * GIB if dtype in ("bfloat16", "float16") else 4 * GIB
    return {
        "schema": 1, "sources": list(request.sources), "kind": "deepspeed-zero3", "tag": "global_step200", "part": "model",
        "out": request.out, "format": "safetensors",
        "files": [{"name": "model.safetensors", "bytes": written, "tensors": 34}, {"name": ".shardyard.json", "bytes": 900,
                  "tensors": 0}],
        "tensors": 34, "parameters": 1_100_048_384, "dtypes": {"float32" if dtype == "keep" else dtype: 34},
        "casts": [] if dtype == "keep" else [{"from": "float32", "to": dtype, "tensors": 34}],
        "bytes_read": 4 * GIB, "bytes_written": written, "bytes_spooled": 0, "memory": 61 << 20,
        "disk": {"needed": written, "free": 1900 * GIB, "path": ROOT}, "workers": 2, "units": 64,
        "tied": {"lm_head.weight": "model.embed_tokens.weight"}, "renamed": {}, "without_prefix": [], "complete": True,
        "missing": [], "frozen_left_out": 0, "from_elsewhere": [], "findings": [], "verify": "sample", "hash": "9f31",
        "limits": {"memory": 8 * GIB},
    }  # fmt: skip


def relation(name: str, how: str, **more: Any) -> Document:
    """A row of a comparison."""
    both = {"dtype_a": "float32", "dtype_b": "bfloat16", "shape_a": [4, 4], "shape_b": [4, 4], "nan_a": 0, "nan_b": 0}
    return {"name": name, "relation": how, "max_abs": 0.0, "mean_abs": 0.0, "max_rel": 0.0, "differing": 0, **both, **more}


class FakeEngine:
    """See the module. `replay` steps a started job through its recorded events, one step a look."""

    def __init__(self, found: Mapping[str, Opened | EngineError] | None = None, *, files: int = 3) -> None:
        self.found: dict[str, Opened | EngineError] = dict(checkpoints() if found is None else found)
        self.files = files
        self.started: list[JobRequest] = []
        self.asked: list[str] = []
        self.views: list[JobView] = []
        self.recorded: dict[str, list[Document]] = {}
        self.compared: dict[str, list[Document]] = {}
        """Rows of compare jobs."""
        self.refuses: EngineError | None = None
        """What a plan answers instead of a plan."""
        self.hold: asyncio.Event | None = None
        """A search waits for it after its first checkpoint."""
        self.unread: dict[str, str] = {}
        """Folders that a search cannot look at, and why."""
        self.closed = False
        self.slurm = False
        self.stamps: dict[str, float] = {}

    async def scan(self, folder: str) -> AsyncIterator[Found | Scanning]:
        self.asked.append(f"scan {folder}")
        for path, problem in self.unread.items():
            if path.startswith(folder):
                yield Scanning(1, path, problem, path)
        for number, (path, opened) in enumerate(self.found.items()):
            if not path.startswith(folder):
                continue
            yield Scanning(number + 1, os.path.dirname(path))
            if isinstance(opened, Opened):
                yield Found(path, str(opened.report["kind"]), opened.nbytes, 3, "." not in os.path.basename(path), opened.stamp)
            else:
                yield Found(path, "torch", 700 << 20, 1, False, NOW - 90_000)
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(0)

    async def listing(self, folder: str) -> Listing:
        self.asked.append(f"listing {folder}")
        opened = self.found.get(folder)
        if isinstance(opened, Opened):
            names = [(str(f["path"]), int(f["bytes"])) for f in opened.report["files"] if "/" not in f["path"]]
        else:
            names = [(f"notes-{n}.txt", 100 * n) for n in range(self.files)]
        return Listing(folder, tuple(Listed(n, f"{folder}/{n}", False, size, NOW - 3600) for n, size in names))

    async def open(
        self, path: str, *, tag: str | None = None, progress: Callable[[Reading], None] | None = None, lane: str = "look"
    ) -> Opened:
        self.asked.append(f"open {path}")
        await asyncio.sleep(0)
        opened = self.found.get(path) or EngineError(f"There is no {path}.")
        if isinstance(opened, EngineError):
            raise opened
        return opened

    async def tensor(self, path: str, name: str) -> TensorDetail:
        pieces = tuple(PieceFacts(f"rank_{r}.pt", "archive/data/3", 0, 2 << 20, r * (2 << 20)) for r in range(8))
        return TensorDetail(name, pieces)

    async def statistics(self, path: str, name: str, *, progress: Callable[[Reading], None] | None = None) -> Document:
        self.asked.append(f"statistics {name}")
        counts = [round(4000 * 2.718 ** (-(((n - 32) / 9) ** 2))) for n in range(64)]
        return {
            "name": name, "numel": 4_194_304, "min": -0.8711, "max": 0.9023, "mean": 1.2e-05, "std": 0.0241, "norm": 49.36,
            "zeros": 12, "nan": 0, "inf": 0, "denormals": 0, "first": [0.01, -0.02, 0.03], "sha256": "3f9c81d2" * 8,
            "quantiles": {"0.01": -0.0563, "0.25": -0.0161, "0.5": 0.0, "0.75": 0.0161, "0.99": 0.0562},
            "histogram": {"linear": {"from": -0.8711, "to": 0.9023, "counts": counts}},
        }  # fmt: skip

    async def byte_map(self, path: str, file: str) -> ByteMap:
        weights = [Stretch(1000 + n * 100_000, 100_000, "weight", f"model.layers.{n}.mlp.up_proj.weight") for n in range(6)]
        stretches = (Stretch(0, 1000, "header", ""), *weights, Stretch(601_000, 300_000, "unused", ""),
                     Stretch(901_000, 4_000, "directory", ""))  # fmt: skip
        return ByteMap(file, 905_000, stretches)

    async def stamp(self, path: str) -> float:
        opened = self.found.get(path)
        return self.stamps.get(path, opened.stamp if isinstance(opened, Opened) else 0.0)

    async def plan(self, request: JobRequest) -> Document:
        self.asked.append(f"plan {request.verb} {request.options.get('dtype')}")
        await asyncio.sleep(0)
        if self.refuses is not None:
            raise self.refuses
        return plan(request)

    async def default_out(self, source: str, verb: str, started_in: str) -> str:
        return source + {"merge": "-merged", "export": "-exported", "shrink": "-small"}[verb]

    async def doctor(self) -> Document:
        terminal = {"term": "xterm-256color", "size": [200, 50]}
        return {"shardyard": "0.1.0", "python": "3.11.7", "terminal": terminal, "limits": {"available": 14 * GIB}}

    # Jobs

    async def has_slurm(self) -> bool:
        return self.slurm

    async def jobs(self) -> list[JobView]:
        return list(self.views)

    async def events(self, job: str, offset: Mapping[str, int]) -> tuple[list[Document], Mapping[str, int]]:
        every = self.recorded.get(job, [])
        start = offset.get("events.jsonl", 0)
        return every[start:], {"events.jsonl": len(every)}

    async def rows(self, job: str, offset: int) -> tuple[list[Document], int]:
        every = self.compared.get(job, [])
        return every[offset:], len(every)

    async def start(self, request: JobRequest) -> str:
        if self.refuses is not None:
            raise self.refuses
        self.started.append(request)
        number = f"20261130-18240{len(self.started)}-000"
        name = f"{request.verb} {os.path.basename(request.sources[0])}" + (
            f" -> {os.path.basename(request.out)}" if request.out else ""
        )
        view = JobView(number, request.verb, name, "running", request.sources, request.out or "", request.options, NOW)
        self.views.insert(0, view)
        writes = request.verb in ("merge", "export", "shrink")
        self.recorded[number] = [{"event": "plan", "time": NOW, **plan(request)}] if writes else []
        return number

    async def cancel(self, job: str) -> None:
        self.asked.append(f"cancel {job}")
        self.change(job, cancelling=True)

    async def resume(self, job: str) -> None:
        self.asked.append(f"resume {job}")
        self.change(job, state="running", cancelling=False, outcome=None)

    async def clean(self) -> int:
        gone = [v for v in self.views if v.state in ("done", "cancelled")]
        self.views = [v for v in self.views if v not in gone]
        return len(gone)

    async def close(self) -> None:
        self.closed = True

    def begin_endless_job(self) -> None:
        """A job that is a little further at every look."""
        source = f"{ROOT}/llama-sft/checkpoint-200"
        job = JobView(
            "20261130-182400-000", "merge", "merge checkpoint-200 -> hf", "running", (source,), f"{ROOT}/hf", created=NOW
        )
        self.views.insert(0, job)
        self.recorded[job.id] = [{"event": "plan", "time": NOW, **plan(JobRequest("merge", (source,), f"{ROOT}/hf"))}]

        async def jobs() -> list[JobView]:
            step = len(self.recorded[job.id])
            done = step * (8 << 20)
            memory = {"anon": (40 << 20) + step % 7 * (1 << 20), "working_set": 1 << 30, "limit": 8 * GIB, "available": 7 * GIB}
            event = {
                "event": "progress", "time": NOW + step / 2, "done": done, "total": 4 * GIB, "read": done, "written": done,
                "item": f"model.layers.{step}.mlp.up_proj.weight", "rate": 16e6 + step % 5 * 1e6, "eta": 60.0, "memory": memory,
                "disk": {"free": 1900 * GIB},
            }  # fmt: skip
            self.replay(job.id, [event])
            return list(self.views)

        self.jobs = jobs  # type: ignore[method-assign]

    # What tests do to jobs

    def change(self, job: str, **changes: Any) -> None:
        """Change what is known of a job."""
        self.views = [replace(v, **changes) if v.id == job else v for v in self.views]

    def replay(self, job: str, events: list[Document]) -> None:
        """Add events to a job, as its worker would."""
        self.recorded.setdefault(job, []).extend(events)
        for event in events:
            if event["event"] == "progress":
                self.change(job, progress=event)
            elif event["event"] == "result":
                self.change(job, state="done", ended=float(event["time"]), outcome={"state": "done", **event})
            elif event["event"] == "error":
                self.change(job, state="failed", ended=float(event["time"]), outcome={"state": "failed", **event})


def recording(name: str) -> list[Document]:
    """Events recorded from a real job."""
    text = (Path(__file__).parent / "recordings" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
