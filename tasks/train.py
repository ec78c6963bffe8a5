"""The training stage: groups and verdicts in; samples, one step of the trainer, and the next policy out."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.markup import escape

from infra import records
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.judge import read_judged
from tasks.policies import Policy
from tasks.rollouts import read_groups
from tasks.settings import Named, in_order
from tasks.stage import Desk, Stage, Work
from training.advantages import AdvantageConfig, Baseline, Scale
from training.guards import TrainingHalted
from training.losses.names import LOSS_NAMES
from training.policy import CHECKPOINT, POLICY
from training.samples import Sample, SampleBatch, samples_from

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.step import Job

TRAIN = Stage(name="train", version=2, kind="policy")
REPORT, SAMPLES, HALTED = "report.json", "samples.parquet", "halted.json"
RARE_WORDS = ("wait", "but", "verify", "again", "check", "look")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """How the policy learns; see `training.config.TrainConfig` for each field's meaning.

    `loss` is a name of `training.losses.registry`; `loss_settings` go to it by name, as (name, number) pairs (cispo:
    max_ratio; dapo: clip_low, clip_high, dual_clip; each is documented at its loss). `fixed_length` (tokens) belongs to
    the aggregation of that name, which dr_grpo needs. `advantage_scale` divides the group's centred rewards
    ('std_population', 'std_sample', 'batch_std', 'none'; dr_grpo wants 'none').

    `optimizer`: AdamW as in `training.config.optimizer_preset`; what is given of `adam_beta1`, `adam_beta2` and
    `adam_eps` goes over it. The rate rises over `warmup_updates`, then stays or, with `decay_updates`, falls to 0 by a
    cosine at that many updates of the whole run. `adam_eps` far above the gradients' size makes AdamW act as momentum
    SGD at the rate learning_rate / adam_eps: weights with little gradient then stay where they are. Small policies need
    that: with the usual eps every weight moves by about learning_rate an update, noise or not, and what is hardly
    exercised (copying a number) wears off.

    `precision` is the body's ('float32', 'bfloat16'); head and weights stay float32. `lora_rank` above 0 trains
    adapters of that rank (needs the extra `lora`); what is published is always the plain, merged policy.
    `ratio_base` and `mismatch` ('none', 'tis', 'mis', 'icepop'): see TrainConfig; for engines that sample from
    slightly other probabilities than the trainer computes. `mismatch_settings` are its caps by name (tis and mis: cap;
    icepop: low, high).

    `kl_to_start` measures the KL from the run's first policy, once a step on a row's worth of tokens; that policy is
    loaded for it. `rare_words` are those whose share of the gradient is reported.

    `spike_factor`: a gradient norm of more than so many times the median of the last 32 updates stops the run, with the
    samples named; 1e30 is off.

    `max_engine_gap`: before each step the trainer scores some of the tokens that the engine has just sampled; a token
    on which they differ by more nats stops the run. A server in bfloat16 needs more than the local engine's float32.

    `processes`: 0 trains in this process; N in a process group of its own with N ranks, sharded by FSDP2 (N GPUs of
    this machine, or N processes on its CPU). Such a group is stopped after `timeout_s`, or once it printed nothing
    for `silence_s` (every update prints a line), and the stage is tried again.
    """

    loss: str = "cispo"
    loss_settings: Named = ()
    aggregation: str = "token_mean"
    fixed_length: int | None = None
    advantage_baseline: str = "group_mean"
    advantage_scale: str = "std_population"
    optimizer: Literal["default", "m1"] = "default"
    learning_rate: float = 3e-4
    warmup_updates: int = 0
    decay_updates: int | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    adam_eps: float | None = None
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
    mismatch_settings: Named = ()
    kl_to_start: bool = True
    rare_words: tuple[str, ...] = RARE_WORDS
    spike_factor: float = 100.0
    max_engine_gap: float = 0.05
    processes: int = 0
    timeout_s: float = 21600.0
    silence_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("loss_settings", "mismatch_settings"):
            object.__setattr__(self, name, in_order(getattr(self, name)))
        for name, known in (
            ("loss", LOSS_NAMES),
            ("advantage_baseline", get_args(Baseline)),
            ("advantage_scale", get_args(Scale)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"training.{name} is {getattr(self, name)!r}; want one of {', '.join(known)}")
        odd = [word for word in self.rare_words if not (word.isascii() and word.isalpha() and word.islower())]
        if odd:
            raise ValueError(f"training.rare_words holds {', '.join(map(repr, odd))}; want lower-case ASCII words")
        _ = self.advantage  # refuses a baseline and a scale that do not go together
        if self.loss == "nll":
            raise ValueError(
                "training.loss is 'nll', which reads no advantage: it would imitate failed rollouts as well; choose "
                "another loss, or imitate demonstrations by `longbreath warm-start`"
            )
        if self.loss == "dr_grpo" and self.advantage_scale != "none":
            raise ValueError(
                f"training.loss is 'dr_grpo' with advantage_scale {self.advantage_scale!r}: dividing by a std is what "
                "Dr. GRPO leaves out; set training.advantage_scale=none, or choose grpo"
            )
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
    start: Policy,
    section: TrainSection,
    sampling: Sampling,
    iteration: int,
) -> Work:
    """One step on all of these (rollouts, judged): the next policy, its trainer's checkpoint, the samples, the report.

    `start` is the run's first policy, which KL is measured against. A batch in which nothing differs leaves the weights
    as they are, and says so.
    """

    def make(out: Path, scratch: Path) -> int:
        from training.step import Job

        desk.progress.begin("train", iteration=iteration, total=section.updates_per_batch * section.passes_per_batch)
        groups = [g for rollouts, _ in batches for g in read_groups(desk, rollouts)]
        verdicts = [j for _, judged in batches for j in read_judged(desk, judged)]
        batch = samples_from(groups, {j.rollout_id: j for j in verdicts}, sampling, section.advantage)
        out.mkdir()
        records.write_parquet(batch.samples, out / SAMPLES, cls=Sample)
        config = train_config(section, start.folder(desk), desk.seed)
        job = Job(model_folder=policy.folder(desk), policy_version=policy.version, config=config)
        _step(desk, job, batch, section, out, scratch)
        return len(batch.samples)

    return Work(
        stage=TRAIN,
        parents=(policy.manifest, start.manifest, *(m for batch in batches for m in batch)),
        section=[section.deciding, sampling.temperature, policy.version],
        make=make,
        iteration=iteration,
    )


def check_section(section: TrainSection) -> None:
    """Refuse a section that contradicts itself before anything is rolled out for it. Raises LossConfigError."""
    train_config(section, Path("start"), 0)


def train_config(section: TrainSection, start: Path, seed: int) -> TrainConfig:
    """The trainer's own configuration; `start` is the folder of the run's first policy.

    Raises LossConfigError where the section contradicts itself.
    """
    from training.config import LoraAdapter, TrainConfig, optimizer_preset
    from training.losses.aggregation import Aggregation
    from training.losses.registry import make_loss, make_mismatch

    loss = make_loss(section.loss, **dict(section.loss_settings))
    return TrainConfig(
        loss=loss,
        aggregation=Aggregation(name=section.aggregation, fixed_length=section.fixed_length),  # type: ignore[arg-type]
        optimizer=optimizer_preset(
            section.optimizer,
            learning_rate=section.learning_rate,
            warmup_updates=section.warmup_updates,
            decay_updates=section.decay_updates,
            beta1=section.adam_beta1,
            beta2=section.adam_beta2,
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
        mismatch=make_mismatch(section.mismatch, **dict(section.mismatch_settings)),
        spike_factor=section.spike_factor,
        start_folder=start if section.kl_to_start or loss.needs_reference else None,
        rare_words=section.rare_words,
        max_engine_gap=section.max_engine_gap,
        seed=seed,
    )


def _step(desk: Desk, job: Job, batch: SampleBatch, section: TrainSection, out: Path, scratch: Path) -> None:
    """Leave the policy, its checkpoint and the report in `out`."""
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
        "incomplete": list(batch.advantages.incomplete),
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
