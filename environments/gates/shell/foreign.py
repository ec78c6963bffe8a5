"""Code in other languages, read by its string literals: enough to see the shell commands it would run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from environments.gates.shell.state import Note

if TYPE_CHECKING:
    from environments.gates.shell.reader import Reader

_LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`|\bq[qx]?[\{\(]([^\}\)]*)[\}\)]", re.DOTALL)
_RUNS = re.compile(r"\b(system|exec\w*|spawn\w*|popen|qx|Popen|shell_exec|passthru)\b|`|%x", re.IGNORECASE)
_NETWORK = re.compile(
    r"IO::Socket|LWP::|Net::HTTP|TCPSocket|open-uri|require\(['\"](?:node:)?(?:net|https?|dgram|tls)['\"]\)|\bfetch\("
)
_WRITES = re.compile(r"writeFile\w*|appendFile\w*|unlink\w*|rename\w*|File\.(?:write|delete)|chmod\w*|open\w*\s*\(")
_AWK_SINK = re.compile(r">{1,2}\s*\"([^\"]+)\"")
_LOOPBACK = re.compile(r"127\.0\.0\.1|localhost|\[?::1\]?")


def _literals(code: str) -> list[str]:
    return [next((g for g in match.groups() if g is not None), "") for match in _LITERAL.finditer(code)]


def read_script(reader: Reader, code: str) -> None:
    """Perl, Ruby, JavaScript, PHP, Lua: run what their literals say when the code starts programs."""
    if _NETWORK.search(code) and not _LOOPBACK.search(code):
        reader.events.append(Note("network", "opens a connection from a script"))
    literals = _literals(code)
    if _RUNS.search(code):
        for text in literals:
            reader.read_apart(text)
        reader.run_words([text for text in literals if text], "")
    if _WRITES.search(code):
        for text in literals:
            if text and "\n" not in text:
                reader.touch(text, "write")


def read_awk(reader: Reader, code: str) -> None:
    """awk: `system("...")`, `"..." | getline`, `print | "..."`, `print > "file"`."""
    if "system" in code or "|" in code:
        for text in _literals(code):
            reader.read_apart(text)
    if "/inet/" in code:
        reader.events.append(Note("network", "awk opens an /inet/ connection"))
    for path in _AWK_SINK.findall(code):
        reader.touch(path, "write")
