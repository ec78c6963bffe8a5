"""A state as JSON and back, exactly: floats survive because Python writes their shortest round-trip form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from training.curriculum.base import CurriculumError
from training.curriculum.ledger import Columns, Ignored, State, TaskIndex
from training.curriculum.prior import Learned

SCHEMA_VERSION = 2


def to_json(state: State) -> dict[str, Any]:
    """Plain JSON data; equal states give equal data."""
    tasks, learned = state.tasks, state.learned
    return {
        "schema_version": SCHEMA_VERSION,
        "strategy": state.strategy,
        "version": state.version,
        "tasks": {
            "ids": list(tasks.ids),
            "digests": list(tasks.digests),
            "features": tasks.kinship.names_of_tasks(),
        },
        "learned": {f.name: getattr(learned, f.name).tolist() for f in dataclasses.fields(Learned)},
        "columns": {f.name: getattr(state.columns, f.name).tolist() for f in dataclasses.fields(Columns)},
        "seen": [[version, sorted(ids)] for version, ids in state.seen],
        "ignored": dataclasses.asdict(state.ignored),
        "scalars": dict(state.scalars),
    }


def from_json(data: Mapping[str, Any]) -> State:
    """The state that `to_json` wrote. Raises CurriculumError on another schema or on columns of unequal length."""
    if data.get("schema_version") != SCHEMA_VERSION:
        raise CurriculumError(
            f"curriculum state has schema {data.get('schema_version')}; this code reads {SCHEMA_VERSION}. "
            "Resume with the code that wrote it, or start with --fresh"
        )
    template = Columns.empty(len(data["tasks"]["ids"]))
    columns = {
        f.name: np.array(data["columns"][f.name], dtype=getattr(template, f.name).dtype)
        for f in dataclasses.fields(Columns)
    }
    wrong = [name for name, values in columns.items() if values.shape != template.passes.shape]
    if wrong:
        raise CurriculumError(f"columns {wrong} do not have one value a task ({len(template.passes)}); file damaged")
    return State(
        strategy=data["strategy"],
        tasks=TaskIndex.of(data["tasks"]["ids"], data["tasks"]["digests"], data["tasks"]["features"]),
        columns=Columns(**columns),
        learned=Learned(**{name: np.array(values) for name, values in data["learned"].items()}),
        version=data["version"],
        seen=tuple((version, frozenset(ids)) for version, ids in data["seen"]),
        ignored=Ignored(**data["ignored"]),
        scalars=tuple(sorted(data["scalars"].items())),
    )
