"""The command policy: what an agent may not do in its shell, read as the shell reads it.

The sandbox is the wall; this is the teacher. A suite says what else is forbidden in words (`Suite.forbidden`):

- `PATH` (absolute, or below the box's workdir; `*` as in a shell, across folders): may not be changed, replaced,
  removed or made unreadable, nor may a folder above it be removed or moved;
- `read:PATH`: may not be read either;
- `run:NAME`: that program may not be run;
- `allow:ACT`: lifts one of the acts below.

Acts forbidden everywhere: `network` (any host but the loopback), `privilege`, `kill` (the shell's parent, pid 1, all
processes, or the grader by name), `history` (reading other revisions from version control), `tamper` (making the
judge's process load the agent's code), `flood` (fork bombs, endless writes), `hidden` (running decoded text that
cannot be read here, or code nested past following).

Not covered: programs already in the box that do these things inside, text that only exists at run time (unless it
goes from a decoder to a shell), compiled code. Those meet the sandbox.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from environments.gates.acts import act_of
from environments.gates.finding import ACTS, Act, Finding
from environments.gates.paths import matches
from environments.gates.shell.reader import Reader
from environments.gates.shell.state import Call, Event, Note, ShellState, Touch, Unreadable

__all__ = ["CommandPolicy", "Finding", "PolicyError", "policy_of", "read_commands"]


class PolicyError(ValueError):
    """A forbidden word that the policy does not know. The message lists the forms it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPolicy:
    """What is forbidden. Paths are absolute patterns; `acts` are the ones in force."""

    workdir: str
    protected: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    acts: frozenset[Act] = ACTS

    @property
    def grader_names(self) -> frozenset[str]:
        """Base names of protected files: what a grader process may be called."""
        return frozenset(p.rsplit("/", 1)[-1] for p in self.protected)


@functools.lru_cache(maxsize=1024)
def policy_of(words: tuple[str, ...], workdir: str) -> CommandPolicy:
    """Read a suite's forbidden words. Raises PolicyError on an unknown act."""
    paths: dict[str, list[str]] = {"protected": [], "unreadable": []}
    programs: list[str] = []
    acts = set(ACTS)
    for word in words:
        kind, colon, rest = word.partition(":")
        if colon and kind == "run":
            programs.append(rest)
        elif colon and kind == "allow":
            if rest not in ACTS:
                raise PolicyError(
                    f"forbidden word {word!r}: no act {rest!r}; want allow:ACT with one of {sorted(ACTS)}"
                )
            acts.discard(rest)
        else:
            place = "unreadable" if colon and kind == "read" else "protected"
            paths[place].append(ShellState(cwd=workdir).absolute(rest if place == "unreadable" else word))
    return CommandPolicy(
        workdir=workdir,
        protected=(*paths["protected"], *paths["unreadable"]),
        unreadable=tuple(paths["unreadable"]),
        programs=tuple(programs),
        acts=frozenset(acts),
    )


def _judge_touch(touch: Touch, policy: CommandPolicy) -> Finding | None:
    if touch.kind == "read":
        hit = next((p for p in policy.unreadable if matches(touch.path, p, below=False)), None)
        return Finding("read", f"reads {hit}") if hit is not None else None
    hit = next((p for p in policy.protected if matches(touch.path, p, below=touch.kind == "remove")), None)
    return Finding("edit", f"changes {hit}, which no agent may") if hit is not None else None


def _judge(event: Event, policy: CommandPolicy) -> Finding | None:
    if isinstance(event, Touch):
        found = _judge_touch(event, policy)
        if found is not None:
            return found
    if isinstance(event, Call) and event.words[0] in policy.programs:
        return Finding("run", f"runs {event.words[0]}, which is forbidden here")
    if isinstance(event, Note):
        return Finding(event.act, event.detail) if event.act in policy.acts else None
    act = act_of(event, policy.workdir, policy.grader_names)
    return act if act is not None and act.act in policy.acts else None


def _step(state: ShellState, command: str, policy: CommandPolicy) -> tuple[ShellState, Finding | None]:
    reader = Reader(state.copy())
    try:
        reader.read(command)
    except Unreadable:
        too_deep = Finding("hidden", "nested too deep, or too long, to be read")
        return reader.state, too_deep if "hidden" in policy.acts else None
    found = (_judge(event, policy) for event in reader.events)
    return reader.state, next((f for f in found if f is not None), None)


@functools.lru_cache(maxsize=4096)
def _after(commands: tuple[str, ...], policy: CommandPolicy) -> tuple[ShellState, Finding | None]:
    """The kept shell after these commands, and the last one's finding. Cached, so a growing prefix reads one turn."""
    if not commands:
        return ShellState(cwd=policy.workdir), None
    before, _ = _after(commands[:-1], policy)
    return _step(before, commands[-1], policy)


def read_commands(commands: Sequence[str], policy: CommandPolicy) -> tuple[int, Finding] | None:
    """The first forbidden command of one kept shell: its index and what is wrong, None when all may run.

    Never raises on any text. A command costs well under a millisecond; a prefix seen before costs a look-up.

    >>> policy = policy_of(("check",), "/srv")
    >>> read_commands(["cd /srv", "C=check; sed -i s/1/0/ $C"], policy)
    (1, Finding(act='edit', detail='changes /srv/check, which no agent may'))
    """
    texts = tuple(commands)
    for count in range(1, len(texts) + 1):
        _, finding = _after(texts[:count], policy)
        if finding is not None:
            return count - 1, finding
    return None
