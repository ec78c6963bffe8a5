"""The processes of one training run: one alone, or several under torchrun. Everything else is the same code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Which process this is, of how many, and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """The process that writes."""
        return self.rank == 0

    def deal(self, rows: Sequence[Item]) -> list[tuple[Item, bool]]:
        """This rank's rows and whether each counts. All ranks get equally many, since each row is a collective
        act: the last ranks repeat a row without letting it count."""
        rounds = -(-len(rows) // self.size)
        places = [n * self.size + self.rank for n in range(rounds)]
        return [(rows[min(p, len(rows) - 1)], p < len(rows)) for p in places]

    def gather(self, value: Item) -> list[Item]:
        """`value` of every rank, in order of rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()


def single_process(device: torch.device | None = None) -> World:
    """This process alone, on `device` or the first CUDA device or the CPU."""
    chosen = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return World(rank=0, size=1, device=chosen)


def under_torchrun() -> World:
    """Join the process group that torchrun describes in the environment (nccl on CUDA, else gloo)."""
    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    return World(rank=rank, size=size, device=device)


def shard(policy: nn.Module, layers: Sequence[nn.Module], world: World) -> None:
    """FSDP2: shard each layer, then the rest, over all ranks. A single process is left as it is.

    Gradients come back averaged over ranks; the trainer multiplies its loss by their number, since a rank's loss is a
    part of the step's, not a mean of its own (a plain sum is not to be had with gloo).
    """
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in (*layers, policy):
        fully_shard(module, mesh=mesh)


def is_sharded(policy: nn.Module) -> bool:
    """Whether `shard` has split it over several processes."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(policy, FSDPModule)


def release(policy: nn.Module) -> None:
    """Drop the gathered weights that a forward pass without a backward leaves in place of the sharded ones."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(policy, FSDPModule):
        policy.reshard()


def full_tensor(value: Tensor) -> Tensor:
    """The whole of a sharded tensor, or the tensor itself. A collective act where it is sharded."""
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, whole, on the CPU. A collective act where they are sharded.

    A weight with two names (a tied head) is gathered once and stays one tensor, which is then saved once.
    """
    whole: dict[int, Tensor] = {}
    names: dict[str, int] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        names[name] = id(value)
        if id(value) not in whole:
            whole[id(value)] = full_tensor(value.detach()).cpu()
    return {name: whole[key] for name, key in names.items()}


def copy_into(target: Tensor, whole: Tensor) -> None:
    """Overwrite `target`, sharded or not, with its part of `whole`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(target, DTensor):
        whole = distribute_tensor(whole.to(target.device), target.device_mesh, target.placements)
    target.copy_(whole)
