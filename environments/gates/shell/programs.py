"""Programs that run other programs: what each would run with its words and input."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise

from environments.gates.shell.builtins import BUILTINS, Handler
from environments.gates.shell.filters import FILTERS
from environments.gates.shell.foreign import read_awk, read_script
from environments.gates.shell.python_code import read_python
from environments.gates.shell.reader import Reader
from environments.gates.shell.state import HOLE, MAX_TEXT, Note

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash"})

# Programs that run the rest of their words: options that take a value, and how many operands come first.
_PREFIXES: dict[str, tuple[frozenset[str], int]] = {
    "command": (frozenset(), 0),
    "builtin": (frozenset(), 0),
    "exec": (frozenset({"-a"}), 0),
    "nohup": (frozenset(), 0),
    "setsid": (frozenset(), 0),
    "nice": (frozenset({"-n"}), 0),
    "ionice": (frozenset({"-c", "-n"}), 0),
    "stdbuf": (frozenset({"-i", "-o", "-e"}), 0),
    "time": (frozenset({"-f", "-o"}), 0),
    "timeout": (frozenset({"-k", "-s"}), 1),
    "busybox": (frozenset(), 0),
    "toybox": (frozenset(), 0),
    "coproc": (frozenset(), 0),
    "sudo": (frozenset({"-u", "-g", "-h", "-p", "-C"}), 0),
    "doas": (frozenset({"-u", "-C"}), 0),
    "chroot": (frozenset(), 1),
    "unshare": (frozenset(), 0),
    "nsenter": (frozenset({"-t"}), 0),
    "setpriv": (frozenset(), 0),
    "strace": (frozenset({"-e", "-o", "-p"}), 0),
    "ltrace": (frozenset({"-e", "-o", "-p"}), 0),
    "watch": (frozenset({"-n"}), 0),
    "caffeinate": (frozenset(), 0),
    "taskset": (frozenset(), 1),
    "chrt": (frozenset(), 1),
    "faketime": (frozenset(), 1),
}


def quote(head: Sequence[str], words: Sequence[str]) -> str:
    """Shell text that yields `head` as it stands and each of `words` as one field."""
    return " ".join([*head, *(shlex.quote(w) for w in words)])


def _rest(words: list[str], valued: frozenset[str], operands: int) -> list[str]:
    """What follows the options and the first `operands` operands."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        at += 2 if words[at] in valued else 1
        if words[at - 1] == "--":
            break
    return words[at + operands :]


def _prefix(reader: Reader, words: list[str], stdin: str) -> str:
    valued, operands = _PREFIXES[words[0]]
    if words[0] == "command" and len(words) > 1 and words[1] in ("-v", "-V"):
        return HOLE
    return reader.run_words(_rest(words, valued, operands), stdin)


def _env(reader: Reader, words: list[str], stdin: str) -> str:
    rest = words[1:]
    while rest and (rest[0].startswith("-") or "=" in rest[0]):
        word = rest.pop(0)
        if word in ("-S", "--split-string"):
            return reader.read(" ".join(rest), stdin)
        if word.startswith(("-S", "--split-string=")):
            return reader.read(quote([word.removeprefix("--split-string=").removeprefix("-S")], rest), stdin)
        if word in ("-u", "--unset", "-C", "--chdir"):
            del rest[:1]
        elif not word.startswith("-"):
            reader.assign(*word.split("=", 1))
    return reader.run_words(rest, stdin)


def _shell(reader: Reader, words: list[str], stdin: str) -> str:
    rest = words[1:]
    while rest and rest[0][:1] in "-+" and len(rest[0]) > 1:
        option = rest.pop(0)
        if option.startswith("-") and not option.startswith("--") and "c" in option:
            code = next((w for w in rest if not w.startswith("-")), "")
            after = rest[rest.index(code) + 1 :] if code in rest else []
            reader.state.variables.update({str(i): value for i, value in enumerate(after)})
            return reader.read_apart(code, stdin)
        if option in ("-o", "-O", "--rcfile", "--init-file"):
            del rest[:1]
        if option == "-s":
            break
    if rest and rest[0] != "-":
        return _file(reader, rest[0], stdin)
    return reader.read_apart(stdin)


def _file(reader: Reader, path: str, stdin: str) -> str:
    reader.touch(path, "read")
    if path in ("/dev/stdin", "/proc/self/fd/0"):
        return reader.read_apart(stdin)
    return reader.read_file_once(reader.state.resolve(path), stdin, apart=True)


def _source(reader: Reader, words: list[str], stdin: str) -> str:
    if len(words) < 2:
        return ""
    reader.touch(words[1], "read")
    full = reader.state.resolve(words[1])
    if words[1] == "/dev/stdin":
        return reader.read(stdin)
    return reader.read_file_once(full, stdin, apart=False)


def _eval(reader: Reader, words: list[str], stdin: str) -> str:
    return reader.read(" ".join(words[1:]), stdin)


def _su(reader: Reader, words: list[str], stdin: str) -> str:
    for flag in ("-c", "--command"):
        if flag in words[:-1]:
            return reader.read_apart(words[words.index(flag) + 1], stdin)
    return HOLE


def _trap(reader: Reader, words: list[str], stdin: str) -> str:
    code = next((w for w in words[1:] if not w.startswith("-")), "")
    return reader.read(code)


def _stdin_program(reader: Reader, words: list[str], stdin: str) -> str:
    return reader.read_apart(stdin)


