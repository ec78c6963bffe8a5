"""Walks a shell program as the shell would run it, all branches in order, and notes what would happen.

The reader is a model: it follows variables, substitutions, pipes, aliases, functions, here-documents and files the
agent wrote, as far as their text is known. It never runs anything and is bounded in depth and steps.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from environments.gates.shell.effects import touches
from environments.gates.shell.state import (
    DECODED,
    HOLE,
    Assign,
    Call,
    Event,
    Note,
    ShellState,
    Touch,
    Unreadable,
    bounded,
)
from environments.gates.shell.words import WordReader, expand_braces

MAX_DEPTH = 40
MAX_STEPS = 20_000
MAX_BYTES = 1_000_000
_LOOP_VALUES = (16, 4, 1)  # values tried in a loop, in a loop within it, and deeper
_WIDE = re.compile(r"[^\x00-\x7f]")
_MASK = {0: " "}
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", ">&", "<>"})

_Run = Callable[[str], str]


@functools.lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Reader:
    """Reads program after program in one shell. `events` grows in order; `state` is what the shell then knows."""

    def __init__(self, state: ShellState) -> None:
        self.state = state
        self.events: list[Event] = []
        self._depth = 0
        self._steps = 0
        self._bytes = 0
        self._loops = 0
        self._running: set[str] = set()
        self._source = ""

    def read(self, text: str, stdin: str = "") -> str:
        """Walk a program given as text; returns what it would print. Raises Unreadable past the bounds."""
        if DECODED in text:
            self.events.append(Note("hidden", "runs decoded text that cannot be read here"))
        outer = self._source
        self._source = text
        self._bytes += len(text)
        self._enter()
        try:
            return self._walk(_parser().parse(_masked(text)).root_node, stdin)
        finally:
            self._depth -= 1
            self._source = outer

    def read_apart(self, text: str, stdin: str = "") -> str:
        """Like `read`, in a child shell: what it changes in the shell's own state is forgotten."""
        kept = self.state
        self.state = kept.copy()
        try:
            return self.read(text, stdin)
        finally:
            kept.files, kept.links, kept.copies = self.state.files, self.state.links, self.state.copies
            self.state = kept

    def read_file_once(self, path: str, stdin: str, *, apart: bool) -> str:
        """Read a shell file whose text is known, unless it is being read already (it calls itself)."""
        text = self.state.files.get(path)
        if text is None or path in self._running:
            return HOLE
        self._running.add(path)
        try:
            return self.read_apart(text, stdin) if apart else self.read(text, stdin)
        finally:
            self._running.discard(path)

    def touch(self, path: str, kind: str) -> None:
        """Note that `path`, seen from the working directory, would be read or changed."""
        if path and path != HOLE:
            self.events.append(Touch(self.state.resolve(path), kind))  # type: ignore[arg-type]

    def assign(self, name: str, value: str) -> None:
        """Set a variable."""
        value = bounded(value)
        self.state.variables[name] = value
        self.events.append(Assign(name, value))

    def _enter(self) -> None:
        self._depth += 1
        self._steps += 1
        if self._depth > MAX_DEPTH or self._steps > MAX_STEPS or self._bytes > MAX_BYTES:
            raise Unreadable

    def _words(self) -> WordReader:
        return WordReader(self.state, self._source, lambda node: self._children(node, ""))

    def _walk(self, node: Node, stdin: str) -> str:
        self._enter()
        try:
            handler = _HANDLERS.get(node.type)
            return handler(self, node, stdin) if handler is not None else self._children(node, stdin)
        finally:
            self._depth -= 1

    def _children(self, node: Node, stdin: str) -> str:
        return "".join([self._walk(child, stdin) for child in node.named_children])

    def _list(self, node: Node, stdin: str) -> str:
        return "".join([self._walk(part, stdin) for part in _listed(node)])

    def _pipeline(self, node: Node, stdin: str) -> str:
        for child in node.named_children:
            stdin = self._walk(child, stdin)
        return stdin

    def _subshell(self, node: Node, stdin: str) -> str:
        kept = self.state
        self.state = kept.copy()
        try:
            return self._children(node, stdin)
        finally:
            kept.files, kept.links, kept.copies = self.state.files, self.state.links, self.state.copies
            self.state = kept

    def _assignment(self, node: Node, stdin: str) -> str:
        words = self._words()
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None:
            text = words.text(value) if value is not None else ""
            key = words.raw(name).split("[")[0]
            added = "+=" in self._source[node.start_byte : node.start_byte + len(key) + 4]
            self.assign(key, self.state.variables.get(key, "") + text if added else text)
        return ""

    def _unset(self, node: Node, stdin: str) -> str:
        for child in node.named_children:
            self.state.variables.pop(self._words().raw(child), None)
        return ""

    def _for(self, node: Node, stdin: str) -> str:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None:
            return self._children(node, stdin)
        words = self._words()
        values = [f for v in node.children_by_field_name("value") for f in words.fields(v)] or [HOLE]
        limit = _LOOP_VALUES[min(self._loops, len(_LOOP_VALUES) - 1)]
        self._loops += 1
        out = ""
        for value in values[:limit]:
            self.state.variables[words.raw(variable)] = value
            out += self._walk(body, stdin)
        self._loops -= 1
        return bounded(out)

    def _function(self, node: Node, stdin: str) -> str:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            words = self._words()
            text = words.raw(body)
            self.state.functions[words.raw(name)] = text
            calls = [words.raw(n) for n in _named(body, "command_name")]
            if calls.count(words.raw(name)) >= 2:
                self.events.append(Note("flood", f"the function {words.raw(name)!r} calls itself twice: a fork bomb"))
        return ""

    def _error(self, node: Node, stdin: str) -> str:
        """What the grammar could not place: `{curl,x}` is a word to a shell and half a block to the grammar."""
        first, *rest = self._words().raw(node).split() or [""]
        opened = expand_braces(first)
        if len(opened) > 1:
            return self.run_words([*opened, *rest], stdin)
        return self._children(node, stdin)

    def _command(self, node: Node, stdin: str) -> str:
        words = self._words()
        fields: list[str] = []
        redirects: list[Node] = []
        for child in node.children:
            if child.type == "variable_assignment":
                self._assignment(child, "")
            elif child.type in _REDIRECTS:
                redirects.append(child)
            elif child.type == "command_name":
                fields += words.fields(child.children[0] if child.child_count else child)
            else:
                fields += words.fields(child)
        return self._redirected(redirects, lambda given: self.run_words(fields, given), stdin)

    def _redirected_statement(self, node: Node, stdin: str) -> str:
        """The grammar hangs `a && b | c > f` as `(a && b | c) > f`; to a shell the redirect is c's alone."""
        body = [part for c in node.named_children if c.type not in _REDIRECTS for part in _listed(c)]
        redirects = [c for c in node.named_children if c.type in _REDIRECTS]
        before = "".join([self._walk(part, stdin) for part in body[:-1]])
        last = body[-1:]
        if last and last[0].type == "pipeline":
            *heads, end = last[0].named_children
            for head in heads:
                stdin = self._walk(head, stdin)
            last = [end]
        return before + self._redirected(redirects, lambda given: "".join([self._walk(p, given) for p in last]), stdin)

    def _redirected(self, redirects: list[Node], run: _Run, stdin: str) -> str:
        """Run with standard input from, and standard output into, what the redirects name."""
        sinks: list[tuple[str, bool]] = []
        tails: list[Node] = []
        for redirect in redirects:
            stdin = self._redirect(redirect, stdin, sinks, tails)
        out = run(stdin)
        for path, append in sinks:
            before = self.state.files.get(path, HOLE) if append else ""
            self.state.files[path] = bounded(before + out)
        out = "" if sinks else out
        for tail in tails:  # `cat <<EOF | sh`: the grammar hangs the rest of the pipe on the here-document
            out = self._walk(tail, out)
        return out

    def _redirect(self, node: Node, stdin: str, sinks: list[tuple[str, bool]], tails: list[Node]) -> str:
        words = self._words()
        if node.type == "herestring_redirect":
            return "".join(words.text(c) for c in node.named_children) + "\n"
        if node.type == "heredoc_redirect":
            return self._heredoc(node, stdin, sinks, tails)
        operator = next((c.type for c in node.children if c.type in _WRITES or c.type == "<"), "")
        descriptor = next((words.raw(c) for c in node.children if c.type == "file_descriptor"), "1")
        for target in node.children_by_field_name("destination"):
            for path in words.fields(target):
                if path.isdigit() or path == "-":
                    continue
                self.touch(path, "read" if operator == "<" else "write")
                full = self.state.resolve(path)
                if operator == "<":
                    stdin = self.state.files.get(full, HOLE)
                elif descriptor == "1" or operator.startswith("&"):
                    sinks.append((full, ">>" in operator))
        return stdin

    def _heredoc(self, node: Node, stdin: str, sinks: list[tuple[str, bool]], tails: list[Node]) -> str:
        words = self._words()
        start = next((words.raw(c) for c in node.children if c.type == "heredoc_start"), "")
        text = ""
        for child in node.named_children:
            if child.type == "heredoc_body":
                literal = start[:1] in "'\"\\" if start else False
                children = [] if literal else child.children
                text = words.with_gaps(children, child.start_byte, child.end_byte, quoted=not literal)
            elif child.type == "file_redirect":
                self._redirect(child, stdin, sinks, tails)
            elif child.type not in ("heredoc_start", "heredoc_end"):
                tails.append(child)
        return text

    def run_words(self, fields: list[str], stdin: str) -> str:
        """Run a simple command given as fields; returns what it would print, HOLE where that is not known."""
        if not fields:
            return ""
        self._enter()
        try:
            return self._run(fields, stdin)
        finally:
            self._depth -= 1

    def _run(self, fields: list[str], stdin: str) -> str:
        from environments.gates.shell.programs import quote, run_program  # the two read each other

        name = fields[0]
        if name in self.state.aliases and name not in self._running:
            return self._guarded(name, quote([self.state.aliases[name]], fields[1:]), stdin)
        if name in self.state.functions and name not in self._running:
            positional = {str(i): value for i, value in enumerate(fields[1:], 1)}
            everything = " ".join(fields[1:])
            self.state.variables.update(positional | {"@": everything, "*": everything})
            return self._guarded(name, self.state.functions[name], stdin)
        program = self._program(name)
        call = Call((program, *fields[1:]), stdin)
        self.events.append(call)
        self.events.extend(touches(call, self.state))
        return run_program(self, [program, *fields[1:]], stdin, self.state.resolve(name) if "/" in name else "")

    def _guarded(self, name: str, text: str, stdin: str) -> str:
        self._running.add(name)
        try:
            return self.read(text, stdin)
        finally:
            self._running.discard(name)

    def _program(self, name: str) -> str:
        full = self.state.resolve(name) if "/" in name else name
        return self.state.copies.get(full, full).rsplit("/", 1)[-1]


