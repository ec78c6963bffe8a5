"""What the recorder keeps: token counts that must add up, and log-probabilities that the trainer finds again.

    infra/harnesses/install.sh
    python tests/benchmarks/polar_fidelity.py --out tests/benchmarks/results/polar_fidelity.json

Each harness, unmodified and in a real box (`tool_loop` in our own process), mends a service in `--turns` turns, and
each SDK client holds a conversation as long. The `forced` engine says the texts (one call of the wrong form among
them) with the log-probabilities of a tiny policy in float32; afterwards the trainer scores every chain anew with the
same weights. Per row, in tokens: `sampled` by the engine, `recorded`, `delivered` to the client, `trainable`,
`in_forks` by cause; `lost` = sampled - recorded and `trained_twice` must be 0. `--only` names rows, by a comma, and
keeps the others of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pydoc_data.topics
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [ROOT / "tests" / "environments" / room for room in ("harnesses", "polar")]
sys.path[:0] = [str(p) for p in (ROOT, ROOT / "tests", ROOT / "tests" / "benchmarks", *ROOMS)]

from fakes import long_context_shape  # noqa: E402
from harness_rooms import SUITE, one_rollout, room_for, says  # noqa: E402
from polar_fidelity_clients import DRIVERS, Driver, Received, lost_texts, scripted  # noqa: E402

from environments.harnesses.base import Harness  # noqa: E402
from environments.harnesses.command import CommandHarness  # noqa: E402
from environments.harnesses.mini_swe_agent import MiniSweAgent  # noqa: E402
from environments.harnesses.specs import SPECS  # noqa: E402
from environments.harnesses.tool_loop import ToolLoop  # noqa: E402
from environments.polar.base import Recording, SessionBudget  # noqa: E402
from environments.polar.recorder import PolarRecorder  # noqa: E402
from environments.polar.replay import replay  # noqa: E402
from environments.polar.server import serving  # noqa: E402
from environments.polar.summary import summarise  # noqa: E402
from environments.suites.service_repair.suite import task_of  # noqa: E402
from environments.types import Limits  # noqa: E402
from infra.engines.base import Completion, GenerateRequest, Sampling, TokenDelta  # noqa: E402
from infra.engines.forced import ForcedEngine  # noqa: E402
from infra.engines.local import LocalEngine, LocalSettings  # noqa: E402
from training.config import TrainConfig  # noqa: E402
from training.policy import build_policy  # noqa: E402
from training.samples import sample_from_chain  # noqa: E402
from training.trainer import Trainer  # noqa: E402

ANSWER = '{"answer": "done"}'
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{ANSWER}'"
LINE_BITS = 28  # a call index above that belongs to no main agent: a title, say
SHAPE = long_context_shape(layers=2)


class CountedEngine:
    """A forced engine that counts the tokens it gives out."""

    def __init__(self, folder: Path, script: Callable[[GenerateRequest], str | None]) -> None:
        settings = LocalSettings(num_slots=4, chunk_tokens=512)
        self._engine = ForcedEngine(LocalEngine(folder, settings=settings), script)
        self.sampled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        async for delta in self._engine.stream(request):
            self.sampled += len(delta.ids)
            yield delta

    async def generate(self, request: GenerateRequest) -> Completion:
        done = await self._engine.generate(request)
        self.sampled += len(done.ids)
        return done


class Script:
    """The main agent says `texts` in turn, whatever became of the last one; calls beside the work get a title."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._rest = iter(texts)

    def __call__(self, request: GenerateRequest) -> str:
        return "A title" if request.call_index >> LINE_BITS else next(self._rest, ANSWER)


def _made(name: str) -> Harness:
    if name == "tool_loop":
        return ToolLoop()
    return MiniSweAgent() if name == "mini_swe_agent" else CommandHarness(SPECS[name], ROOT / ".harnesses" / name)


