"""mini-SWE-agent, unmodified, as a process in the box: its command, or its Python API as a program of one's own has it.

Its packages and a Python to run them are mounted read-only; it meets the model at the box's one exposed port, over
chat completions through litellm. Only its configuration is ours: small templates, for small policies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from environments.actions import BASH_TOOL
from environments.harnesses.base import Endpoint, HarnessOutcome
from environments.harnesses.equipment import ROOT, Equipment, url_in_box
from environments.harnesses.inside import (
    FOLDER,
    Ended,
    HarnessNotReady,
    Invocation,
    StartProof,
    given_up,
    outcome,
    run_inside,
)
from environments.harnesses.tool_loop import SYSTEM_PROMPT
from environments.sandboxes.base import ReadonlyMount, Sandbox
from environments.suites.base import Suite
from environments.types import TaskSpec

VERSION = "2.4.6"
SITE, PYTHON = f"{ROOT}/site", f"{ROOT}/python"
CONFIG, RESULT = f"{FOLDER}/mini.yaml", f"{FOLDER}/result.json"
INTERPRETER = f"{PYTHON}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
# The loader's path is for this Python alone: the agent's commands must not inherit it.
BOOT = f'import os, sys; os.environ.pop("LD_LIBRARY_PATH", 0); sys.path.append("{SITE}"); '
PROOF = BOOT + "import minisweagent, pydantic_core; print(minisweagent.__version__)"
COMMAND = BOOT + "from minisweagent.run.mini import app; app()"
# The agent, model and environment that mini's benchmark runners put together; the command has a console around them.
PYTHON_API = (
    BOOT
    + """
import json
from pathlib import Path
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
given, task, result = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2], Path(sys.argv[3])
model, environment = LitellmModel(**given["model"]), LocalEnvironment(**given["environment"])
DefaultAgent(model, environment, output_path=result, **given["agent"]).run(task)
"""
)
ENV = {
    "LD_LIBRARY_PATH": f"{PYTHON}/lib",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_GLOBAL_CONFIG_DIR": FOLDER,
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",
    "MSWEA_SILENT_STARTUP": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What mini-SWE-agent says, as Jinja templates over its own variables (`task`, `output`, `error`).

    `tool`: the tool definition that the model is shown in place of mini's own (its arguments must be the same).
    `reply_hands_in`: a message without a tool call is the answer. mini has no such ending; it calls the message a
    format error, and ends after the first one. A malformed call ends the rollout too, then.
    """

    system: str
    instance: str
    observation: str
    format_error: str
    tool: Mapping[str, Any] | None = None
    reply_hands_in: bool = False


# The form of `tool_loop.render_observation`, so that one policy reads the same under both.
OBSERVATION = (
    "{%- set text = output.output.rstrip('\\n') -%}"
    "{%- set code = output.returncode -%}"
    "{%- set late = 'timed out' in output.exception_info -%}"
    "{{- text[:16000] if text.strip() -}}"
    "{%- if text | length > 16000 -%}{{- '\\n[output cut]' -}}{%- endif -%}"
    "{%- if late or code or not text.strip() -%}"
    "{{- '\\n' if text.strip() -}}{{- '[timed out]' if late else '[exit ' ~ code ~ ']' -}}"
    "{%- endif -%}"
)
# For models that can be told: mini's own tool, and its own way to hand in.
SMALL = Template(
    system=(
        "Work in a shell. Call bash, one command a turn. When done, run "
        """echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{"answer": "done"}'"""
    ),
    instance="{{ task }}",
    observation=OBSERVATION,
    format_error="error: {{ error }}",
)
# For policies that know the protocol of `tool_loop` and nothing else: the same prompts, to the token.
TOOL_LOOP = Template(
    system=SYSTEM_PROMPT,
    instance="{{ task }}",
    observation=OBSERVATION,
    format_error="error: {{ error }}",
    tool=BASH_TOOL,
    reply_hands_in=True,
)


def find_site() -> Path:
    """The folder that mini-SWE-agent is installed in. Raises HarnessNotReady when it is not there."""
    found = find_spec("minisweagent")
    if found is None or found.origin is None:
        raise HarnessNotReady("mini-swe-agent is not installed; install the extra: `uv pip install -e '.[harness]'`")
    return Path(found.origin).parent.parent


def _check_version(site: Path) -> None:
    versions = [d.version for d in distributions(path=[str(site)]) if d.metadata["Name"] == "mini-swe-agent"]
    if versions != [VERSION]:
        raise HarnessNotReady(
            f"{site} has mini-swe-agent {', '.join(versions) or 'nowhere'}; want {VERSION}, the version that was "
            f"tried: `uv pip install mini-swe-agent=={VERSION}`"
        )


