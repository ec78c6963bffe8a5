"""Commands that reach for the network: by name, by address, by fetching packages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.gates.finding import Act
from environments.gates.paths import named

_TOOLS_NAMES = (
    "curl wget nc ncat netcat socat telnet ssh scp sftp ftp tftp ping ping6 dig nslookup host nmap traceroute "
    "aria2c lynx w3m links elinks whois arp tcpdump ip6tables iptables openvpn"
)
_TOOLS = frozenset(_TOOLS_NAMES.split())
_LOOPBACK = re.compile(
    r"^(?:\w+://)?(?:[^@/]*@)?(?:127\.\d+\.\d+\.\d+|localhost|\[?::1\]?|0\.0\.0\.0)(?::\d+)?(?:[/:?#]|$)"
)
_HOST = re.compile(r"^\w+://|^[\w.-]+\.[a-zA-Z]{2,}(?:[:/]|$)|^\d+\.\d+\.\d+\.\d+|^localhost|^\[?::1")
_INSTALL: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("apt", "apt-get", "yum", "dnf", "apk", "brew", "pacman"),
        frozenset({"install", "update", "upgrade", "add", "download", "-S", "-Sy"}),
    ),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), frozenset({"install", "i", "add", "ci", "publish", "view"})),
    **dict.fromkeys(("cargo", "go", "gem"), frozenset({"install", "add", "get", "fetch", "publish"})),
    **dict.fromkeys(("npx", "uvx", "bunx"), frozenset()),
}


def network(words: Sequence[str]) -> tuple[Act, str] | None:
    """A network tool whose hosts are not all the loopback."""
    name = words[0]
    if named(name, _TOOLS):
        if any(w in ("--version", "--help", "-V", "-h") for w in words[1:2]):
            return None
        hosts = [w for w in words[1:] if _HOST.match(w)]
        if not hosts or not all(_LOOPBACK.match(h) for h in hosts):
            return "network", f"{name} reaches for the network"
    if name == "rsync" and any(re.match(r"^[\w.@-]+::?[^/]*", w) and ":" in w for w in words[1:]):
        return "network", "rsync with a remote host"
    if name == "openssl" and words[1:2] == ("s_client",):
        return "network", "openssl s_client opens a connection"
    return None


def install(words: Sequence[str]) -> tuple[Act, str] | None:
    """A package manager that would fetch. What is installed from a path is local."""
    name = words[0]
    verbs = _INSTALL.get(name)
    if verbs is not None and (not verbs or any(w in verbs for w in words[1:3])):
        return "network", f"{name} {' '.join(words[1:2])} fetches from the network"
    rest = list(words[2:] if name == "uv" and words[1:2] == ("pip",) else words[1:])
    if (re.fullmatch(r"pip[\d.]*|uv|poetry|conda", name) or name == "pipx") and rest[:1] in (
        ["install"],
        ["download"],
        ["add"],
    ):
        local = "--no-index" in rest or all(w.startswith((".", "/", "-")) for w in rest[1:])
        return None if local and len(rest) > 1 else ("network", f"{name} {rest[0]} fetches from the network")
    return None
