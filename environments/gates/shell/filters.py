"""Programs whose output follows from their words and input: the ones that text is hidden with."""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable

from environments.gates.shell.state import DECODED, HOLE, MAX_TEXT, ShellState
from environments.gates.shell.words import unescape

_Filter = Callable[[ShellState, list[str], str], str]


def _operands(words: list[str]) -> list[str]:
    return [w for w in words[1:] if not w.startswith("-") or w == "-"]


def _input(state: ShellState, names: list[str], stdin: str) -> str:
    if not names or names == ["-"]:
        return stdin
    return "".join(state.files.get(state.resolve(n), HOLE) for n in names)


def _echo(state: ShellState, words: list[str], stdin: str) -> str:
    rest = words[1:]
    escapes = newline = False
    while rest and rest[0].startswith("-") and set(rest[0][1:]) and set(rest[0][1:]) <= set("neE"):
        flags = rest.pop(0)
        escapes, newline = escapes or "e" in flags, newline or "n" in flags
    text = " ".join(rest)
    return (unescape(text) if escapes else text) + ("" if newline else "\n")


def _printf(state: ShellState, words: list[str], stdin: str) -> str:
    rest = words[1:]
    if rest[:1] == ["--"]:
        del rest[:1]
    if rest[:1] == ["-v"] and len(rest) > 2:
        state.variables[rest[1]] = _printf(state, ["printf", *rest[2:]], "")
        return ""
    if not rest:
        return ""
    out, values = unescape(rest[0]), rest[1:]
    pieces = out.replace("%b", "%s").replace("%q", "%s").split("%s")
    if len(pieces) == 1:
        return out
    rounds = max(1, -(-len(values) // (len(pieces) - 1)))
    if rounds * len(out) > MAX_TEXT:
        return HOLE
    padded = values + [""] * (rounds * (len(pieces) - 1) - len(values))
    given = iter(padded)
    return "".join(
        p + (next(given) if i < len(pieces) - 1 else "") for _ in range(rounds) for i, p in enumerate(pieces)
    )


def _cat(state: ShellState, words: list[str], stdin: str) -> str:
    return _input(state, _operands(words), stdin)


def _decode(text: str, decoder: Callable[[bytes], bytes]) -> str:
    if HOLE in text or DECODED in text or not text.strip():
        return DECODED
    try:
        return decoder("".join(text.split()).encode("ascii")).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return DECODED


def _base(state: ShellState, words: list[str], stdin: str) -> str:
    names = _operands(words)
    if not any(w in ("-d", "-D", "--decode", "-di") for w in words):
        return HOLE
    decoder = base64.b32decode if words[0] == "base32" else base64.b64decode
    return _decode(_input(state, names, stdin), decoder)


def _xxd(state: ShellState, words: list[str], stdin: str) -> str:
    if not any(w.startswith("-") and "r" in w for w in words[1:]):
        return HOLE
    return _decode(_input(state, _operands(words), stdin), binascii.unhexlify)


def _openssl(state: ShellState, words: list[str], stdin: str) -> str:
    if "-d" not in words:
        return HOLE
    return _decode(stdin, base64.b64decode) if words[1:2] == ["base64"] or "-base64" in words else DECODED


def _unpack(state: ShellState, words: list[str], stdin: str) -> str:
    return DECODED


def _gzip(state: ShellState, words: list[str], stdin: str) -> str:
    return DECODED if any(w.startswith("-") and "d" in w for w in words[1:]) else HOLE


def _rev(state: ShellState, words: list[str], stdin: str) -> str:
    return "\n".join(line[::-1] for line in _input(state, _operands(words), stdin).split("\n"))


def _tr_set(text: str) -> str:
    out: list[str] = []
    text = unescape(text)
    at = 0
    while at < len(text):
        if text[at + 1 : at + 2] == "-" and at + 2 < len(text) and ord(text[at + 2]) - ord(text[at]) < 256:
            out += map(chr, range(ord(text[at]), ord(text[at + 2]) + 1))
            at += 3
        else:
            out.append(text[at])
            at += 1
    return "".join(out)


def _tr(state: ShellState, words: list[str], stdin: str) -> str:
    sets = [_tr_set(w) for w in _operands(words)]
    flags = "".join(w for w in words[1:] if w.startswith("-"))
    if not sets or "[:" in "".join(words):
        return HOLE
    if "d" in flags:
        return stdin.translate({ord(c): None for c in sets[0]})
    if len(sets) < 2 or not sets[1] or "s" in flags:
        return HOLE
    padded = sets[1] + sets[1][-1] * max(0, len(sets[0]) - len(sets[1]))
    return stdin.translate(dict(zip(map(ord, sets[0]), padded, strict=False)))


def _same(state: ShellState, words: list[str], stdin: str) -> str:
    return HOLE if any("/" in w or "." in w for w in _operands(words)) else stdin


def _rot13(state: ShellState, words: list[str], stdin: str) -> str:
    return codecs.encode(stdin, "rot13")


def _name(state: ShellState, words: list[str], stdin: str) -> str:
    last = words[-1].rstrip("/")
    return (last.rsplit("/", 1)[-1] if words[0] == "basename" else last.rsplit("/", 1)[0]) + "\n"


def _which(state: ShellState, words: list[str], stdin: str) -> str:
    return "".join(f"/usr/bin/{w}\n" for w in _operands(words))


def _pwd(state: ShellState, words: list[str], stdin: str) -> str:
    return state.cwd + "\n"


def _realpath(state: ShellState, words: list[str], stdin: str) -> str:
    return "".join(state.resolve(w) + "\n" for w in _operands(words))


def _nothing(state: ShellState, words: list[str], stdin: str) -> str:
    return ""


FILTERS: dict[str, _Filter] = {
    **dict.fromkeys(("base64", "base32"), _base),
    **dict.fromkeys(("gunzip", "zcat", "xzcat", "bzcat", "unxz", "uudecode"), _unpack),
    **dict.fromkeys(("gzip", "xz", "bzip2", "zstd"), _gzip),
    **dict.fromkeys(("basename", "dirname"), _name),
    **dict.fromkeys(("which", "whereis"), _which),
    **dict.fromkeys(("realpath", "readlink"), _realpath),
    **dict.fromkeys(("true", "false", ":", "sleep", "wait", "mkdir", "touch", "chmod"), _nothing),
    **dict.fromkeys(("sort", "uniq", "tail", "head", "sponge"), _same),
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "xxd": _xxd,
    "openssl": _openssl,
    "rev": _rev,
    "tr": _tr,
    "rot13": _rot13,
    "pwd": _pwd,
}
"""Name -> (state, words, stdin) -> what it would print."""
