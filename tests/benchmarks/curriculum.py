"""Strategies compared on the frozen simulator, equal rollouts, probes counted; calibration; scale; real logs.

    python tests/benchmarks/curriculum.py play [--seeds 20] [--mode std] [--law own] [--jobs 1]
    python tests/benchmarks/curriculum.py play --again posterior   # after a change of this strategy alone
    python tests/benchmarks/curriculum.py table            # from the raw results; also draws the plot
    python tests/benchmarks/curriculum.py scale            # 100,000 tasks: time and memory
    python tests/benchmarks/curriculum.py replay HOME ...  # every run of these homes; see curriculum_replay.py

`play` goes seed by seed and adds to `results/curriculum_raw.json`; what is there already is not played again, so it
can be stopped and started. Arms other than the oracle see no truth. A play ends at the target (held-out mean pass
rate 80%, and 90% for the pool that starts at 75%) or at twice uniform's rollouts ('censored': at least that many).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from tasks.stage import code_version
from training.curriculum.arena import Log, MakeStrategy, play
from training.curriculum.base import Evidence
from training.curriculum.ledger import Columns, State, TaskIndex
from training.curriculum.oracle import Oracle
from training.curriculum.prior import Learned
from training.curriculum.simulator import SHAPES, make_world
from training.curriculum.strategies import build

RESULTS = Path(__file__).parent / "results"
RAW = RESULTS / "curriculum_raw.json"
LAWS, MODES = ("own", "kin", "ladder"), ("std", "mean")
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {}),
    "dynamic_sampling": ("dynamic_sampling", {}),
    "literal, every step": ("seventy_five", {"every": 1}),
    "literal, every 10": ("seventy_five", {"every": 10}),
    "pools": ("pools", {}),
    "greso": ("greso", {}),
    "mopps": ("mopps", {}),
    "posterior": ("posterior", {}),
    "posterior, groups of 8": ("posterior", {"large_group": 8}),
    "oracle": ("oracle", {}),
}
PRACTICAL = ("uniform", "dynamic_sampling", "literal, every step", "literal, every 10", "pools", "greso", "mopps")
GROUPS_PER_STEP, MOST_UNIFORM, NUM_BINS = 32, 250_000, 10


def target_of(shape: str) -> float:
    """The held-out mean pass rate to reach."""
    return 0.9 if shape == "easy" else 0.8


def maker(arm: str, mode: str) -> MakeStrategy:
    """How the arena builds an arm's strategy."""
    name, settings = ARMS[arm]
    if name == "oracle":
        return lambda truth: Oracle(advantage=mode, truth=truth)
    return lambda truth: build(name, advantage=mode, settings=settings)


def rollouts_to(log: Log, target: float) -> float:
    """Rollouts spent when the held-out mean crossed the target, interpolated within the last step."""
    if len(log.rollouts) < 2 or log.held_out[-1] < target:
        return float(log.rollouts[-1])
    (r0, r1), (h0, h1) = log.rollouts[-2:], log.held_out[-2:]
    return r0 + (r1 - r0) * (target - h0) / (h1 - h0) if h1 > h0 else float(r1)


def measure(log: Log, target: float) -> dict[str, Any]:
    """What is kept of one play: small enough for thousands."""
    expected, seen = np.array(log.expected), np.array(log.mixed, dtype=float)
    place = np.minimum((expected * NUM_BINS).astype(int), NUM_BINS - 1)
    forgotten = (log.best_rate >= 0.75) & (log.final_rate < 0.5)
    return {
        "rollouts": round(rollouts_to(log, target)),
        "censored": log.held_out[-1] < target,
        "useful": round(sum(log.useful) / max(sum(log.trained), 1), 4),
        "probes": round(sum(log.probes) / log.rollouts[-1], 4),
        "spearman": round(float(np.mean(log.spearman)), 3) if log.spearman else None,
        "brier": round(float(((expected - seen) ** 2).mean()), 4),
        "forgotten": int(forgotten.sum()),
        "bins": [
            [int((place == b).sum()), round(float(expected[place == b].sum()), 2), int(seen[place == b].sum())]
            for b in range(NUM_BINS)
        ],
    }