def _texts(name: str, turns: int) -> list[str]:
    """The reference solution in the harness's own tool, a call with an unknown argument in the middle, the end."""
    shell = SPECS[name].shell_call if name in SPECS else lambda command: ("bash", {"command": command})
    texts = [says(s.thought, *shell(s.command)) for s in SUITE.reference(task_of(seed=11, horizon=turns))]
    texts.insert(turns // 2, says("So?", shell("")[0], {"wish": "ls"}))
    return [*texts, says("It passes.", "bash", {"command": SUBMIT}) if name == "mini_swe_agent" else ANSWER]


async def of_harness(name: str, folder: Path, turns: int, scratch: Path) -> dict[str, Any]:
    """One rollout under a harness, counted."""
    limits = Limits(max_turns=2 * turns + 2, max_tokens=100_000, wall_time_s=3000.0)
    task = replace(task_of(seed=11, horizon=turns), limits=limits)
    engine = CountedEngine(folder, Script(_texts(name, turns)))
    async with room_for(_made(name), engine, scratch, max_tokens=2000) as (room, _):
        trajectory = await one_rollout(room, task)
    ended = {"status": trajectory.status, "fault": trajectory.fault}
    return {**ended, **counted(replay(scratch / "calls", trajectory.rollout_id), engine.sampled, folder)}


async def of_client(name: str, driver: Driver, folder: Path, turns: int, scratch: Path) -> dict[str, Any]:
    """One conversation of an SDK's client, counted; `lost_texts` received by the client and not on record."""
    engine = CountedEngine(folder, scripted)
    recorder, got = PolarRecorder(engine, scratch / "calls"), Received()  # type: ignore[arg-type]
    async with serving(recorder):
        budget = SessionBudget(max_calls=10_000, max_tokens=10_000_000)
        await driver(recorder.open(name, sampling=Sampling(max_tokens=400), budget=budget), got, turns)
        recording = await recorder.close(name)
    await recorder.aclose()
    await engine.aclose()
    return {"lost_texts": lost_texts(got, recording, recorder), **counted(recording, engine.sampled, folder)}


def counted(recording: Recording, sampled: int, folder: Path) -> dict[str, Any]:
    """The row of one rollout."""
    summary = asdict(summarise([recording]))
    recorded = summary.pop("sampled")
    gap = rescored(recording, folder)
    return {"sampled": sampled, "recorded": recorded, "lost": sampled - recorded, **summary, "logprob_gap": gap}


def rescored(recording: Recording, folder: Path) -> dict[str, float]:
    """Recorded against re-scored log-probabilities over every trainable token of every chain: absolute, in nats."""
    samples = [sample_from_chain(chain, "g", 1.0, 1.0, 1.0) for chain in recording.chains]
    again = Trainer(folder, TrainConfig()).logprobs(samples)
    gaps = [(s.behaviour_logprobs - a)[s.loss_mask] for s, a in zip(samples, again, strict=True)]
    sizes = np.abs(np.concatenate(gaps))
    found = {"mean": sizes.mean(), "p99.9": np.quantile(sizes, 0.999), "max": sizes.max()}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


async def measure(turns: int, only: Sequence[str]) -> dict[str, Any]:
    """All rows, one after the other."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = build_policy(Path(scratch) / "p", corpus=pydoc_data.topics.topics.values(), shape=SHAPE, seed=0)
        for number, name in enumerate(("tool_loop", "mini_swe_agent", *SPECS, *DRIVERS)):
            if only and name not in only:
                continue
            room = Path(scratch) / str(number)
            driver = DRIVERS.get(name)
            made = (
                of_harness(name, folder, turns, room)
                if driver is None
                else of_client(name, driver, folder, turns, room)
            )
            rows[name] = await made
            print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    return rows


def sound(row: dict[str, Any]) -> bool:
    """Whether the figures that must be 0 (or at most 1e-4) are."""
    lost = row["lost"] or row["trained_twice"] or row["broken"] or row.get("lost_texts", 0)
    return not lost and row["logprob_gap"]["max"] <= 1e-4 and row.get("status", "completed") == "completed"


def main() -> int:
    """Measure; 1 when a row is not sound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.only and args.out is not None and args.out.is_file() else {}
    rows = {**kept, **asyncio.run(measure(args.turns, args.only))}
    text = json.dumps(rows, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")
    return 0 if all(sound(row) for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
