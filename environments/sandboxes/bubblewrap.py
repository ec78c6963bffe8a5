"""Boxes by bubblewrap: namespaces without network, no capabilities, a world of read-only host tools."""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.sandboxes import control_groups
from environments.sandboxes.base import Sandbox, SandboxError, SandboxSpec
from environments.sandboxes.interpreter import find_interpreter
from environments.sandboxes.launch import INSTALL_HINT, Launch, find_bwrap, launch, may_use_own_uids
from environments.sandboxes.meeting import configuration, meet
from environments.sandboxes.orphans import kill_orphans
from environments.sandboxes.spec_check import check
from environments.sandboxes.syscall_filter import filter_program

NAMESPACE_HINT = (
    "bwrap needs permission to make namespaces (user.max_user_namespaces above 0; in a container --privileged)"
)


class BubblewrapProvider:
    """Makes boxes with bwrap, each with a kept shell under a process 1 of ours.

    As root every box gets a user id of its own; as another user, a user namespace. `use_control_groups=False`
    takes the watcher inside the box even where the kernel could hold the limits.
    """

    name = "bubblewrap"

    def __init__(self, *, bwrap: Path | None = None, use_control_groups: bool = True) -> None:
        self._bwrap = bwrap
        self._own_uids = may_use_own_uids()
        self._parents = control_groups.find_parents() if use_control_groups else None
        self.not_covered = _not_covered(groups=self._parents is not None)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A fresh box, ready for its first command. Raises SandboxError with the mend when the host cannot."""
        check(spec, own_uids=self._own_uids)
        how = Launch(bwrap=find_bwrap(self._bwrap), interpreter=find_interpreter(), own_uids=self._own_uids)
        name = control_groups.new_box_name()
        group = self._make_group(name, spec)
        try:
            launched = launch(how, spec, name=name, group=group)
        except OSError as error:
            if group:
                group.remove()
            raise SandboxError(f"cannot run {how.bwrap}: {error}; {INSTALL_HINT}") from error
        counters = tuple(map(str, launched.counter_fds))
        search_path = how.interpreter.search_path
        config = configuration(spec, uid=launched.uid, search_path=search_path, counters=counters)
        owner = (launched.uid, launched.uid) if self._own_uids else None
        return await meet(spec, launched.control, launched, config, owner=owner, hint=NAMESPACE_HINT)

    async def sweep(self) -> int:
        """Kill and remove boxes whose owner process is dead."""
        names = await asyncio.to_thread(kill_orphans)
        if self._parents:
            names |= await asyncio.to_thread(control_groups.sweep, self._parents)
        return len(names)

    def _make_group(self, name: str, spec: SandboxSpec) -> control_groups.ControlGroup | None:
        if self._parents is None:
            return None
        try:
            return control_groups.ControlGroup(self._parents, name, spec.limits)
        except OSError as error:
            raise SandboxError(
                f"cannot make the control group {name}: {error}; is it still delegated to us?"
            ) from error


def _not_covered(*, groups: bool) -> tuple[str, ...]:
    known = [
        "the host's kernel is shared: a kernel bug reachable by ordinary system calls is not held back",
        "the host's /usr can be read, so a box tells which packages the host has",
        "CPU: a command is ended when its whole tree has used cpu_s, and any process when it has used cpu_s alone, but "
        "shares of processor, disk and memory bandwidth are not divided between boxes",
        "disk_mb holds for workdir, /tmp and the home each; files live in memory and count against memory_mb",
        "an agent can find the private descriptors that its shell has saved, and so spoil its own shell",
    ]
    if filter_program() is None:
        known.append("the numbers of this machine's system calls are not known here, so none is filtered")
    if not groups:
        known.append(
            "no control group can be written here: memory is measured every 20 ms while a command runs and every "
            "200 ms after, so a fast hog passes the limit for that long, and kernel memory or shared memory that no "
            "process maps is not seen"
        )
    return tuple(known)
