"""Messages to token ids and back, by the `renderers` library: the only place that knows a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from environments.actions import ActionError, strict_json
from environments.polar.errors import BadBody
from environments.polar.messages import Message, ToolCall
from environments.polar.tokenizing import lean
from infra.digests import digest_file, digest_of

RENDERER_FILE = "renderer.json"
LONGEST_OPENING = 256  # tokens after a prompt's last stop token among which that token is looked for

ParseOutcome = Literal["text", "tools", "malformed_tools", "open_reasoning"]

Tools = Sequence[Mapping[str, Any]]


class RendererError(ValueError):
    """A model folder whose template no renderer serves. The message says what to write into renderer.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion as the harness will see it. Malformed tool calls stand in `text` as the model wrote them."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    outcome: ParseOutcome

    def message(self) -> Message:
        """The assistant message that a faithful harness would echo."""
        return Message(role="assistant", text=self.text, reasoning=self.reasoning, tool_calls=self.tool_calls)


def _wire_message(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


class Rendering:
    """One model's template. `digest` names tokenizer, template and renderer settings together."""

    def __init__(self, renderer: Any, tokenizer: Any, digest: str) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self.digest = digest
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())

    def prompt(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """The whole prompt's ids, generation prompt included."""
        return self._ids(messages, tools, generate=True)

    def tail(
        self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        """The ids to append after prompt + completion for the next turn; None where that is not provable."""
        prompt_ids = self._opening(prompt_ids)
        wire = [_wire_message(m) for m in new]
        bridged = self._renderer.bridge_to_next_turn(prompt_ids, completion_ids, wire, tools=list(tools) or None)
        if bridged is None:
            return None
        ids, held = bridged.token_ids, len(prompt_ids) + len(completion_ids)
        if ids[: len(prompt_ids)] != prompt_ids or ids[len(prompt_ids) : held] != completion_ids:
            return None
        return list(ids[held:])

    def _opening(self, prompt_ids: list[int]) -> list[int]:
        """The prompt from its last stop token on: what opens the answer, and all of it that a bridge reads.

        Without the history before, which a bridge only copies, a turn costs the same however many came before it.
        """
        for at in range(len(prompt_ids) - 1, max(-1, len(prompt_ids) - LONGEST_OPENING), -1):
            if prompt_ids[at] in self.stop_token_ids:
                return prompt_ids[at:]
        return prompt_ids

    def tail_by_difference(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, completion_ids: list[int]
    ) -> list[int] | Literal["template", "retokenised"]:
        """The tail for templates without a bridge: what the template itself adds after `history`'s last stop token.

        `history` ends with the answered message. Gives the cause instead where the template, or its tokens, is
        not append-only here.
        """
        before = self._ids(history, tools, generate=False)
        after = self._ids([*history, *new], tools, generate=True)
        cut = max((i + 1 for i, t in enumerate(before) if t in self.stop_token_ids), default=0)
        if not cut or after[:cut] != before[:cut]:
            same_text = bool(cut) and self.text(after).startswith(self.text(before[:cut]))
            return "retokenised" if same_text else "template"
        closed = bool(completion_ids) and completion_ids[-1] in self.stop_token_ids
        return after[cut:] if closed else after[cut - 1 :]

    def _ids(self, messages: Sequence[Message], tools: Tools, *, generate: bool) -> list[int]:
        from jinja2 import TemplateError

        wire = [_wire_message(m) for m in messages]
        try:
            ids = self._renderer.render_ids(wire, tools=list(tools) or None, add_generation_prompt=generate)
        except (ValueError, TypeError, KeyError, TemplateError) as error:
            raise BadBody(f"the model's chat template cannot render these messages: {error}") from error
        return list(ids)

    def text(self, ids: Sequence[int]) -> str:
        """The plain text of ids, special tokens shown."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: list[int],
        tools: Tools,
        tag: str,
        *,
        unfinished: bool = False,
    ) -> Answer:
        """Read a completion. Where it is `unfinished`, tool calls that are not whole yet are left out."""
        parsed = self._renderer.parse_response(list(completion_ids), tools=list(tools) or None, prompt_ids=prompt_ids)
        calls, malformed = _sort_calls(parsed.tool_calls, tag)
        if unfinished:
            malformed = []
        text = "\n".join([parsed.content, *malformed] if parsed.content else malformed)
        return Answer(
            text=text,
            reasoning=(parsed.reasoning_content or "").strip(),
            tool_calls=tuple(calls),
            outcome=_outcome(parsed, calls, malformed),
        )


def _outcome(parsed: Any, calls: Sequence[ToolCall], malformed: Sequence[str]) -> ParseOutcome:
    if parsed.reasoning_complete is False:
        return "open_reasoning"
    if malformed:
        return "malformed_tools"
    return "tools" if calls else "text"


def _sendable(value: Any) -> bool:
    """Whether a value survives JSON: no infinity, no half surrogate pair, no bottomless nesting."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _well_formed(attempt: Any) -> bool:
    if str(attempt.status) != "ok" or not attempt.name or not isinstance(attempt.name, str):
        return False
    if not isinstance(attempt.arguments, dict) or not _sendable([attempt.name, attempt.arguments]):
        return False
    if not attempt.raw.lstrip().startswith("{"):
        return True
    try:
        strict_json(attempt.raw)
    except ActionError:
        return False  # duplicate keys, NaN: what a strict reader would refuse must stay visible
    return True


def _sort_calls(attempts: Sequence[Any], tag: str) -> tuple[list[ToolCall], list[str]]:
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for attempt in attempts:
        if _well_formed(attempt):
            name = f"call_{tag}_{len(calls)}"
            calls.append(ToolCall(call_id=name, name=attempt.name, arguments=attempt.arguments))
        else:
            malformed.append(f"<tool_call>\n{attempt.raw}\n</tool_call>")
    return calls, malformed


_PROBES: tuple[tuple[list[dict[str, Any]], bool], ...] = (
    ([{"role": "user", "content": "one"}], True),
    (
        [
            {"role": "system", "content": "two"},
            {"role": "user", "content": "three"},
            {
                "role": "assistant",
                "content": "four",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls"}}}
                ],
            },
            {"role": "tool", "content": "five", "tool_call_id": "c"},
        ],
        True,
    ),
)
_PROBE_TOOLS = [
    {"type": "function", "function": {"name": "bash", "description": "d", "parameters": {"type": "object"}}}
]
# Tried in order; the first whose ids equal the folder's own template on every probe is used.
_CANDIDATES = ("qwen3", "qwen3.5", "llama-3", "glm-4.5", "glm-5", "gpt-oss")
_MARKERS = {"gpt-oss": "<|channel|>"}  # its library fetches an encoding from the net: only for who can need it


def _agrees(renderer: Any, tokenizer: Any) -> bool:
    for messages, generate in _PROBES:
        for tools in (None, _PROBE_TOOLS):
            want = tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generate, tokenize=True, return_dict=False
            )
            if list(want) != renderer.render_ids(messages, tools=tools, add_generation_prompt=generate):
                return False
    return True