def play_arm(law: str, mode: str, shape: str, seed: int, arm: str, most: int) -> dict[str, Any]:
    """One arm on one world, to the target or to `most` rollouts."""
    world, target = make_world(shape, law, mode, seed), target_of(shape)  # type: ignore[arg-type]
    log = play(maker(arm, mode), world, groups_per_step=GROUPS_PER_STEP, max_rollouts=most, seed=seed, until=target)
    return measure(log, target)


def play_seed(law: str, mode: str, shape: str, seed: int) -> dict[str, dict[str, Any]]:
    """All arms on one world; uniform first, its rollouts bound the others."""
    out = {"uniform": play_arm(law, mode, shape, seed, "uniform", MOST_UNIFORM)}
    for arm in ARMS:
        if arm != "uniform":
            out[arm] = play_arm(law, mode, shape, seed, arm, 2 * out["uniform"]["rollouts"])
    return out


def play_again(arms: list[str]) -> None:
    """Play some arms anew wherever there are results: their strategy has changed, the others' has not."""
    data = load()
    for key in sorted(data, key=lambda k: int(k.rsplit("/", 1)[1])):
        law, mode, shape, seed = key.split("/")
        for arm in arms:
            data[key][arm] = play_arm(law, mode, shape, int(seed), arm, 2 * data[key]["uniform"]["rollouts"])
        save(data)
        print(f"{key}: {', '.join(arms)} played again", flush=True)


def load() -> dict[str, dict[str, Any]]:
    """Raw results by 'law/mode/shape/seed'."""
    data: dict[str, dict[str, Any]] = json.loads(RAW.read_text()) if RAW.exists() else {}
    return data


def save(data: dict[str, dict[str, Any]]) -> None:
    """One line a play, so that a difference can be read."""
    RESULTS.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(data[k], separators=(',', ':'))}" for k in sorted(data))
    RAW.write_text("{\n" + lines + "\n}\n")


def run_plays(seeds: int, laws: tuple[str, ...], modes: tuple[str, ...], jobs: int) -> None:
    """Play what is missing, saving after each."""
    data = load()
    todo = [
        (law, mode, shape, seed)
        for seed in range(seeds)
        for mode in modes
        for law in laws
        for shape in SHAPES
        if f"{law}/{mode}/{shape}/{seed}" not in data
    ]
    with ProcessPoolExecutor(jobs) as pool:
        futures = {pool.submit(play_seed, *cell): cell for cell in todo}
        for done in as_completed(futures):
            key = "/".join(map(str, futures[done]))
            data[key] = done.result()
            save(data)
            print(f"{len(data)} plays, newest {key}", flush=True)


