"""What would make a harness wait for nothing: Nagle's algorithm, the garbage collector, a stream that holds back."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from contextlib import suppress

import httpx
from polar_fakes import PLENTY, STOP, ScriptedEngine, recorder_for

from environments.polar.server import serving
from infra.engines.base import Sampling


def socket_to(peer: tuple[str, int]) -> socket.socket:
    """This process's own end of the connection from `peer`."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            sock = socket.socket(fileno=os.dup(int(name)))
            with suppress(OSError):
                if sock.family == socket.AF_INET and sock.getpeername() == peer:
                    return sock
            sock.close()
    raise LookupError(f"no connection from {peer}")


async def test_small_writes_do_not_wait_for_the_clients_acknowledgement(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, serving(recorder) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"}")
        with socket_to(writer.get_extra_info("sockname")) as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        writer.close()
        await writer.wait_closed()


async def test_the_collector_passes_over_what_lives_as_long_as_the_server(tmp_path, tiny_folder, rendering):
    before = (gc.get_threshold(), gc.get_freeze_count())
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, serving(recorder):
        assert gc.get_freeze_count() > 100_000
        assert gc.get_threshold()[0] > before[0][0]
        async with serving(recorder):
            pass
        assert gc.get_freeze_count() > 100_000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


async def test_the_first_byte_leaves_at_the_first_token_though_nothing_can_be_shown_yet(
    tmp_path, tiny_folder, rendering
):
    class Pausing(ScriptedEngine):
        """Says its first token, and the rest when it is told to."""

        async def stream(self, request):
            async for delta in super().stream(request):
                yield delta
                await heard.wait()

    heard = asyncio.Event()
    engine = Pausing(tiny_folder, lambda r: "<think>\nhm\n</think>\n\nok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, serving(recorder):
        endpoint = recorder.open("r1", sampling=Sampling(), budget=PLENTY)
        body = {"model": "policy", "messages": [{"role": "user", "content": "Go."}], "stream": True}
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=30) as client,
            client.stream("POST", f"{endpoint.base_url}/v1/chat/completions", json=body) as response,
        ):
            lines = response.aiter_lines()
            assert '"role"' in await anext(lines)
            heard.set()
            assert "[DONE]" in [line async for line in lines if line][-1]
