"""The training stage: groups and verdicts in; samples, one step of the trainer, and the next policy out."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.types import Group, Judged
from infra import records
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.judge import read_judged
from tasks.policies import POLICY, Policy
from tasks.rollouts import read_groups
from tasks.stage import Desk, Stage, Work

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.samples import SampleBatch

TRAIN = Stage(name="train", version=1, kind="policy")
CHECKPOINT, REPORT, SAMPLES = "checkpoint", "report.json", "samples.parquet"
RARE_WORDS = (" wait", " again", " verify", " check", " look", "wait", "verify", "check", "look")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """How the policy learns; see `training.config.TrainConfig` for each field's meaning.

    `loss` is a name of `training.losses.registry`; `max_ratio` belongs to cispo alone. `advantage_scale` divides the
    group's centred rewards ('std_population', 'std_sample', 'batch_std', 'none').

    `adam_eps` far above the gradients' size makes AdamW act as momentum SGD at the rate learning_rate / adam_eps:
    weights with little gradient then stay where they are. Small policies need that: with the usual eps every weight
    moves by about learning_rate an update, noise or not, and what is hardly exercised (copying a number) wears off.
    """

    loss: str = "cispo"
    max_ratio: float = 5.0
    aggregation: str = "token_mean"
    advantage_baseline: str = "group_mean"
    advantage_scale: str = "std_population"
    learning_rate: float = 3e-4
    warmup_updates: int = 0
    adam_eps: float = 1e-8
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    updates_per_batch: int = 2
    passes_per_batch: int = 1
    token_budget: int = 4096

    def __post_init__(self) -> None:
        if self.loss != "cispo" and self.max_ratio != 5.0:
            raise ValueError(f"training.max_ratio {self.max_ratio} with loss {self.loss!r}: only cispo has a max_ratio")


def train(
    desk: Desk,
    policy: Policy,
    rollouts: Manifest,
    judged: Manifest,
    *,
    section: TrainSection,
    sampling: Sampling,
    iteration: int,
) -> Work:
    """One step on these rollouts: the next policy, its trainer's checkpoint, the samples, the report.

    A batch in which nothing differs leaves the weights as they are, and says so.
    """

    def make(out: Path, scratch: Path) -> int:
        desk.progress.begin("train", iteration=iteration, total=0)
        batch = _samples(read_groups(desk, rollouts), read_judged(desk, judged), section, sampling)
        out.mkdir()
        records.write_parquet(batch.samples, out / SAMPLES, cls=_sample_class())
        report = _step(desk, policy, batch, section, out)
        (out / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True))
        return len(batch.samples)

    return Work(
        stage=TRAIN,
        parents=(policy.manifest, rollouts, judged),
        section=[section, sampling.temperature, policy.version],
        make=make,
        iteration=iteration,
    )


def _sample_class() -> type:
    from training.samples import Sample

    return Sample


def _samples(
    groups: Sequence[Group], verdicts: Sequence[Judged], section: TrainSection, sampling: Sampling
) -> SampleBatch:
    from training.advantages import AdvantageConfig
    from training.samples import samples_from

    advantage = AdvantageConfig(
        baseline=section.advantage_baseline,  # type: ignore[arg-type]
        scale=section.advantage_scale,  # type: ignore[arg-type]
    )
    kept = [g for g in groups if len(g.members) >= 2]
    return samples_from(kept, {j.rollout_id: j for j in verdicts}, sampling, advantage)


def train_config(section: TrainSection, folder: Path, seed: int) -> TrainConfig:
    """The trainer's own configuration. Raises LossConfigError where the section contradicts itself."""
    from training.config import OptimizerConfig, TrainConfig
    from training.losses.aggregation import Aggregation
    from training.losses.registry import make_loss

    fields = {"max_ratio": section.max_ratio} if section.loss == "cispo" else {}
    return TrainConfig(
        loss=make_loss(section.loss, **fields),
        aggregation=Aggregation(name=section.aggregation),  # type: ignore[arg-type]
        optimizer=OptimizerConfig(
            learning_rate=section.learning_rate,
            warmup_updates=section.warmup_updates,
            eps=section.adam_eps,
            max_grad_norm=section.max_grad_norm,
            weight_decay=section.weight_decay,
        ),
        updates_per_batch=section.updates_per_batch,
        passes_per_batch=section.passes_per_batch,
        token_budget=section.token_budget,
        rare_token_ids=rare_token_ids(folder),
        seed=seed,
    )


def rare_token_ids(folder: Path) -> frozenset[int]:
    """The ids of the words that stop and look ('wait', 'verify', ...), where they are one token."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = [tokenizer.encode(word, add_special_tokens=False).ids for word in RARE_WORDS]
    return frozenset(ids[0] for ids in encoded if len(ids) == 1)


def _step(desk: Desk, policy: Policy, batch: SampleBatch, section: TrainSection, out: Path) -> dict[str, Any]:
    from training.checkpoint import load_trainer, save_trainer
    from training.losses.base import LossWarning

    folder = policy.folder(desk)
    config = train_config(section, folder, desk.seed)
    groups = {
        "zero_variance": list(batch.advantages.zero_variance),
        "too_small": list(batch.advantages.too_small),
        "unjudged": list(batch.unjudged),
    }
    trainer = load_trainer(folder, config, policy_version=policy.version)
    if not any(s.weight > 0 and s.num_loss_tokens for s in batch.samples):
        desk.progress.say("[yellow]nothing to learn from in this batch: every group all passed or all failed[/]")
        shutil.copytree(folder, out / POLICY)
        trainer.policy_version += 1  # the same weights under the next version; the optimizer goes on from here
        save_trainer(trainer, out / CHECKPOINT)
        return {"skipped": "no group with a difference in it", "groups": groups}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", LossWarning)
        report = trainer.train_step(batch.samples)
    for warning in warned:
        desk.progress.say(f"[yellow]{warning.message}[/]")
    trainer.save_policy(out / POLICY)
    save_trainer(trainer, out / CHECKPOINT)
    desk.progress.show(entropy=report.entropy, trained_tokens_per_s=report.tokens_per_s)
    return {**dataclasses.asdict(report), "groups": groups}


def read_report(desk: Desk, policy: Policy) -> dict[str, Any]:
    """What the step that made this policy reported."""
    report: dict[str, Any] = json.loads((desk.store.path(policy.manifest) / REPORT).read_text())
    return report