def interval(ratios: np.ndarray[Any, Any], rng: np.random.Generator) -> tuple[float, float, float]:
    """Geometric mean of ratios over seeds and its 95% bootstrap interval."""
    logs = np.log(ratios)
    means = logs[rng.integers(0, len(logs), (4000, len(logs)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def cells(data: dict[str, dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Plays of one (law, mode, shape), by seed."""
    out: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for key in sorted(data, key=lambda k: (k.rsplit("/", 1)[0], int(k.rsplit("/", 1)[1]))):
        law, mode, shape, _ = key.split("/")
        out.setdefault((law, mode, shape), []).append(data[key])
    return out


def column(plays: list[dict[str, Any]], arm: str, field: str) -> np.ndarray[Any, Any]:
    """One number a seed."""
    return np.array([p[arm][field] for p in plays if p[arm][field] is not None], dtype=float)


def table() -> str:
    """Everything the issue asks for, as Markdown."""
    data, rng = load(), np.random.default_rng(0)
    text = [
        "Rollouts to the target as a share of uniform's (geometric mean over seeds, 95% bootstrap interval); probes",
        "and discarded groups are counted; `>` marks arms of which a play was stopped at twice uniform's rollouts.",
    ]
    for mode in MODES:
        rows = {k: v for k, v in cells(data).items() if k[1] == mode}
        if rows:
            text += ["", f"### Advantages: {mode} ({min(map(len, rows.values()))} seeds or more)", ""]
            text += [*_shape_rows(rows), "", *_ratio_rows(rows, rng), "", *_aim_rows(rows, rng), "", *_other_rows(rows)]
    return "\n".join(text) + "\n"


def _shape_rows(rows: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[str]:
    """Geometric means over all plays of a shape, whatever the law."""
    plays = {shape: [p for k, v in rows.items() if k[2] == shape for p in v] for shape in SHAPES}
    head = " | ".join(f"{shape}, {len(v)} plays" for shape, v in plays.items())
    out = [f"| all laws | {head} |", "|---|" + "---|" * len(plays)]
    for arm in ARMS:
        line = []
        for v in plays.values():
            ratio = column(v, arm, "rollouts") / column(v, "uniform", "rollouts")
            mark = ">" if column(v, arm, "censored").any() else ""
            line.append(f"{mark}{np.exp(np.log(ratio).mean()):.2f}")
        out.append(f"| {arm} | " + " | ".join(line) + " |")
    return out


def _ratio_rows(rows: dict[tuple[str, str, str], list[dict[str, Any]]], rng: np.random.Generator) -> list[str]:
    out = ["| arm | " + " | ".join(f"{law} {shape}" for law, _, shape in rows) + " |", "|---|" + "---|" * len(rows)]
    for arm in ARMS:
        line = []
        for plays in rows.values():
            ratio = column(plays, arm, "rollouts") / column(plays, "uniform", "rollouts")
            mid, low, high = interval(ratio, rng)
            mark = ">" if column(plays, arm, "censored").any() else ""
            line.append(f"{mark}{mid:.2f} [{low:.2f}, {high:.2f}]")
        out.append(f"| {arm} | " + " | ".join(line) + " |")
    return out


def _aim_rows(rows: dict[tuple[str, str, str], list[dict[str, Any]]], rng: np.random.Generator) -> list[str]:
    """The two aims: the share of the oracle's saving, and the worst practical baseline's ratio."""
    out = ["| pool | of the oracle's saving | best baseline | its rollouts / posterior's |", "|---|---|---|---|"]
    for (law, _, shape), plays in rows.items():
        spent = {arm: column(plays, arm, "rollouts") for arm in ARMS}
        share = np.array(
            [
                (1 - (spent["posterior"] / spent["uniform"])[i].mean())
                / (1 - (spent["oracle"] / spent["uniform"])[i].mean())
                for i in rng.integers(0, len(plays), (4000, len(plays)))
            ]
        )
        whole = (1 - (spent["posterior"] / spent["uniform"]).mean()) / (1 - (spent["oracle"] / spent["uniform"]).mean())
        ratios = {arm: interval(spent[arm] / spent["posterior"], rng) for arm in PRACTICAL}
        best = min(ratios, key=lambda arm: ratios[arm][1])
        low, high = np.quantile(share, [0.025, 0.975])
        mid, r_low, r_high = ratios[best]
        out.append(
            f"| {law} {shape} | {whole:.2f} [{low:.2f}, {high:.2f}] | {best} | {mid:.2f} [{r_low:.2f}, {r_high:.2f}] |"
        )
    return out


def _other_rows(rows: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[str]:
    out = [
        "| arm | useful groups | probe rollouts | Spearman | Brier | reliability gap | bias | forgotten tasks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        plays = [p for group in rows.values() for p in group]
        bins = np.array([p[arm]["bins"] for p in plays], dtype=float).sum(0)
        count, expected, seen = bins.T
        gap = np.abs(expected - seen).sum() / count.sum()
        bias = (expected.sum() - seen.sum()) / count.sum()
        mean = {f: column(plays, arm, f).mean() for f in ("useful", "probes", "spearman", "brier", "forgotten")}
        out.append(
            f"| {arm} | {mean['useful']:.2f} | {mean['probes']:.2f} | {mean['spearman']:.2f} | {mean['brier']:.3f} | "
            f"{gap:.3f} | {bias:+.3f} | {mean['forgotten']:.1f} |"
        )
    return out


def plot(path: Path) -> None:
    """Bars with intervals, a panel a pool shape, averaged over the laws; one row of panels an advantage mode."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    data, rng = cells(load()), np.random.default_rng(0)
    modes = [m for m in MODES if any(k[1] == m for k in data)]
    figure, axes = plt.subplots(
        len(modes), len(SHAPES), figsize=(14, 3.4 * len(modes)), sharex=True, sharey=True, squeeze=False
    )
    arms = [a for a in ARMS if a != "uniform"]
    for i, mode in enumerate(modes):
        for j, shape in enumerate(SHAPES):
            plays = [p for k, v in data.items() if k[1] == mode and k[2] == shape for p in v]
            stats = [interval(column(plays, a, "rollouts") / column(plays, "uniform", "rollouts"), rng) for a in arms]
            mid, low, high = np.array(stats).T
            colour = [
                "#c0392b" if m > 1 else "#27748a" if "posterior" in a else "#9aa5ab"
                for a, m in zip(arms, mid, strict=True)
            ]
            axes[i, j].barh(arms, mid, xerr=[mid - low, high - mid], color=colour, height=0.7)
            axes[i, j].axvline(1.0, color="black", linewidth=0.8)
            axes[i, j].set_title(f"{shape}, Beta{SHAPES[shape]}, {mode}", fontsize=9)
            axes[i, j].invert_yaxis() if i == j == 0 else None
    figure.supxlabel("rollouts to the target, as a share of uniform's (2 is the cut)")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def scale(num_tasks: int = 100_000) -> dict[str, Any]:
    """Select and fold at scale: a quarter of the tasks visited, then 20 ordinary steps; wall time and memory.

    Memory is the peak above the imports, the first visit's evidence included.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = [f"task-{i:06d}" for i in range(num_tasks)]
    index = TaskIndex.of(
        ids,
        [f"{i:064x}" for i in range(num_tasks)],
        [[f"kin-{i % 200}", f"horizon>={i % 7}"] for i in range(num_tasks)],
    )
    strategy, rng = build("posterior"), np.random.default_rng(0)
    learned = Learned.nothing(len(index.kinship.names))
    state = State(strategy="posterior", tasks=index, columns=Columns.empty(num_tasks), learned=learned)
    rate = rng.beta(0.5, 0.5, num_tasks)
    times = []
    for version in range(22):
        start = time.perf_counter()
        chosen = strategy.select(state, num_tasks // 4 if version == 0 else 32, policy_version=version, seed=0)
        selected = time.perf_counter() - start
        evidence = [
            Evidence(
                rollout_id=f"{version}.{g}.{j}",
                group_id=f"{version}.{g}",
                task_id=d.task_id,
                task_digest=d.task_digest,
                policy_version=version,
                passed=bool(rng.random() < rate[index.rows[d.task_id]]),
                reward=0.0,
            )
            for g, d in enumerate(chosen.decisions)
            for j in range(d.group_size)
        ]
        start = time.perf_counter()
        state = strategy.fold(state, evidence)
        times.append((selected, time.perf_counter() - start))
    both = np.array(times[2:]).sum(1) * 1e3
    selected, folded = np.array(times[2:]).min(0) * 1e3
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "num_tasks": num_tasks,
        "select_ms": round(float(selected), 1),
        "fold_ms": round(float(folded), 1),
        "both_ms": {"least": round(float(both.min()), 1), "median": round(float(np.median(both)), 1)},
        "memory_mib": round(used),
        "cores": os.cpu_count(),
        "code": code_version(),
    }


def main() -> None:
    """Parse and dispatch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    playing = sub.add_parser("play")
    playing.add_argument("--seeds", type=int, default=20)
    playing.add_argument("--law", choices=LAWS)
    playing.add_argument("--mode", choices=MODES)
    playing.add_argument("--jobs", type=int, default=1)
    playing.add_argument("--again", nargs="+", choices=ARMS, help="only these, wherever there are results")
    sub.add_parser("table")
    sub.add_parser("scale")
    logs = sub.add_parser("replay")
    logs.add_argument("homes", type=Path, nargs="+")
    logs.add_argument("--out", type=Path, default=RESULTS / "curriculum_replay.json")
    args = parser.parse_args()
    if args.command == "play" and args.again:
        play_again(args.again)
    elif args.command == "play":
        laws = (args.law,) if args.law else LAWS
        run_plays(args.seeds, laws, (args.mode,) if args.mode else MODES, args.jobs)
    elif args.command == "table":
        (RESULTS / "curriculum.md").write_text(table())
        plot(RESULTS / "curriculum.png")
        print(table())
    elif args.command == "scale":
        (RESULTS / "curriculum_scale.json").write_text(json.dumps(scale(), indent=1) + "\n")
        print((RESULTS / "curriculum_scale.json").read_text())
    else:
        from curriculum_replay import replay_homes

        replay_homes(args.homes, args.out)


if __name__ == "__main__":
    main()
