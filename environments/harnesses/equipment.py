"""What an external harness needs in the box it works in, laid over the box that the suite asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from environments.harnesses.base import Endpoint
from environments.sandboxes.base import (
    ExposedSocket,
    ReadonlyMount,
    Sandbox,
    SandboxError,
    SandboxSpec,
)

ROOT = "/opt/harness"
PROXY_PORT = 8790
HOME = "/home/agent"
REACH_TIMEOUT_S = 60.0
# Bash's own TCP: every box has bash, and the answer's first line is all that is wanted.
REACH = (
    '(exec 3<>/dev/tcp/127.0.0.1/{port} && printf "GET / HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n" >&3 '
    "&& head -n 1 <&3)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """A harness's files, and what it uses beside the agent's own commands: added to the suite's limits.

    `cpu_s` is added once for the whole run, in which the harness and all of the agent's commands count.
    """

    mounts: tuple[ReadonlyMount, ...]
    memory_mb: int
    processes: int
    disk_mb: int
    cpu_s: float

    def added_to(self, spec: SandboxSpec, proxy: Path) -> SandboxSpec:
        """The suite's box with the harness in it and the unix socket `proxy` as its only way out."""
        limits = replace(
            spec.limits,
            memory_mb=spec.limits.memory_mb + self.memory_mb,
            processes=spec.limits.processes + self.processes,
            disk_mb=spec.limits.disk_mb + self.disk_mb,
            cpu_s=spec.limits.cpu_s + self.cpu_s,
        )
        exposed = ExposedSocket(host_socket=proxy, port=PROXY_PORT)
        return replace(spec, limits=limits, mounts=(*spec.mounts, *self.mounts), exposed=(*spec.exposed, exposed))


def url_in_box(endpoint: Endpoint) -> str:
    """The endpoint as the box reaches it: the same path, at the exposed port."""
    return f"http://127.0.0.1:{PROXY_PORT}{urlsplit(endpoint.base_url).path}"


async def expect_proxy(sandbox: Sandbox) -> None:
    """Make sure that the proxy answers from inside. Raises SandboxError: nothing is the agent's fault yet."""
    result = await sandbox.run(REACH.format(port=PROXY_PORT), timeout_s=REACH_TIMEOUT_S)
    if not result.output.startswith("HTTP/1."):
        raise SandboxError(
            f"the box cannot reach the proxy: {result.output.strip() or 'no answer'}; serve the recorder on the unix "
            "socket and start the box from equipped_boxes.boxes_for"
        )
