"""Python that a shell command would run, read by its syntax tree: programs started, files changed, connections."""

from __future__ import annotations

import ast
import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING

from environments.gates.shell.foreign import read_script
from environments.gates.shell.state import HOLE, MAX_TEXT, Note

if TYPE_CHECKING:
    from environments.gates.shell.reader import Reader

_RUNNERS = frozenset(
    {
        *(
            f"subprocess.{n}"
            for n in ("run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput")
        ),
        *("os.system", "os.popen", "pty.spawn", "asyncio.create_subprocess_shell", "asyncio.create_subprocess_exec"),
        *("commands.getoutput", "pexpect.run", "pexpect.spawn"),
    }
)
_OPENERS = (
    *("urllib.request.urlopen", "urllib.request.urlretrieve", "urllib.request.Request", "urllib2.urlopen"),
    *("requests.", "httpx.", "aiohttp.", "http.client.HTTP", "ftplib.", "smtplib.", "telnetlib.", "paramiko."),
    *("socket.create_connection", "socket.getaddrinfo", "socket.gethostbyname", "websocket.", "websockets."),
)
_PATH_WRITES = {
    **dict.fromkeys(("write_text", "write_bytes", "touch", "symlink_to", "hardlink_to"), "write"),
    **dict.fromkeys(("unlink", "rmdir", "rename", "replace"), "remove"),
    "chmod": "mode",
}
_FILE_CALLS = {
    **dict.fromkeys(("os.truncate", "os.open", "os.mknod", "os.chmod", "os.utime", "os.chown"), "write"),
    **dict.fromkeys(("os.remove", "os.unlink", "os.rename", "os.replace", "shutil.move", "shutil.rmtree"), "remove"),
}
_COPIES = frozenset({"shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.move", "os.rename", "os.replace"})
_LINKS = frozenset({"os.symlink", "os.link"})
_MAX_NODES = 5_000


