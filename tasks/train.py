"""The training stage: groups and verdicts in; samples, one step of the trainer, and the next policy out."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.markup import escape

from environments.types import Group, Judged
from infra import records
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.judge import read_judged
from tasks.policies import Policy
from tasks.rollouts import read_groups
from tasks.stage import Desk, Stage, Work
from training.advantages import AdvantageConfig, Baseline, Scale
from training.guards import TrainingHalted
from training.losses.names import LOSS_NAMES
from training.policy import CHECKPOINT, POLICY
from training.samples import Sample, SampleBatch

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.step import Job

TRAIN = Stage(name="train", version=1, kind="policy")
REPORT, SAMPLES, HALTED = "report.json", "samples.parquet", "halted.json"
RARE_WORDS = (" wait", " again", " verify", " check", " look", "wait", "verify", "check", "look")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """How the policy learns; see `training.config.TrainConfig` for each field's meaning.

    `loss` is a name of `training.losses.registry`; `max_ratio` belongs to cispo alone, `fixed_length` (tokens) to the
    aggregation of that name, which dr_grpo needs. `advantage_scale` divides the group's centred rewards
    ('std_population', 'std_sample', 'batch_std', 'none').

    `adam_eps` far above the gradients' size makes AdamW act as momentum SGD at the rate learning_rate / adam_eps:
    weights with little gradient then stay where they are. Small policies need that: with the usual eps every weight
    moves by about learning_rate an update, noise or not, and what is hardly exercised (copying a number) wears off.

    `precision` is the body's ('float32', 'bfloat16'); head and weights stay float32. `lora_rank` above 0 trains
    adapters of that rank (needs the extra `lora`); what is published is always the plain, merged policy.
    `ratio_base` and `mismatch` ('none', 'tis', 'mis', 'icepop'): see TrainConfig; for engines that sample from
    slightly other probabilities than the trainer computes.

    `max_engine_gap`: before each step the trainer scores some of the tokens that the engine has just sampled; a token
    on which they differ by more nats stops the run. A server in bfloat16 needs more than the local engine's float32.

    `processes`: 0 trains in this process; N in a process group of its own with N ranks, sharded by FSDP2 (N GPUs of
    this machine, or N processes on its CPU). Such a group is stopped after `timeout_s`, or once it printed nothing
    for `silence_s` (every update prints a line), and the stage is tried again.
    """

    loss: str = "cispo"
    max_ratio: float = 5.0
    aggregation: str = "token_mean"
    fixed_length: int | None = None
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
    precision: str = "float32"
    gradient_checkpointing: bool = False
    lora_rank: int = 0
    lora_alpha: float = 32.0
    ratio_base: str = "behaviour"
    mismatch: str = "none"
    max_engine_gap: float = 0.05
    processes: int = 0
    timeout_s: float = 21600.0
    silence_s: float = 1800.0

    def __post_init__(self) -> None:
        for name, known in (
            ("loss", LOSS_NAMES),
            ("advantage_baseline", get_args(Baseline)),
            ("advantage_scale", get_args(Scale)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"training.{name} is {getattr(self, name)!r}; want one of {', '.join(known)}")
        _ = self.advantage  # refuses a baseline and a scale that do not go together
        if self.loss != "cispo" and self.max_ratio != 5.0:
            raise ValueError(f"training.max_ratio {self.max_ratio} with loss {self.loss!r}: only cispo has a max_ratio")
        if self.processes < 0:
            raise ValueError(f"training.processes is {self.processes}; want 0 (in this process) or the number of ranks")
        if min(self.timeout_s, self.silence_s) <= 0:
            raise ValueError(
                f"training.timeout_s {self.timeout_s} and silence_s {self.silence_s}: want positive seconds"
            )

    @property
    def deciding(self) -> TrainSection:
        """This section without what the result does not depend on: how long a step may take."""
        return dataclasses.replace(self, timeout_s=1.0, silence_s=1.0)

    @property
    def advantage(self) -> AdvantageConfig:
        """The advantage's estimator. The curriculum weighs tasks by it."""
        return AdvantageConfig(baseline=self.advantage_baseline, scale=self.advantage_scale)  # type: ignore[arg-type]


def train(
    desk: Desk,
    policy: Policy,
    batches: Sequence[tuple[Manifest, Manifest]],
    *,
    section: TrainSection,
    sampling: Sampling,
    iteration: int,
) -> Work:
    """One step on all of these (rollouts, judged): the next policy, its trainer's checkpoint, the samples, the report.

    A batch in which nothing differs leaves the weights as they are, and says so.
    """

    def make(out: Path, scratch: Path) -> int:
        desk.progress.begin("train", iteration=iteration, total=section.updates_per_batch * section.passes_per_batch)
        groups = [g for rollouts, _ in batches for g in read_groups(desk, rollouts)]
        verdicts = [j for _, judged in batches for j in read_judged(desk, judged)]
        batch = _samples(groups, verdicts, section, sampling)
        out.mkdir()
        records.write_parquet(batch.samples, out / SAMPLES, cls=Sample)
        _step(desk, policy, batch, section, out, scratch)
        return len(batch.samples)

    return Work(
        stage=TRAIN,
        parents=(policy.manifest, *(m for batch in batches for m in batch)),
        section=[section.deciding, sampling.temperature, policy.version],
        make=make,
        iteration=iteration,
    )


