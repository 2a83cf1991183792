"""`python -m tests.bench.plots`: the kept results as pictures for the README, in `screenshots/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.bench import RESULTS

PICTURES = Path(__file__).parents[2] / "screenshots"
AGAINST = {"zero3": "zero_to_fp32", "dcp-rows": "accelerate merge-weights", "dcp-rows-torch": "dcp_to_torch_save"}


def draw(results: dict[str, Any], folder: Path = PICTURES) -> None:
    """Draw what the results hold: time beside the peers, and memory and time against size."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures must give the same bytes: nothing random, no date.
    mpl.rcParams.update({"svg.hashsalt": "shardyard", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    panels, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    _peers(axes[0], results["works"])
    _against_size(axes[1], results["curves"]["size_gb"], 2, "peak memory, MiB")
    _against_size(axes[2], results["curves"]["size_gb"], 1, "seconds")
    panels.savefig(folder / "measured.svg", metadata={"Date": None})
    plt.close(panels)


def _peers(axis: Any, works: list[dict[str, Any]]) -> None:
    rows = [work for work in works if work["name"] in AGAINST and work["faster_than_peer"]]
    names = [f"{AGAINST[row['name']]}\n{row['peer_mib'] / row['peak_mib']:.0f} x the memory" for row in rows]
    bars = axis.barh(names, [row["faster_than_peer"] for row in rows], color="#4477aa")
    axis.bar_label(bars, fmt="%.1f x", padding=2)
    axis.margins(x=0.25)
    axis.invert_yaxis()
    axis.set_xlabel("times the time of shardyard merge")


def _against_size(axis: Any, points: list[list[float]], column: int, label: str) -> None:
    axis.plot([p[0] for p in points], [p[column] for p in points], marker="o", color="#4477aa")
    axis.set_ylim(bottom=0)
    axis.set_ylim(top=axis.get_ylim()[1] * 1.3)
    axis.set_xlabel("size of the model, GB")
    axis.set_ylabel(label)


if __name__ == "__main__":
    draw(json.loads(RESULTS.read_text()))
