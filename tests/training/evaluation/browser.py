"""A headless Chromium spoken to over its DevTools socket: what a page asks for, says and looks like."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import websockets

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-port=0", "--hide-scrollbars"),
)


class Page:
    """One tab. `events` holds every protocol event seen so far."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._number = socket, 0
        self.events: list[dict[str, Any]] = []

    async def send(self, method: str, **params: Any) -> Any:
        """One command; its result. Raises AssertionError with the protocol's error."""
        self._number += 1
        await self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(await asyncio.wait_for(self._socket.recv(), 60))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def open(self, path: Path) -> None:
        """Load a local file with console, network and exceptions watched; returns when it has settled."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.send("Page.navigate", url=path.as_uri())
        while await self.evaluate("document.readyState") != "complete":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return (await self.send("Runtime.evaluate", expression=expression, returnByValue=True))["result"].get("value")

    def of(self, *methods: str) -> list[dict[str, Any]]:
        """Events of these kinds."""
        return [e["params"] for e in self.events if e["method"] in methods]

    async def screenshot(self, path: Path, *, width: int, height: int) -> None:
        """The top left of the page as PNG, in the light scheme."""
        scheme = [{"name": "prefers-color-scheme", "value": "light"}]
        await self.send("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height}
        await self.send("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
        shot = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def page(profile: Path) -> AsyncIterator[Page]:
    """A fresh browser with its own profile folder; ended with its whole process group."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        for _ in range(600):
            if port_file.exists() and port_file.read_text().count("\n"):
                break
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        url = await _first_tab(port)
        async with websockets.connect(url, max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _first_tab(port: str) -> str:
    import httpx

    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(100):
            tabs = (await client.get(f"http://127.0.0.1:{port}/json")).json()
            found = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
            if found:
                return str(found[0])
            await asyncio.sleep(0.1)
    raise AssertionError("chromium opened no tab")
