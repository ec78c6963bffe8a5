"""From a word of the syntax tree to the fields a shell would make of it: quotes, variables, braces, splitting."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from tree_sitter import Node

from environments.gates.shell.state import HOLE, ShellState, bounded

_SPLITTING = frozenset({"simple_expansion", "expansion", "command_substitution"})
_MAX_FIELDS = 64
_MAX_PATTERNED = 2_000  # longest text that patterns and braces are applied to: their cost grows with its square
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}
_ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|0?[0-7]{1,3}|.)", re.DOTALL)
_BRACES = re.compile(r"^(.*?)\{([^{}]*,[^{}]*)\}(.*)$", re.DOTALL)
_PARAMETER = re.compile(r"^\$\{(!?)(\w+|[@*#?$!-])(\[[^\]]*\])?(.*)\}$", re.DOTALL)


def unescape(text: str) -> str:
    r"""The escapes of `$'...'`, `echo -e` and `printf`: \n, \x63, \143, \u0063."""

    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] in "xuU" and len(code) > 1:
            value = int(code[1:], 16)
            return chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else HOLE
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        return _ESCAPES.get(code, code if code in "\\'\"?" else "\\" + code)

    return _ANSI.sub(one, text)


def expand_braces(text: str) -> list[str]:
    """`a{b,c}d` -> abd, acd; at most 64 fields."""
    if len(text) > _MAX_PATTERNED:
        return [text]
    done: list[str] = []
    todo = [text]
    while todo and len(done) < _MAX_FIELDS:
        match = _BRACES.match(todo[0])
        if match is None or len(todo) > _MAX_FIELDS:
            done.append(todo.pop(0))
            continue
        head, middle, tail = match.groups()
        todo[0:1] = [head + option + tail for option in middle.split(",")]
    return done


def _glob_cut(value: str, pattern: str, operator: str) -> str:
    lengths = range(len(value) + 1) if operator in ("#", "%") else range(len(value), -1, -1)
    for n in lengths:
        part = value[:n] if operator[0] == "#" else value[len(value) - n :]
        if fnmatch.fnmatchcase(part, pattern):
            return value[n:] if operator[0] == "#" else value[: len(value) - n]
    return value


def _slice(value: str, rest: str) -> str:
    parts = rest.split(":")
    if not all(re.fullmatch(r"\s*-?\d*\s*", p) for p in parts) or len(parts) > 2:
        return HOLE
    start = int(parts[0].strip() or 0)
    cut = value[start:]
    if len(parts) == 1:
        return cut
    length = int(parts[1].strip() or 0)
    return cut[:length]


def apply_operator(value: str | None, rest: str) -> str:
    """`${name<rest>}` for a variable's value (None: not set). HOLE where bash's rule is not modelled."""
    known = value if value is not None else ""
    if rest == "":
        return HOLE if value is None else value
    for mark in (":-", ":=", "-", "="):
        if rest.startswith(mark):
            return known if known and known != HOLE else rest[len(mark) :].strip("\"'")
    if rest.startswith((":+", "+")):
        return rest.lstrip(":+").strip("\"'")
    if value is None or value == HOLE or len(value) > _MAX_PATTERNED or len(rest) > _MAX_PATTERNED:
        return HOLE
    if rest[0] == ":":
        return _slice(value, rest[1:])
    if rest[0] == "/":
        return _substitute(value, rest)
    for operator in ("##", "%%", "#", "%"):
        if rest.startswith(operator):
            return _glob_cut(value, rest[len(operator) :].strip("\"'"), operator)
    return {",,": value.lower(), "^^": value.upper(), ",": value[:1].lower() + value[1:]}.get(rest, HOLE)


def _substitute(value: str, rest: str) -> str:
    every = rest.startswith("//")
    pattern, _, new = rest[2 if every else 1 :].partition("/")
    pattern, new = pattern.strip("\"'"), new.strip("\"'")
    if not pattern:
        return value
    regex = fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z")
    try:
        return re.sub(regex, lambda _: new, value, count=0 if every else 1)
    except re.error:
        return HOLE


class WordReader:
    """Makes fields of word nodes. `run` walks a substitution and returns what it would print."""

    def __init__(self, state: ShellState, source: str, run: Callable[[Node], str]) -> None:
        self.state, self.source, self.run = state, source, run

    def raw(self, node: Node) -> str:
        """The node's own text."""
        return self.source[node.start_byte : node.end_byte]

    def fields(self, node: Node) -> list[str]:
        """The fields of one argument: braces opened, unquoted expansions split at white space."""
        text = self.text(node)
        if self._splits(node) or self.raw(node) in ('"$@"', '"${@}"'):
            return text.split()
        return expand_braces(text) if node.type in ("word", "concatenation") and "{" in text else [text]

    def _splits(self, node: Node) -> bool:
        if node.type in ("concatenation", "command_name"):
            return any(self._splits(child) for child in node.children)
        return node.type in _SPLITTING

    def text(self, node: Node) -> str:
        """The node's text after quote removal and expansion, unsplit; HOLE where it is too long to follow."""
        return bounded(self._text(node))

    def _text(self, node: Node) -> str:
        kind = node.type
        if kind in ("word", "variable_name", "special_variable_name", "regex", "extglob_pattern"):
            return re.sub(r"\\(.)", r"\1", self.raw(node).replace("\\\n", ""), flags=re.DOTALL)
        if kind == "raw_string":
            return self.raw(node)[1:-1]
        if kind == "ansi_c_string":
            return unescape(self.raw(node)[2:-1])
        if kind in ("string", "translated_string"):
            return self._quoted(node)
        if kind in ("simple_expansion", "expansion"):
            return self._parameter(node)
        if kind == "command_substitution":
            return self.run(node).rstrip("\n")
        if kind == "process_substitution":
            path = f"/dev/fd/{63 + len(self.state.files)}"
            self.state.files[path] = self.run(node)
            return path
        if kind == "arithmetic_expansion":
            self.run(node)
            return HOLE
        if kind == "array":
            return " ".join(f for child in node.named_children for f in self.fields(child))
        return self._joined(node) if node.children else self.raw(node)

    def _joined(self, node: Node) -> str:
        return "".join(self.text(child) for child in node.children)

    def _quoted(self, node: Node) -> str:
        inner = [c for c in node.children if c.type not in ('"', '$"')]
        start = node.start_byte + (2 if self.raw(node).startswith("$") else 1)
        return self.with_gaps(inner, start, node.end_byte - 1, quoted=True)

    def with_gaps(self, children: list[Node], start: int, end: int, *, quoted: bool) -> str:
        """Text between `start` and `end` with the expansions among `children` expanded (strings, here-documents)."""
        out: list[str] = []
        at = start
        for child in children:
            if child.type not in _SPLITTING and child.type not in ("arithmetic_expansion", "process_substitution"):
                continue
            out += [self._literal(at, child.start_byte, quoted), self.text(child)]
            at = child.end_byte
        return "".join([*out, self._literal(at, end, quoted)])

    def _literal(self, start: int, end: int, quoted: bool) -> str:
        text = self.source[start:end]
        return re.sub(r'\\([\\"$`]|\n)', lambda m: m.group(1).strip("\n"), text) if quoted else text

    def _parameter(self, node: Node) -> str:
        raw = self.raw(node)
        for child in node.children:  # ${x:-$(cmd)}: what stands inside runs as well
            if child.type == "command_substitution":
                return self.run(child).rstrip("\n")
        match = _PARAMETER.match(raw)
        if match is None:
            return self.state.lookup(raw.removeprefix("$"))
        indirect, name, index, rest = match.groups()
        if indirect:
            name = self.state.lookup(name)
        value: str | None = self.state.lookup(name)
        if index and index.strip("[]").isdigit() and value is not None:
            items = value.split()
            number = int(index.strip("[]"))
            value = items[number] if number < len(items) else ""
        return self._with_default(value, rest)

    def _with_default(self, value: str | None, rest: str) -> str:
        out = apply_operator(value, rest)
        inner = re.fullmatch(r"\$\{?(\w+)\}?", out)
        return self.state.lookup(inner.group(1)) if inner else out
