"""What a box shows and allows: no network, no host, no privilege."""

from __future__ import annotations

import os
from pathlib import Path

from environments.sandboxes.base import Sandbox, SandboxProvider, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider

HOST_SECRET = "host-secret-4711"
ROOT_FOLDERS = set("bin dev etc home lib lib32 lib64 proc run sbin srv tmp usr".split())  # noqa: SIM905


async def test_the_agent_is_no_root_and_holds_no_capability_and_cannot_gain_any(box: Sandbox) -> None:
    status = (await box.run("id -u; grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status")).output
    uid, *rest = status.split("\n")
    assert int(uid) >= 1000
    zero = "0000000000000000"
    assert rest[:5] == [f"CapPrm:\t{zero}", f"CapEff:\t{zero}", f"CapAmb:\t{zero}", "NoNewPrivs:\t1", "Seccomp:\t2"]
    assert (await box.run("whoami")).output == "agent\n"


FORBIDDEN = [
    "unshare --user --map-root-user id",
    "unshare --net id",
    "mount -t tmpfs none /srv",
    "umount /usr",
    "chroot / id",
    "nsenter --target 1 --mount id",
    "touch /usr/bin/planted",
    "touch /etc/planted",
    "touch /planted",
    "touch /dev/planted",
    "mknod /srv/sda b 8 0",
    "echo x > /proc/sys/kernel/hostname",
    "cat /proc/1/environ",
    "ls /proc/1/root/",
    "ls /proc/1/fd/",
    "kill -9 1 && kill -0 1 && false",
    "echo 1 > /proc/1/oom_score_adj",
]


async def test_forbidden_acts_fail_and_the_box_lives(box: Sandbox) -> None:
    for command in FORBIDDEN:
        assert (await box.run(command, timeout_s=10)).exit_code not in (0, None), command
    assert (await box.run("echo alive")).output == "alive\n"


async def test_a_new_user_namespace_is_refused_by_clone_as_well(box: Sandbox) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).syscall(56, 0x10000000 | 17, 0, 0, 0, 0))"
    if os.uname().machine == "x86_64":
        assert (await box.run(f"python3 -c '{code}'")).output == "-1\n"


SERVE = "import socket; s = socket.create_server(('127.0.0.1', 5000)); s.accept()"
JOIN = "until exec 9<>/dev/tcp/127.0.0.1/5000; do sleep 0.05; done 2> /dev/null; echo joined"


async def test_there_is_only_the_loopback_interface_and_it_is_up(box: Sandbox) -> None:
    assert (await box.run("tail -n +3 /proc/net/dev | cut -d: -f1")).output.split() == ["lo"]
    assert (await box.run(f'python3 -c "{SERVE}" & {JOIN}')).output == "joined\n"
    for target in ("1.1.1.1/53", "10.0.0.1/80"):
        assert (await box.run(f"exec 9<>/dev/tcp/{target}", timeout_s=5)).exit_code == 1


async def test_a_server_on_the_hosts_loopback_cannot_be_reached(box: Sandbox) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "refused" in (await box.run(f"exec 9<>/dev/tcp/127.0.0.1/{port}")).output


async def test_the_environment_is_only_what_the_spec_says(box: Sandbox) -> None:
    os.environ["LONGBREATH_TEST_SECRET"] = HOST_SECRET
    names = (await box.run("env | cut -d= -f1 | sort | xargs; echo $COLOUR $HOME $LANG")).output.splitlines()
    del os.environ["LONGBREATH_TEST_SECRET"]
    assert set(names[0].split()) <= {"COLOUR", "HOME", "LANG", "PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    assert names[1] == "blue /home/agent C.UTF-8"


async def test_no_file_of_the_host_is_visible(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(HOST_SECRET)
    project = Path(__file__).parents[3]
    seen = (await box.run(f"cat {tmp_path}/secret; ls {project} {Path.home()}/.cache; ls / | xargs")).output
    assert HOST_SECRET not in seen
    assert seen.count("No such file") + seen.count("Permission denied") == 3


async def test_nothing_but_the_declared_folders_and_no_path_of_the_project_is_visible(
    bubblewrap: BubblewrapProvider,
) -> None:
    box = await bubblewrap.start(SandboxSpec(label="bare"))
    assert set((await box.run("ls /")).output.split()) <= ROOT_FOLDERS
    assert str(Path(__file__).parents[3]) not in (await box.run("cat /proc/self/mountinfo /proc/*/cmdline")).output
    assert int((await box.run("ls /proc | grep -c '^[0-9]'")).output) < 8
    await box.stop()


async def test_set_user_id_programs_give_nothing(box: Sandbox) -> None:
    result = await box.run("sudo -n id; newgrp root <<< id; pkexec id")
    assert "uid=0" not in result.output


async def test_two_boxes_do_not_see_each_other(box: Sandbox, provider: SandboxProvider) -> None:
    other = await provider.start(SandboxSpec(label="other"))
    await other.run("echo mine > /tmp/x; sleep 77 &")
    assert (await box.run("cat /tmp/x; pgrep -f 'sleep 77' || echo none")).output.endswith("none\n")
    await other.stop()
