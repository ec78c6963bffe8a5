"""The declared ways between box and host: exposed sockets and read-only mounts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from environments.sandboxes.base import (
    ExposedSocket,
    ReadonlyMount,
    Sandbox,
    SandboxError,
    SandboxProvider,
    SandboxSpec,
)

URL = "http://127.0.0.1:8080"
FETCH = f"python3 -c 'from urllib import request as u; print(u.urlopen(\"{URL}/{{path}}\", {{data}}).read().decode())'"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A small HTTP server: says the path and how long the body was; /stream comes in pieces."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(
        (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
    )
    body = await reader.readexactly(length)
    path = head.split(" ")[1]
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    if path == "/stream":
        for piece in ("one ", "two ", "three"):
            writer.write(piece.encode())
            await writer.drain()
            await asyncio.sleep(0.05)
    else:
        writer.write(f"{path} {len(body)}".encode())
    await writer.drain()
    writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "proxy.sock"
    server = await asyncio.start_unix_server(answer, str(path))
    yield path
    server.close()


@pytest.fixture
async def joined_box(provider: SandboxProvider, server: Path) -> AsyncIterator[Sandbox]:
    box = await provider.start(SandboxSpec(label="joined", exposed=(ExposedSocket(host_socket=server, port=8080),)))
    yield box
    await box.stop()


async def test_a_box_without_network_reaches_the_exposed_socket_and_nothing_else(joined_box: Sandbox) -> None:
    assert (await joined_box.run(FETCH.format(path="hello", data=None))).output == "/hello 0\n"
    assert (await joined_box.run(FETCH.format(path="stream", data=None))).output == "one two three\n"
    assert "refused" in (await joined_box.run("exec 9<>/dev/tcp/127.0.0.1/8081")).output


async def test_large_bodies_and_many_connections_pass(joined_box: Sandbox) -> None:
    assert (await joined_box.run(FETCH.format(path="big", data='b"x" * 3000000'))).output == "/big 3000000\n"
    many = "import threading, urllib.request as u\n" + (
        'def get(i): print(u.urlopen(f"http://127.0.0.1:8080/{i}").read().decode())\n'
        "ts = [threading.Thread(target=get, args=(i,)) for i in range(20)]\n"
        "[t.start() for t in ts]\n[t.join() for t in ts]"
    )
    await joined_box.put("many.py", many.encode())
    lines = (await joined_box.run("python3 many.py")).output.splitlines()
    assert sorted(lines) == sorted(f"/{i} 0" for i in range(20))


async def test_the_agent_finds_no_relay_to_kill(joined_box: Sandbox) -> None:
    await joined_box.run("kill -9 -1; pkill -9 .")
    await joined_box.run("true")
    assert (await joined_box.run(FETCH.format(path="still", data=None))).output.endswith("/still 0\n")


async def test_more_connections_than_allowed_are_closed_and_later_ones_served(joined_box: Sandbox) -> None:
    hold = (
        "import socket\ns = [socket.create_connection(('127.0.0.1', 8080)) for _ in range(100)]\nprint(s[99].recv(1))"
    )
    await joined_box.put("hold.py", hold.encode())
    assert (await joined_box.run("python3 hold.py", timeout_s=10)).output == "b''\n"
    await asyncio.sleep(0.2)
    assert (await joined_box.run(FETCH.format(path="after", data=None))).output == "/after 0\n"


async def test_a_host_socket_that_is_gone_is_a_closed_connection_in_the_box(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    spec = SandboxSpec(label="gone", exposed=(ExposedSocket(host_socket=tmp_path / "absent", port=8080),))
    box = await provider.start(spec)
    result = await box.run(FETCH.format(path="x", data=None), timeout_s=10)
    assert (result.exit_code, result.fault) == (1, None)
    await box.stop()


async def test_mounts_are_seen_read_only(provider: SandboxProvider, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool runs\n")
    (tmp_path / "tool").chmod(0o755)
    tmp_path.chmod(0o755)
    box = await provider.start(SandboxSpec(label="mount", mounts=(ReadonlyMount(host=tmp_path, box="/opt/tool"),)))
    assert (await box.run("/opt/tool/tool")).output == "tool runs\n"
    for act in ("touch /opt/tool/new", "echo x > /opt/tool/tool", "rm /opt/tool/tool", "chmod 777 /opt/tool/tool"):
        assert (await box.run(act)).exit_code == 1
    with pytest.raises(OSError, match="Read-only"):
        await box.put("/opt/tool/new", b"x")
    assert (tmp_path / "tool").read_text() == "#!/bin/sh\necho tool runs\n"
    await box.stop()


async def test_a_missing_mount_and_a_privileged_port_are_refused_with_the_reason(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    with pytest.raises(SandboxError, match="is not there"):
        await provider.start(SandboxSpec(label="x", mounts=(ReadonlyMount(host=tmp_path / "no", box="/opt/t"),)))
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        with pytest.raises(SandboxError, match=r"chmod -R o\+rX"):
            await provider.start(SandboxSpec(label="x", mounts=(ReadonlyMount(host=tmp_path, box="/opt/t"),)))
    with pytest.raises(ValueError, match="1024 to 65535"):
        await provider.start(SandboxSpec(label="x", exposed=(ExposedSocket(host_socket=tmp_path, port=80),)))
    with pytest.raises(ValueError, match="outside usr"):
        await provider.start(SandboxSpec(label="x", workdir="/usr/share"))
