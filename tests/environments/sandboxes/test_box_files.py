"""Files in and out of a box: exact, deterministic, and never through a link to the host."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from pathlib import Path

import pytest

from environments.sandboxes.base import (
    BoxLimits,
    ReadonlyMount,
    Sandbox,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
    StateChange,
)

BUILD = """
mkdir -p a/b empty; echo hello > a/b/f; chmod 640 a/b/f; ln -s ../a/b/f empty/link; ln a/b/f hard
printf '#!/bin/sh\\n' > run; chmod 755 run; chmod 700 empty; ln -s /nowhere dangling; echo ü > 'ü ö'
"""


def names(state: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(state)) as tar:
        return tar.getnames()


async def test_what_is_put_is_got_and_belongs_to_the_agent(box: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    await box.put("deep/er/file.bin", data, mode=0o750)
    assert await box.get("/srv/deep/er/file.bin") == data
    seen = await box.run("stat -c '%a %U' deep deep/er deep/er/file.bin; echo x >> deep/er/file.bin")
    assert (seen.output, seen.exit_code) == ("755 agent\n755 agent\n750 agent\n", 0)
    await box.put("/tmp/elsewhere", b"1")
    await box.put("/tmp/elsewhere", b"2")
    assert await box.get("/tmp/elsewhere") == b"2"


async def test_what_is_no_file_is_not_found_and_nothing_hangs(box: Sandbox) -> None:
    await box.run(
        "mkdir d; mkfifo p; ln -s loop loop; truncate -s 1T holes;"
        "python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(\"u\")'"
    )
    for path in ("absent", "d", "p", "loop", "holes", "u", "/dev/zero", "d/x/y", "/proc/1/mem"):
        with pytest.raises(FileNotFoundError, match="no readable file at"):
            await box.get(path)


async def test_links_are_resolved_inside_the_box_and_never_reach_the_host(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    up = "../" * 40
    await box.run(
        f"ln -s {secret} s; ln -s {up}{secret} t; ln -s {tmp_path} d;"
        f"ln -s /etc/passwd p; ln -s /proc/self/root/{secret} m"
    )
    for path in ("s", "t", "d/secret", f"{up}{secret}", str(secret), "m"):
        with pytest.raises(FileNotFoundError):
            await box.get(path)
    assert b"agent:x:" in await box.get("p")
    with pytest.raises(OSError, match="d"):
        await box.put("d/new", b"x")
    await box.put("s", b"box")
    assert (secret.read_text(), await box.get("s")) == ("host", b"box")
    assert sorted(os.listdir(tmp_path)) == ["secret"]


async def test_read_only_parts_cannot_be_put_to(box: Sandbox) -> None:
    for path in ("/usr/bin/planted", "/etc/passwd", "/planted"):
        with pytest.raises(OSError, match="Read-only"):
            await box.put(path, b"x")


async def test_a_state_comes_back_equal_in_a_fresh_box_with_modes_and_links(
    box: Sandbox, provider: SandboxProvider
) -> None:
    await box.run(BUILD)
    state = await box.export_state()
    fresh = await provider.start(SandboxSpec(label="fresh"))
    await fresh.import_state(state)
    assert await fresh.export_state() == state
    assert await fresh.diff(state) == ()
    look = await fresh.run("stat -c '%a %h %U %N' a/b/f hard run empty empty/link dangling; cat empty/link hard 'ü ö'")
    assert look.output.splitlines() == [
        "640 2 agent 'a/b/f'",
        "640 2 agent 'hard'",
        "755 1 agent 'run'",
        "700 2 agent 'empty'",
        "777 1 agent 'empty/link' -> '../a/b/f'",
        "777 1 agent 'dangling' -> '/nowhere'",
        "hello",
        "hello",
        "ü",
    ]
    await fresh.stop()


async def test_the_tar_depends_on_content_alone(box: Sandbox, provider: SandboxProvider) -> None:
    await box.run("mkdir d; echo 1 > d/a; echo 2 > b")
    other = await provider.start(SandboxSpec(label="other order"))
    await other.run("echo 2 > b; touch -d 1999-01-01 b; mkdir d; echo x > d/x; rm d/x; echo 1 > d/a")
    assert await other.export_state() == await box.export_state()
    await other.stop()


async def test_diff_names_every_kind_of_change_in_order(box: Sandbox) -> None:
    await box.run("echo 1 > same; echo 1 > content; echo 1 > mode; echo 1 > gone; ln -s a link; mkdir was_folder")
    before = await box.export_state()
    await box.run(
        "echo 2 > content; chmod 600 mode; rm gone; ln -sf b link; rmdir was_folder; touch was_folder new; touch same"
    )
    assert await box.diff(before) == (
        StateChange(path="content", kind="changed"),
        StateChange(path="gone", kind="removed"),
        StateChange(path="link", kind="changed"),
        StateChange(path="mode", kind="changed"),
        StateChange(path="new", kind="added"),
        StateChange(path="was_folder", kind="changed"),
    )


async def test_pipes_sockets_giants_of_holes_and_endless_depth_do_not_hurt_an_export(box: Sandbox) -> None:
    await box.run(
        "mkfifo p; python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(\"u\")'; truncate -s 100G giant;"
        "for i in 1 2 3 4; do truncate -s 3M small_holes$i; done; echo real > z; ln -s / root; ln -s . self;"
        'python3 -c \'import os\nfor i in range(3000): os.mkdir("dddd"); os.chdir("dddd")\''
    )
    state = await box.export_state()
    found = names(state)
    assert [n for n in found if "dddd" not in n] == ["root", "self", "small_holes1", "small_holes2", "z"]
    assert max(len(n) for n in found) <= 3500
    assert len(state) < 12 * 2**20


async def test_an_export_of_a_full_disk_with_holes_fits_a_fresh_box(box: Sandbox, provider: SandboxProvider) -> None:
    await box.run("truncate -s 7M holes; head -c 8000000 /dev/urandom > data")
    state = await box.export_state()
    fresh = await provider.start(SandboxSpec(label="fresh", limits=BoxLimits(disk_mb=8)))
    await fresh.import_state(state)
    assert await fresh.export_state() == state
    await fresh.stop()


async def test_an_export_while_the_tree_changes_neither_hangs_nor_raises(box: Sandbox) -> None:
    await box.run(
        "(while :; do mkdir -p t/u; echo x > t/u/f; rm -rf t; ln -s /etc t; rm t; mkfifo t; rm t; done)"
        "> /dev/null 2>&1 &"
    )
    for _ in range(30):
        state = await box.export_state()
        assert "t/passwd" not in names(state)


async def test_locked_files_and_folders_are_exported_and_stay_locked(box: Sandbox) -> None:
    await box.run("mkdir d; echo x > d/f; chmod 0 d/f; chmod 0 d")
    state = await box.export_state()
    assert names(state) == ["d", "d/f"]
    assert (await box.run("stat -c %a d; chmod 700 d; stat -c %a d/f")).output == "0\n0\n"


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a/../../b"])
async def test_a_tar_that_leaves_the_tree_is_refused(box: Sandbox, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match="leaves the tree"):
        await box.import_state(buffer.getvalue())


async def test_a_tar_that_writes_through_its_own_link_is_stopped(box: Sandbox) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("out")
        link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("out/planted"))
    with pytest.raises(OSError, match="symbolic"):
        await box.import_state(buffer.getvalue())
    assert (await box.run("ls /tmp")).output == ""


async def test_a_device_in_a_tar_is_refused(box: Sandbox) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        device = tarfile.TarInfo("null")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    with pytest.raises(ValueError, match="no file, folder or link"):
        await box.import_state(buffer.getvalue())


async def test_files_of_proc_are_never_read_by_the_host(box: Sandbox) -> None:
    await box.run("ln -s /proc/kmsg answer; ln -s /proc/self/environ env")
    for path in ("answer", "env", "/proc/version", "/proc/1/environ"):
        with pytest.raises(FileNotFoundError):
            await box.get(path)


async def test_what_is_mounted_in_the_workdir_is_no_state(provider: SandboxProvider, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("x")
    tmp_path.chmod(0o755)
    spec = SandboxSpec(label="mount", mounts=(ReadonlyMount(host=tmp_path, box="/srv/tools"),))
    box = await provider.start(spec)
    assert (await box.run("echo y > own; ls tools")).output == "tool\n"
    assert names(await box.export_state()) == ["own"]
    await box.stop()


async def test_files_of_a_stopped_box_are_refused_even_in_the_middle_of_an_export(provider: SandboxProvider) -> None:
    box = await provider.start(SandboxSpec(label="stopped"))
    await box.run("for i in $(seq 2000); do echo $i > $i; done")
    export = asyncio.create_task(box.export_state())
    await asyncio.sleep(0)  # begun, in a thread; to sleep longer would be a bet on how long 2000 files take
    await box.stop()
    with pytest.raises(SandboxError, match="has been stopped"):
        await export
    for act in (box.get("1"), box.put("1", b""), box.export_state(), box.run("true")):
        with pytest.raises(SandboxError, match="has been stopped"):
            await act
