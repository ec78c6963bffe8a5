"""A desk on real stores, works that count how often they are done, and records with literal values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_records import a_rollout, a_turn

from environments.types import Group, Judged, Limits, TaskPool, TaskSpec, Trajectory, Unjudged, Usage, Verdict
from infra import records
from infra.manifest import Manifest
from infra.store import LocalStore
from tasks.progress import Silent
from tasks.stage import Desk, Stage, Work, perform
from tasks.workshop import EngineConfig, Workshop

COUNT = Stage(name="count", version=1, kind="report")


def desk_at(root: Path, **changes: Any) -> Desk:
    """A desk whose store and work folder lie below `root`; its workshop makes things when asked."""
    given: dict[str, Any] = {
        "run_id": "test-1",
        "store": LocalStore(root / "store"),
        "workshop": Workshop(EngineConfig(), root / "work"),
        "progress": Silent(),
        "work": root / "work",
        "seed": 0,
    }
    return Desk(**{**given, **changes})


def counting(made: list[str], *, said: Callable[[], str] = lambda: "hello", **changes: Any) -> Work:
    """Work that writes what `said` returns (or raises what it raises) and notes each attempt in `made`."""

    def make(out: Path, scratch: Path) -> int:
        made.append("made")
        out.write_text(said())
        return 3

    given: dict[str, Any] = {"stage": COUNT, "parents": (), "section": {"rate": 1}, "make": make}
    return Work(**{**given, **changes})


def stored(desk: Desk, cls: type, rows: list[Any], kind: str) -> Manifest:
    """The artifact of some records."""

    def make(out: Path, scratch: Path) -> int:
        return records.write_parquet(rows, out, cls=cls)

    stage = Stage(name=f"given_{kind}", version=1, kind=kind)
    schema = records.schema_version(cls)
    name = f"{kind}.parquet"
    return perform(desk, Work(stage=stage, parents=(), section=rows, make=make, name=name, schema_version=schema))


def a_task(name: str, *, horizon: int = 3) -> TaskSpec:
    return TaskSpec(
        task_id=name,
        suite="service_repair",
        instruction="Make ./check pass.",
        seed=7,
        horizon=horizon,
        limits=Limits(max_turns=8, max_tokens=600),
        tags=(f"fault:{name}",),
    )


def a_pool(*names: str) -> TaskPool:
    return TaskPool(name="small", version=1, split="train", tasks=tuple(a_task(name) for name in names))


def a_trajectory(group_id: str, index: int, task_id: str, *, version: int = 0) -> Trajectory:
    rollout_id = f"{group_id}-{index}"
    turn = a_turn(call_id=f"{rollout_id}-c0", thought="look first", observation="check", duration_s=0.5)
    return a_rollout(
        rollout_id,
        group_id=group_id,
        index=index,
        task_id=task_id,
        turns=(turn,),
        final_payload="done",
        usage=Usage(turns=1, calls=2, prompt_tokens=50, completion_tokens=10, wall_s=1.0, sandbox_s=0.5),
        final_state_uri=f"states/{rollout_id}.tar",
        version=version,
    )


def a_group(group_id: str, task: TaskSpec, size: int, *, version: int = 0) -> Group:
    members = tuple(a_trajectory(group_id, i, task.task_id, version=version) for i in range(size))
    return Group(group_id=group_id, task_id=task.task_id, task_digest=task.digest, requested_size=size, members=members)


def verdicts_of(group: Group, *passed: bool | None) -> list[Judged]:
    """One verdict a member; None: it could not be judged."""
    return [
        Judged(
            rollout_id=member.rollout_id,
            group_id=group.group_id,
            task_id=group.task_id,
            result=Unjudged(reason="the box was lost")
            if won is None
            else Verdict(gates=(), scores=(), reward=float(won), passed=won),
        )
        for member, won in zip(group.members, passed, strict=True)
    ]


def model_folder(path: Path, *, weights: bytes = b"weights") -> Path:
    """The files by which a model folder is known; nothing here loads them."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path