def _masked(text: str) -> bytes:
    """One ASCII byte for each character, so that places in the tree are places in the text.

    To a shell all that is not ASCII is part of a word, as a letter is. And the grammar's scanner asks C's isalpha
    about each character, which past 255 reads memory that is not its own and can end the process (tested).
    """
    return text.translate(_MASK).encode("ascii") if text.isascii() else _WIDE.sub("x", text).translate(_MASK).encode()


def _listed(node: Node) -> list[Node]:
    """The commands of `a && b || c`, in order. It nests to the left: unrolled, so that length is not depth."""
    parts: list[Node] = []
    todo = [node]
    while todo:
        top = todo.pop()
        if top.type == "list":
            todo.extend(reversed(top.named_children))
        else:
            parts.append(top)
    return parts


def _named(node: Node, kind: str) -> list[Node]:
    found, todo = [], [node]
    while todo:
        top = todo.pop()
        if top.type == kind:
            found.append(top)
        todo.extend(top.named_children)
    return found


_HANDLERS: dict[str, Callable[[Reader, Node, str], str]] = {
    "list": Reader._list,
    "pipeline": Reader._pipeline,
    "subshell": Reader._subshell,
    "variable_assignment": Reader._assignment,
    "unset_command": Reader._unset,
    "for_statement": Reader._for,
    "function_definition": Reader._function,
    "ERROR": Reader._error,
    "command": Reader._command,
    "redirected_statement": Reader._redirected_statement,
}