def _samples(
    groups: Sequence[Group], verdicts: Sequence[Judged], section: TrainSection, sampling: Sampling
) -> SampleBatch:
    from training.samples import samples_from

    kept = [g for g in groups if len(g.members) >= 2]
    return samples_from(kept, {j.rollout_id: j for j in verdicts}, sampling, section.advantage)


def check_section(section: TrainSection) -> None:
    """Refuse a section that contradicts itself before anything is rolled out for it. Raises LossConfigError."""
    train_config(section, frozenset(), 0)


def train_config(section: TrainSection, rare_ids: frozenset[int], seed: int) -> TrainConfig:
    """The trainer's own configuration. Raises LossConfigError where the section contradicts itself."""
    from training.config import LoraAdapter, OptimizerConfig, TrainConfig
    from training.losses.aggregation import Aggregation
    from training.losses.registry import make_loss, make_mismatch

    fields = {"max_ratio": section.max_ratio} if section.loss == "cispo" else {}
    return TrainConfig(
        loss=make_loss(section.loss, **fields),
        aggregation=Aggregation(name=section.aggregation, fixed_length=section.fixed_length),  # type: ignore[arg-type]
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
        precision=section.precision,  # type: ignore[arg-type]
        gradient_checkpointing=section.gradient_checkpointing,
        lora=LoraAdapter(rank=section.lora_rank, alpha=section.lora_alpha) if section.lora_rank else None,
        ratio_base=section.ratio_base,  # type: ignore[arg-type]
        mismatch=make_mismatch(section.mismatch),
        rare_token_ids=rare_ids,
        max_engine_gap=section.max_engine_gap,
        seed=seed,
    )


def rare_token_ids(folder: Path) -> frozenset[int]:
    """The ids of the words that stop and look ('wait', 'verify', ...), where they are one token."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = [tokenizer.encode(word, add_special_tokens=False).ids for word in RARE_WORDS]
    return frozenset(ids[0] for ids in encoded if len(ids) == 1)


def _step(desk: Desk, policy: Policy, batch: SampleBatch, section: TrainSection, out: Path, scratch: Path) -> None:
    """Leave the policy, its checkpoint and the report in `out`."""
    from training.step import Job

    folder = policy.folder(desk)
    config = train_config(section, rare_token_ids(folder), desk.seed)
    job = Job(model_folder=folder, policy_version=policy.version, config=config)
    try:
        report = _taken(desk, job, batch.samples, section, out, scratch)
    except TrainingHalted as halted:
        halted.save(scratch / HALTED)
        desk.progress.say(f"[red]training halted; the samples to look at are named in {scratch / HALTED}[/]")
        raise
    if "skipped" in report:
        desk.progress.say("[yellow]nothing to learn from in this batch: every group all passed or all failed[/]")
    else:
        desk.progress.show(entropy=report["entropy"], trained_tokens_per_s=report["tokens_per_s"])
    groups = {
        "zero_variance": list(batch.advantages.zero_variance),
        "too_small": list(batch.advantages.too_small),
        "unjudged": list(batch.unjudged),
    }
    (out / REPORT).write_text(json.dumps({**report, "groups": groups}, indent=1, sort_keys=True))


def _taken(
    desk: Desk, job: Job, samples: Sequence[Sample], section: TrainSection, out: Path, scratch: Path
) -> dict[str, Any]:
    from training.step import Watcher, take_step

    def on_update(figures: dict[str, float]) -> None:
        desk.progress.advance()
        desk.progress.show(**figures)

    watcher = Watcher(on_update=on_update, on_line=lambda line: desk.progress.say(f"[yellow]{escape(line)}[/]"))
    if section.processes == 0:
        return take_step(job, samples, out, watcher=watcher)
    from training.step_group import GroupLimits, take_step_apart

    limits = GroupLimits(processes=section.processes, timeout_s=section.timeout_s, silence_s=section.silence_s)
    # A folder of its own for each attempt: ranks that outlived a killed pipeline write into none that is in use.
    folder = Path(tempfile.mkdtemp(prefix="step-", dir=scratch)) / "job"
    report = take_step_apart(
        job,
        samples,
        folder,
        limits,
        watcher=watcher,
        on_heartbeat=lambda elapsed_s: desk.progress.say(f"[dim]training for {elapsed_s:.0f} s[/]"),
    )
    for name in (POLICY, CHECKPOINT):
        (folder / name).rename(out / name)
    return report


def read_report(desk: Desk, policy: Policy) -> dict[str, Any]:
    """What the step that made this policy reported."""
    report: dict[str, Any] = json.loads((desk.store.path(policy.manifest) / REPORT).read_text())
    return report