def _detect(tokenizer: Any) -> dict[str, Any]:
    """Settings of the typed renderer that gives the ids of the folder's own template, else the default one's."""
    vocabulary = tokenizer.get_vocab()
    for name in _CANDIDATES:
        if name in _MARKERS and _MARKERS[name] not in vocabulary:
            continue
        settings = {"name": name, "thinking_retention": "all"}
        try:
            if _agrees(_make(tokenizer, settings), tokenizer):
                return settings
        except Exception:  # noqa: BLE001 - one made for other models may fail in any way, as where it lacks its tokens
            continue
    has_hermes = "<tool_call>" in vocabulary
    return {"name": "default"} | ({"tool_parser": "qwen3", "reasoning_parser": "think"} if has_hermes else {})


def _make(tokenizer: Any, settings: Mapping[str, Any]) -> Any:
    from pydantic import TypeAdapter, ValidationError
    from renderers import RendererConfig, create_renderer

    try:
        config: Any = TypeAdapter(RendererConfig).validate_python(dict(settings))
    except ValidationError as error:
        raise RendererError(f"{RENDERER_FILE} or the template's choice is {dict(settings)}: {error}") from error
    return create_renderer(tokenizer, config)


def load_rendering(folder: Path) -> Rendering:
    """The rendering of a model folder: by its renderer.json where there is one, else found by comparing ids.

    Reasoning of earlier turns is kept in the context (`thinking_retention: all`), so that a conversation stays
    one chain; a renderer.json such as {"name": "qwen3", "thinking_retention": "tool_cycle"} says otherwise.
    Raises RendererError with the mend when neither serves.
    """
    from renderers.base import load_tokenizer

    if not (folder / "tokenizer.json").is_file():
        raise RendererError(f"{folder} has no tokenizer.json; want a Hugging Face model folder")
    tokenizer = lean(load_tokenizer(str(folder)))
    chosen = folder / RENDERER_FILE
    settings = json.loads(chosen.read_text()) if chosen.is_file() else _detect(tokenizer)
    if settings["name"] == "default" and not tokenizer.chat_template:
        raise RendererError(f"{folder} has no chat template; add one, or name a renderer in {RENDERER_FILE}")
    digest = digest_of([digest_file(folder / "tokenizer.json"), str(tokenizer.chat_template), settings])
    return Rendering(_make(tokenizer, settings), tokenizer, digest)
