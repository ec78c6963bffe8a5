"""Output of a command in constant memory: its head and its tail, and how much lay between."""

from __future__ import annotations

MARK = "\n[... %d bytes of output cut ...]\n"


class Output:
    """Keeps at most `limit_bytes`: the first half and the last half of what was fed."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def feed(self, data: bytes) -> None:
        """Add bytes; what exceeds the limit is counted and forgotten."""
        self._seen += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut."""
        return self._seen > len(self._head) + len(self._tail)

    def text(self) -> bytes:
        """UTF-8 text; bytes that are none are shown as replacement characters."""
        cut = self._seen - len(self._head) - len(self._tail)
        middle = MARK % cut if cut else ""
        if not cut:
            return bytes(self._head + self._tail).decode("utf-8", "replace").encode()
        head, tail = (bytes(part).decode("utf-8", "replace") for part in (self._head, self._tail))
        return (head + middle + tail).encode()
