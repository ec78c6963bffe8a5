"""Checkpoints: all that a trainer needs to go on as if nothing had happened, whole or not there at all.

A checkpoint is a folder: weights.safetensors, optimizer.safetensors, state.json, and manifest.json with the SHA-256
of the three. It is written under a temporary name, flushed, and renamed. In the pipeline it is part of a training
step's artifact, beside the policy: `infra.store` checks it again, sets a damaged one aside, and the step is taken anew
from the artifact before it. Which steps a run has done, and what may be thrown away, is the store's and
`infra.retention`'s to say, and not the trainer's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from infra.digests import digest_file
from infra.staging import move_into_place
from training.config import TrainConfig
from training.distributed import World, copy_into, full_tensor
from training.errors import TrainingError
from training.policy import CHECKPOINT
from training.trainer import Trainer

SCHEMA_VERSION = 2
_GO_ON_OTHERWISE = "set model and training.lora_rank back, or move the checkpoint away to start with a fresh optimizer"
FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")


class CheckpointError(TrainingError):
    """A checkpoint that cannot be used. The message says what was found, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A trainer's state at one moment, on the CPU. `state` is JSON: counters and norms."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


def _names(trainer: Trainer) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in trainer.policy.named_parameters()}


def capture(trainer: Trainer) -> Snapshot:
    """Copy the state out of a trainer, gathered from all ranks (a collective act where there are several)."""
    names = _names(trainer)
    optimizer = {
        f"{names[parameter]}/{key}": full_tensor(value).detach().to("cpu", copy=True)
        for parameter, entry in trainer.optimizer.state.items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }
    optimizer["rng/torch"] = torch.get_rng_state()
    if trainer.world.device.type == "cuda":
        optimizer["rng/cuda"] = torch.cuda.get_rng_state(trainer.world.device)
    state = {
        "schema_version": SCHEMA_VERSION,
        "step": trainer.step,
        "update": trainer.update,
        "policy_version": trainer.policy_version,
        "clipped_tokens": trainer.clipped_tokens,
        "grad_norms": list(trainer.guard.norms),
        "optimizer": trainer.config.optimizer.name,
    }
    weights = {name: full_tensor(p.detach()).to("cpu", copy=True).contiguous() for p, name in names.items()}
    return Snapshot(weights=weights, optimizer=optimizer, state=state)


def restore(trainer: Trainer, snapshot: Snapshot) -> None:
    """Put a state into a trainer of the same model and optimizer. Raises CheckpointError when they differ."""
    if snapshot.state["optimizer"] != trainer.config.optimizer.name:
        raise CheckpointError(
            f"the checkpoint is of optimizer {snapshot.state['optimizer']}, the config says "
            f"{trainer.config.optimizer.name}; set it back, or start from the policy folder"
        )
    _restore_weights(trainer, snapshot.weights)
    _restore_optimizer(trainer, snapshot.optimizer)
    torch.set_rng_state(snapshot.optimizer["rng/torch"])
    if trainer.world.device.type == "cuda" and "rng/cuda" in snapshot.optimizer:
        torch.cuda.set_rng_state(snapshot.optimizer["rng/cuda"], trainer.world.device)
    trainer.step, trainer.update = snapshot.state["step"], snapshot.state["update"]
    trainer.policy_version = snapshot.state["policy_version"]
    trainer.clipped_tokens = snapshot.state["clipped_tokens"]
    trainer.guard.norms.clear()
    trainer.guard.norms.extend(snapshot.state["grad_norms"])


def _restore_weights(trainer: Trainer, weights: Mapping[str, Tensor]) -> None:
    own = dict(trainer.policy.named_parameters())
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())
        raise CheckpointError(
            f"the checkpoint is of another model: {len(odd)} parameters differ, first {odd[0]}; {_GO_ON_OTHERWISE}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise CheckpointError(
                    f"{name} is {tuple(weights[name].shape)} in the checkpoint, {tuple(parameter.shape)} in the model; "
                    f"{_GO_ON_OTHERWISE}"
                )
            copy_into(parameter, weights[name])


def _restore_optimizer(trainer: Trainer, tensors: Mapping[str, Tensor]) -> None:
    """Fill the optimizer's entries as a first step would have made them: beside the parameter, in its layout."""
    for parameter, name in _names(trainer).items():
        entry = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        for key, value in entry.items():
            if key == "step":
                trainer.optimizer.state[parameter][key] = value.to(parameter.device)
            else:
                place = torch.zeros_like(parameter, requires_grad=False)
                copy_into(place, value)
                trainer.optimizer.state[parameter][key] = place


def write(snapshot: Snapshot, folder: Path) -> None:
    """Publish a snapshot as `folder`, atomically. Raises CheckpointError if it exists, OSError on a full disk."""
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; checkpoints are never overwritten")
    with TemporaryDirectory(dir=folder.parent, prefix=".", ignore_cleanup_errors=True) as draft:
        made = Path(draft) / folder.name
        made.mkdir()
        save_file(dict(snapshot.weights), made / FILES[0])
        save_file(dict(snapshot.optimizer), made / FILES[1])
        (made / FILES[2]).write_text(json.dumps(snapshot.state, indent=1, sort_keys=True))
        digests = {name: digest_file(made / name) for name in FILES}
        (made / "manifest.json").write_text(json.dumps(digests, indent=1, sort_keys=True))
        move_into_place(made, folder)


def read(folder: Path) -> Snapshot:
    """Read and verify one checkpoint. Raises CheckpointError for one that is missing, half written or corrupted."""
    try:
        digests = json.loads((folder / "manifest.json").read_text())
        for name in FILES:
            if digest_file(folder / name) != digests[name]:
                raise CheckpointError(f"{folder.name}: {name} is not what was written (SHA-256 differs)")
        state = json.loads((folder / FILES[2]).read_text())
        if state["schema_version"] != SCHEMA_VERSION:
            raise CheckpointError(f"{folder.name}: schema {state['schema_version']}, this code reads {SCHEMA_VERSION}")
        return Snapshot(weights=load_file(folder / FILES[0]), optimizer=load_file(folder / FILES[1]), state=state)
    except (OSError, KeyError, json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise CheckpointError(f"{folder.name} is half written or damaged: {error!r}") from error


def save_trainer(trainer: Trainer, folder: Path) -> None:
    """Write the trainer's state as the checkpoint `folder`, at once."""
    snapshot = capture(trainer)
    if trainer.world.is_main:
        write(snapshot, folder)
    trainer.world.barrier()


def load_trainer(
    model_folder: Path, config: TrainConfig, *, policy_version: int, world: World | None = None
) -> Trainer:
    """A trainer of `model_folder`, going on from the checkpoint that lies beside it, if one does.

    `<x>/policy` with `<x>/checkpoint` is what a training step leaves; any other folder starts with a fresh
    optimizer. Raises CheckpointError when the checkpoint is damaged, or is not of this policy and version.
    """
    trainer = Trainer(model_folder, config, policy_version=policy_version, world=world)
    beside = model_folder.parent / CHECKPOINT
    if not beside.is_dir():
        return trainer
    snapshot = read(beside)
    if snapshot.state["policy_version"] != policy_version:
        raise CheckpointError(
            f"{beside} is of policy version {snapshot.state['policy_version']}, the policy is {policy_version}; "
            "move the checkpoint away to start with a fresh optimizer"
        )
    restore(trainer, snapshot)
    return trainer