class MiniSweAgent:
    """Drives one rollout by the command `mini`, or by mini's classes where `python_api` is set.

    `site` holds its packages (default: those of this Python).
    """

    name = "mini_swe_agent"

    def __init__(
        self,
        *,
        site: Path | None = None,
        template: Template = SMALL,
        command_timeout_s: float = 20.0,
        python_api: bool = False,
    ) -> None:
        """Raises HarnessNotReady when the pinned version is not installed."""
        site = site or find_site()
        _check_version(site)
        self._template = template
        self._python_api = python_api
        self._command_timeout_s = command_timeout_s
        self._proof = StartProof((INTERPRETER, "-ISB", "-c", PROOF), ENV, VERSION)
        self.equipment = Equipment(
            mounts=(
                ReadonlyMount(host=site, box=SITE),
                ReadonlyMount(host=Path(sys.base_prefix), box=PYTHON),
            ),
            memory_mb=512,
            processes=32,
            disk_mb=32,
            cpu_s=300.0,
        )

    async def run(self, task: TaskSpec, *, suite: Suite, sandbox: Sandbox, endpoint: Endpoint) -> HarnessOutcome:
        """See `Harness.run`. The box must come from `boxes_for`; SandboxError when it does not."""
        await self._proof.show(sandbox)
        ended = await run_inside(sandbox, self._invocation(task, endpoint), task)
        if isinstance(ended, HarnessOutcome):
            return ended
        return _outcome(ended, await _result(sandbox), task, reply_hands_in=self._template.reply_hands_in)

    def _invocation(self, task: TaskSpec, endpoint: Endpoint) -> Invocation:
        words = [PYTHON_API, CONFIG, task.instruction, RESULT]
        if not self._python_api:
            words = [COMMAND, "-c", CONFIG, "--model-class", "litellm", "-t", task.instruction, "-o", RESULT]
            words += ["-y", "--exit-immediately"]
        config = json.dumps(self._config(task, endpoint), ensure_ascii=False)
        return Invocation(argv=(INTERPRETER, "-ISB", "-c", *words), env=ENV, files={CONFIG: config})

    def _config(self, task: TaskSpec, endpoint: Endpoint) -> Mapping[str, Any]:
        template = self._template
        own_tool = {"extra_body": {"tools": [template.tool]}} if template.tool is not None else {}
        return {
            "agent": {
                "system_template": template.system,
                "instance_template": template.instance,
                "step_limit": task.limits.max_turns + 1,
                "cost_limit": 0.0,
                "max_consecutive_format_errors": 1 if template.reply_hands_in else 3,
            },
            "environment": {"timeout": round(self._command_timeout_s)},
            "model": {
                "model_name": f"openai/{endpoint.model}",
                "model_kwargs": {
                    "api_base": f"{url_in_box(endpoint)}/v1",
                    "api_key": endpoint.api_key,
                    "drop_params": True,
                    "max_retries": 0,
                    **own_tool,
                },
                "cost_tracking": "ignore_errors",
                "observation_template": template.observation,
                "format_error_template": template.format_error,
            },
        }


async def _result(sandbox: Sandbox) -> Mapping[str, Any]:
    """What mini saved, empty where the agent has spoilt it."""
    try:
        saved = json.loads(await sandbox.get(RESULT))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _outcome(ended: Ended, saved: Mapping[str, Any], task: TaskSpec, *, reply_hands_in: bool) -> HarnessOutcome:
    info = saved.get("info")
    status = str(info.get("exit_status")) if isinstance(info, dict) else ""
    if isinstance(info, dict) and status == "Submitted":
        said = [m for m in _messages(saved) if m.get("role") == "assistant"]
        return outcome(
            "completed", payload=str(info.get("submission")).strip(), thought=_thought(said[-1] if said else {})
        )
    if status == "RepeatedFormatError" and reply_hands_in:
        reply = _reply(saved)
        if reply is not None:
            return outcome("completed", payload=str(reply.get("content") or "").strip(), thought=_thought(reply))
    if status == "LimitsExceeded":
        return outcome("budget_exhausted", f"{task.limits.max_turns} turns used")
    return given_up("mini-swe-agent", f"{status} {ended.last_words}", task)


def _messages(saved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = saved.get("messages")
    return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []


def _reply(saved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The model's whole message without a call, which mini keeps beside the error; None where it is none."""
    try:
        choice = _messages(saved)[-2]["extra"]["response"]["choices"][0]
        message = choice["message"]
        content = str(message["content"] or "")
    except (KeyError, IndexError, TypeError):
        return None
    whole = choice.get("finish_reason") != "length"
    return message if whole and not message.get("tool_calls") and "<tool_call>" not in content else None


def _thought(message: Mapping[str, Any]) -> str:
    """The reasoning beside what was said."""
    return str(message.get("reasoning_content") or "")
