"""The plots of the CISPO claim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from training.experiments.one_choice import Run

COLOURS = {
    "ppo_clip": "#8c564b", "dapo": "#e377c2", "gspo": "#7f7f7f", "m1_mask": "#bcbd22",
    "cispo": "#d62728", "dispo": "#ff7f0e", "unclipped": "#1f77b4", "reinforce": "#2ca02c",
}  # fmt: skip

# Losses that coincide where no clip acts are drawn in dashes above the one they hide: (where to begin, (on, off)).
DASHES = {"m1_mask": (0, (4, 3)), "dispo": (0, (3, 6)), "unclipped": (4.5, (3, 6))}


def _style(name: str) -> dict[str, Any]:
    return {"color": COLOURS[name], "label": name, "ls": DASHES.get(name, "-"), "lw": 2.0}


def _figure(columns: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.2 * columns, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def plot_rare(runs: Mapping[tuple[float, float, str], Run], path: Path) -> None:
    """Token 0's probability over batches (median and range of seeds), and its gradient share within one batch."""
    pairs = list(dict.fromkeys((start, rate) for start, rate, _ in runs))
    chosen = [p for p in pairs if p in ((1e-2, 0.1), (1e-3, 0.1))] or pairs[:2]
    figure, axes = _figure(len(chosen) + 1)
    for axis, (start, rate) in zip(axes, chosen, strict=False):
        for name, colour in COLOURS.items():
            probability_SB = runs[start, rate, name].probability_SB[:, :60]
            batches = np.arange(1, probability_SB.shape[1] + 1)
            axis.plot(batches, np.median(probability_SB, 0), **_style(name))
            axis.fill_between(batches, probability_SB.min(0), probability_SB.max(0), color=colour, alpha=0.12, lw=0)
        axis.set(title=f"rare token at {start:g}, rate {rate:g}", xlabel="batch", ylabel="P(wait)")
    for name in COLOURS:
        share_SU = runs[*chosen[-1], name].gradient_share_SU
        axes[-1].plot(np.arange(1, share_SU.shape[1] + 1), np.nanmean(share_SU, 0), **_style(name))
    axes[-1].set(title=f"its gradient share, start {chosen[-1][0]:g}", xlabel="update on the same batch", ylim=(0, 1))
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=130)


def plot_noisy(runs: Mapping[tuple[int, float, str], Run], path: Path) -> None:
    """Where the best token ends under noisy rewards, each seed a dot, by learning rate."""
    keys = sorted({(staleness, rate) for staleness, rate, _ in runs})
    figure, axes = _figure(len(keys))
    for axis, (staleness, rate) in zip(axes, keys, strict=True):
        for place, (name, colour) in enumerate(COLOURS.items()):
            final_S = runs[staleness, rate, name].probability_SB[:, -1]
            axis.plot(np.full(len(final_S), place), final_S, "o", color=colour, alpha=0.5, ms=4)
            axis.plot([place - 0.3, place + 0.3], [final_S.mean()] * 2, color=colour)
        axis.set(title=f"{staleness} batches late, rate {rate:g}", ylim=(-0.03, 1.03), ylabel="P(best) at the end")
        axis.set_xticks(range(len(COLOURS)), list(COLOURS), rotation=60, fontsize=7)
    figure.savefig(path, dpi=130)
