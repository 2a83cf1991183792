"""Start a worker script on two gloo ranks of this machine, and end it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).parent


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def leave() -> NoReturn:
    """End a rank that is done. Threads of the libraries may still run, and an interpreter that takes itself apart then aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_ranks(script: str, *args: str, world: int = 2, timeout_s: float = 240) -> None:
    """Run `script` of this folder on `world` ranks; a failure shows what the ranks printed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # With LOCAL_SIZE set, DeepSpeed leaves a large file in shared memory for each rank.
    environment.pop("LOCAL_SIZE", None)
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", f"--master-port={free_port()}",
        str(HERE / script), *args,
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{script} {' '.join(args)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
