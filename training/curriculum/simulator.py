"""A pool of tasks with drifting skill, to compare strategies on: no model, no sandbox, only pass rates that move.

Task i passes with probability sigmoid(l_i). Training on groups gives it advantage mass m_i (the sum of A^2 over its
groups). After a step every logit grows by what its law says of the mass on this and related tasks, slides back
towards where it began, and jitters. Held-out tasks are of the same kin and grow by transfer alone.

Three growth laws, because no strategy should win by guessing one:

- `own`:    d_i = OWN m_i + SHARED M/N              (what is learnt is mostly the task's own; a little helps all)
- `kin`:    d_i = OWN m_i + KIN M_kin/N_kin + LITTLE M/N                       (it helps the task's kin)
- `ladder`: d_i = OWN s_i + NEAR (sum_j s_j K_ij) / (sum_j K_ij), s = 8 (1 - exp(-m/8))
            with K_ij = exp(-(l_i - l_j)^2 / (2 WIDTH^2)): it helps tasks of like difficulty, so the hard ones are
            reached rung by rung; mass on one task saturates within a step

This file is frozen: its constants were set by running `uniform` and `oracle` only, before any other strategy was
run on it, and stay as they are. Limits: no lengths or costs that differ between tasks, no noise of the optimiser,
no collapse; a strategy's rank here is a reason to try it, not a proof.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from environments.types import Limits, TaskPool, TaskSpec
from training.curriculum.signal import AdvantageMode

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Law = Literal["own", "kin", "ladder"]

SHAPES: dict[str, tuple[float, float]] = {
    "u_shaped": (0.3, 0.3),
    "hard": (0.5, 1.5),
    "flat": (1.0, 1.0),
    "easy": (1.5, 0.5),
}
"""Beta(a, b) of the pass rates at the start."""

NUM_TASKS, NUM_HELD_OUT, NUM_KIN = 512, 256, 16
KIN_SHARE = 0.35  # of the variance of difficulty (in rank) that kin explains
MAX_LOGIT = 6.0
OWN, SHARED, KIN, LITTLE, NEAR, WIDTH = 0.03, 0.10, 0.06, 0.03, 0.10, 1.5
FORGETTING, JITTER = 0.001, 0.03  # per step
MEAN_MODE_RATE = 4.0  # a p = .5 group moves a task as much under `mean` as under `std` advantages


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The truth. The first NUM_TASKS rows are the pool, the rest are held out. Arrays have one value a row."""

    law: Law
    mode: AdvantageMode
    logit: Floats
    first_logit: Floats
    kin: Ints

    @property
    def rate_N(self) -> Floats:
        """True pass rates of the pool. [NUM_TASKS]"""
        return np.asarray(special.expit(self.logit[:NUM_TASKS]), dtype=np.float64)

    @property
    def held_out(self) -> float:
        """Mean true pass rate of the held-out tasks."""
        return float(special.expit(self.logit[NUM_TASKS:]).mean())


def make_world(shape: str, law: Law, mode: AdvantageMode, seed: int) -> World:
    """Draw a world: pass rates are exactly Beta(a, b); harder tasks gather in some kin."""
    rng = np.random.default_rng([seed, 75])
    n = NUM_TASKS + NUM_HELD_OUT
    kin = rng.permutation(np.arange(n) % NUM_KIN)
    of_kin = rng.standard_normal(NUM_KIN)[kin]
    order = np.argsort(KIN_SHARE**0.5 * of_kin + (1 - KIN_SHARE) ** 0.5 * rng.standard_normal(n))
    rate = np.empty(n)
    rate[order] = np.sort(rng.beta(*SHAPES[shape], n))
    logit = np.clip(special.logit(np.clip(rate, 1e-9, 1 - 1e-9)), -MAX_LOGIT, MAX_LOGIT)
    return World(law, mode, logit, logit.copy(), kin)


def task_pool(world: World) -> TaskPool:
    """The pool as strategies see it: kin shows in the tags, difficulty does not show."""
    tasks = tuple(
        TaskSpec(
            task_id=f"sim-{i:03d}",
            suite="simulated",
            instruction="",
            seed=i,
            horizon=4,
            limits=Limits(max_turns=1, max_tokens=1),
            tags=(f"kin:{world.kin[i]:02d}",),
        )
        for i in range(NUM_TASKS)
    )
    return TaskPool(name="simulated", version=1, split="train", tasks=tasks)


def group_mass(passes: Ints, size: Ints, mode: AdvantageMode) -> Floats:
    """Sum of A^2 of each group that `passes` of `size` rollouts passed."""
    q = passes / size
    return np.where((q > 0) & (q < 1), size, 0.0) if mode == "std" else size * q * (1 - q)


def learn(world: World, mass_N: Floats, rng: np.random.Generator) -> World:
    """One training step on advantage mass per pool task. [NUM_TASKS]"""
    mass = np.zeros_like(world.logit)
    mass[:NUM_TASKS] = mass_N * (MEAN_MODE_RATE if world.mode == "mean" else 1.0)
    slide = FORGETTING * (world.logit - world.first_logit)
    jitter = JITTER * rng.standard_normal(len(mass))
    logit = np.clip(world.logit + _growth(world, mass) - slide + jitter, -MAX_LOGIT, MAX_LOGIT)
    return dataclasses.replace(world, logit=logit)


def _growth(world: World, mass: Floats) -> Floats:
    if world.law == "own":
        return np.asarray(OWN * mass + SHARED * mass.sum() / NUM_TASKS)
    if world.law == "kin":
        tasks = np.bincount(world.kin[:NUM_TASKS], minlength=NUM_KIN)
        per_task = np.bincount(world.kin, weights=mass, minlength=NUM_KIN) / tasks
        return np.asarray(OWN * mass + KIN * per_task[world.kin] + LITTLE * mass.sum() / NUM_TASKS)
    learnt = 8.0 * (1.0 - np.exp(-mass / 8.0))
    pool = world.logit[:NUM_TASKS]
    near = np.exp(-((world.logit[:, None] - pool[None, :]) ** 2) / (2 * WIDTH**2))
    return np.asarray(OWN * learnt + NEAR * (near @ learnt[:NUM_TASKS]) / near.sum(1))