def _xargs(reader: Reader, words: list[str], stdin: str) -> str:
    valued = frozenset({"-I", "-n", "-P", "-L", "-d", "-a", "-s", "-E"})
    inner = _rest(words, valued, 0) or ["echo"]
    given = stdin.replace("\x00", " ").split() or [HOLE]
    mark = next((words[i + 1] for i, w in enumerate(words[:-1]) if w == "-I"), None)
    mark = next((w[2:] for w in words if w.startswith("-I") and len(w) > 2), mark)
    if mark is None:
        return reader.run_words([*inner, *given[:64]], "")
    out = [reader.run_words([_filled(w, mark, value) for w in inner], "") for value in given[:16]]
    return "".join(out)


def _filled(word: str, mark: str, value: str) -> str:
    return word.replace(mark, value) if word.count(mark) * len(value) < MAX_TEXT else HOLE


def _parallel(reader: Reader, words: list[str], stdin: str) -> str:
    inner = _rest(words, frozenset({"-j"}), 0)
    command, _, values = " ".join(inner).partition(":::")
    for value in (values.split() or stdin.split() or [HOLE])[:16]:
        reader.read(_filled(command, "{}", value) if "{}" in command else f"{command} {value}")
    return HOLE


def _find_targets(words: list[str]) -> list[str]:
    starts: list[str] = []
    for word in words[1:]:
        if word.startswith(("-", "(", "!")):
            break
        starts.append(word)
    names = [words[i + 1] for i, w in enumerate(words[:-1]) if w in ("-name", "-iname")] or ["*"]
    return [f"{s.rstrip('/')}/{way}{name}" for s in starts or ["."] for name in names for way in ("", "*/")]


def _find(reader: Reader, words: list[str], stdin: str) -> str:
    targets = _find_targets(words)
    only_folders = any(a == "-type" and b == "d" for a, b in pairwise(words))
    if "-delete" in words and not only_folders:  # of folders, only empty ones go
        for target in targets:
            reader.touch(target, "remove")
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = words[at + 1 :]
            ends = [i for i, w in enumerate(inner) if w in (";", "+")]
            inner = inner[: ends[0]] if ends else inner
            for target in targets:
                reader.run_words([w.replace("{}", target) for w in inner], "")
    return "\n".join(targets) + "\n"


def _python(reader: Reader, words: list[str], stdin: str) -> str:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option.startswith("-c") or (not option.startswith("--") and option.endswith("c")):
            read_python(reader, option[2:] if option[:2] == "-c" and len(option) > 2 else "".join(rest[:1]))
            return HOLE
        if option == "-m":
            return reader.run_words(rest, stdin) if rest and rest[0] in ("pip", "http.server") else HOLE
        if option in ("-W", "-X"):
            del rest[:1]
    if not rest or rest[0] in ("-", "/dev/stdin"):
        read_python(reader, stdin)
        return HOLE
    reader.touch(rest[0], "read")
    read_python(reader, reader.state.files.get(reader.state.resolve(rest[0]), ""))
    return HOLE


def _make(reader: Reader, words: list[str], stdin: str) -> str:
    named = words[words.index("-f") + 1 : words.index("-f") + 2] if "-f" in words else ["Makefile", "makefile"]
    for name in named:
        text = reader.state.files.get(reader.state.resolve(name), "")
        for line in text.splitlines():
            if line.startswith("\t"):
                reader.read_apart(line.strip().lstrip("@-").replace("$$", "$"))
    return HOLE


def _awk(reader: Reader, words: list[str], stdin: str) -> str:
    rest = _rest(words, frozenset({"-v", "-F"}), 0)
    read_awk(reader, rest[0] if rest else "")
    return HOLE


def _scripted(reader: Reader, words: list[str], stdin: str) -> str:
    for at, word in enumerate(words[1:-1], 1):
        if word.startswith("-") and word[-1:] in ("e", "E", "r", "p") and not word.startswith("--"):
            read_script(reader, words[at + 1])
            return HOLE
    if len(words) == 1:
        read_script(reader, stdin)
    elif not words[1].startswith("-"):
        read_script(reader, reader.state.files.get(reader.state.resolve(words[1]), ""))
    return HOLE


def _bind_mount(reader: Reader, words: list[str], stdin: str) -> str:
    if len(words) > 1:
        reader.events.append(Note("privilege", f"{words[0]} changes what the box sees"))
    return HOLE


_HANDLERS: dict[str, Handler] = {
    **BUILTINS,
    **dict.fromkeys(_PREFIXES, _prefix),
    **dict.fromkeys(SHELLS, _shell),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("python", "python3", "pypy", "pypy3"), _python),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("perl", "ruby", "node", "php", "lua"), _scripted),
    **dict.fromkeys(("at", "batch"), _stdin_program),
    **dict.fromkeys(("mount", "umount"), _bind_mount),
    "env": _env,
    "eval": _eval,
    "su": _su,
    "runuser": _su,
    "script": _su,
    "flock": _su,
    "trap": _trap,
    "xargs": _xargs,
    "parallel": _parallel,
    "find": _find,
    "make": _make,
}


def run_program(reader: Reader, words: list[str], stdin: str, path: str) -> str:
    """What a program would do, and print. `path` is its resolved path when it was called by one, else empty."""
    handler = _HANDLERS.get(words[0])
    if handler is not None:
        return handler(reader, words, stdin)
    if words[0] in FILTERS:
        return FILTERS[words[0]](reader.state, words, stdin)
    if words[0].startswith("python"):
        return _python(reader, words, stdin)
    text = reader.state.files.get(path, "") if path else ""
    first = text.split("\n", 1)[0]
    if first.startswith("#!") and "python" in first:
        read_python(reader, text)
        return HOLE
    return reader.read_file_once(path, stdin, apart=True)