def read_python(reader: Reader, code: str) -> None:
    """Note what the code would do. Code that is no Python is read by its string literals alone."""
    if not code.strip() or code == HOLE:
        return
    try:
        tree = ast.parse(code.replace(HOLE, "_unknown_"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        read_script(reader, code)
        return
    _PythonReader(reader).read(tree)


class _PythonReader:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.names: dict[str, str] = {}  # local name -> dotted name of what was imported
        self.values: dict[str, str] = {}  # variable -> its text, where that is a constant

    def read(self, tree: ast.Module) -> None:
        nodes = [node for _, node in zip(range(_MAX_NODES), ast.walk(tree), strict=False)]
        for node in nodes:
            self._bind(node)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._call(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                self.names[item.asname or item.name.split(".")[0]] = (
                    item.name if item.asname else item.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for item in node.names:
                self.names[item.asname or item.name] = f"{node.module}.{item.name}"
            if node.names[0].name == "*":
                known = (*_RUNNERS, *_FILE_CALLS, *_COPIES, *_LINKS)
                self.names |= {n.rpartition(".")[2]: n for n in known if n.rpartition(".")[0] == node.module}
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, text = node.targets[0].id, self._text(node.value)
            if text is not None:
                self.values[name] = text
            elif isinstance(node.value, (ast.Attribute, ast.Name, ast.Call)):
                self.names[name] = self._dotted(node.value)

    def _dotted(self, node: ast.AST, depth: int = 0) -> str:
        """`os.system` for the ways to say it: aliases, `__import__('os').system`, `getattr(os, 'system')`."""
        if depth > 20:
            return HOLE
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value, depth + 1)}.{node.attr}"
        if isinstance(node, ast.Call):
            function = self._dotted(node.func, depth + 1)
            first = self._text(node.args[0]) if node.args else None
            if function in ("__import__", "importlib.import_module") and first is not None:
                return first
            if function == "getattr" and len(node.args) > 1:
                return f"{self._dotted(node.args[0], depth + 1)}.{self._text(node.args[1])}"
            return f"{function}()"
        return HOLE

    def _text(self, node: ast.AST, depth: int = 0) -> str | None:
        """The text of a constant expression, None when it is none or too long to follow."""
        text = self._constant(node, depth)
        return text if text is None or len(text) <= MAX_TEXT else None

    def _constant(self, node: ast.AST, depth: int) -> str | None:
        if depth > 20:
            return None
        if isinstance(node, ast.Constant):
            value = node.value
            return value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else None
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._text(node.left, depth + 1), self._text(node.right, depth + 1)
            return None if left is None and right is None else (left or HOLE) + (right or HOLE)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(v, depth + 1) or HOLE for v in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, depth + 1)
        return self._text_of_call(node, depth) if isinstance(node, ast.Call) else None

    def _text_of_call(self, node: ast.Call, depth: int) -> str | None:
        name = self._dotted(node.func)
        inner = self._text(node.args[0], depth + 1) if node.args else None
        if name.endswith(("b64decode", "unhexlify", "bytes.fromhex")) and inner is not None:
            decode: Callable[[str], bytes] = base64.b64decode if name.endswith("b64decode") else bytes.fromhex
            try:
                return decode(inner).decode("utf-8", "replace")
            except (binascii.Error, ValueError):
                return None
        if name == "chr" and isinstance(node.args[0] if node.args else None, ast.Constant):
            number = node.args[0].value  # type: ignore[attr-defined]
            return chr(number) if isinstance(number, int) and 0 <= number < 0xD800 else None
        if name.split(".")[-1] in ("Path", "PurePath", "expanduser", "abspath", "str", "PosixPath"):
            return inner
        if isinstance(node.func, ast.Attribute):
            return self._text_of_method(node.func, node.args, depth)
        return None

    def _text_of_method(self, function: ast.Attribute, args: list[ast.expr], depth: int) -> str | None:
        own = self._text(function.value, depth + 1)
        if function.attr in ("decode", "encode", "strip", "format", "resolve", "absolute"):
            return own
        if function.attr == "join" and own is not None and args and isinstance(args[0], (ast.List, ast.Tuple)):
            return own.join(self._text(e, depth + 1) or HOLE for e in args[0].elts)
        if function.attr == "replace" and own is not None and len(args) == 2:
            old, new = self._text(args[0], depth + 1) or HOLE, self._text(args[1], depth + 1) or ""
            return own.replace(old, new) if own.count(old) * len(new) < MAX_TEXT else None
        return own[::-1] if function.attr == "reverse" and own is not None else None

    def _call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        first = self._text(node.args[0]) if node.args else None
        if name in _RUNNERS or name.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
            self._program(name, node)
        elif name in ("exec", "eval", "compile") and first is not None:
            read_python(self.reader, first)
        elif name == "os.kill" and node.args:
            self.reader.run_words(["kill", ast.unparse(node.args[0])], "")
        elif name.startswith(_OPENERS):
            self._open_connection(name, first)
        elif name.endswith((".connect", ".connect_ex")) and node.args and isinstance(node.args[0], ast.Tuple):
            self._open_connection(name, self._text(node.args[0].elts[0]) if node.args[0].elts else None)
        elif name in ("ctypes.CDLL", "ctypes.PyDLL"):
            self.reader.events.append(Note("tamper", "loads native code through ctypes"))
        else:
            self._file(name, node, first)

    def _program(self, name: str, node: ast.Call) -> None:
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg in ("args", "cmd", "command"))]
        if name.startswith(("os.spawn", "os.posix_spawn")):
            arguments = arguments[1:] if name.startswith("os.spawn") else arguments
        if not arguments:
            return
        for value in arguments[:2]:
            if isinstance(value, (ast.List, ast.Tuple)):
                self.reader.run_words([self._text(e) or HOLE for e in value.elts], "")
                return
        texts = [self._text(a) for a in arguments]
        if name.startswith(("os.exec", "os.spawn", "os.posix_spawn")) or name.endswith("subprocess_exec"):
            self.reader.run_words([t or HOLE for t in texts[:1] + texts[2:]], "")
        elif texts[0] is not None:
            self.reader.read_apart(texts[0])

    def _open_connection(self, name: str, target: str | None) -> None:
        host = (target or "").split("://")[-1].split("/")[0].rsplit("@", 1)[-1]
        if not host.startswith(("127.", "localhost", "[::1]", "::1")):
            self.reader.events.append(Note("network", f"python {name}({target or '...'})"))

    def _file(self, name: str, node: ast.Call, first: str | None) -> None:
        second = self._text(node.args[1]) if len(node.args) > 1 else None
        mode = next((self._text(k.value) for k in node.keywords if k.arg == "mode"), second)
        if name in ("open", "io.open", "codecs.open") and first is not None:
            self.reader.touch(first, "write" if mode is not None and set(mode) & set("wax+") else "read")
        elif name in _FILE_CALLS and first is not None:
            self.reader.touch(first, _FILE_CALLS[name])
        elif name in _LINKS and first is not None and second is not None:
            self.reader.run_words(["ln", "-s", first, second], "")
        if name in _COPIES and second is not None:
            self.reader.touch(second, "write")
        if isinstance(node.func, ast.Attribute):
            self._method(node, node.func, first)

    def _method(self, node: ast.Call, function: ast.Attribute, first: str | None) -> None:
        path = self._text(function.value)
        if path is None or not isinstance(function.value, (ast.Call, ast.Name)):
            return
        if function.attr in _PATH_WRITES:
            self.reader.touch(path, _PATH_WRITES[function.attr])
            if function.attr in ("rename", "replace") and first is not None and len(node.args) == 1:
                self.reader.touch(first, "write")
        elif function.attr == "open" and first is not None and set(first) & set("wax+"):
            self.reader.touch(path, "write")
