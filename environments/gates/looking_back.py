"""Commands that read the past from version control, where the fix may lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.gates.finding import Act

_PAST_NAMES = (
    "log show reflog blame annotate rev-list cat-file fsck whatchanged format-patch cherry-pick bisect "
    "shortlog range-diff fast-export unpack-objects verify-pack"
)
_PAST = frozenset(_PAST_NAMES.split())
_REMOTE = frozenset({"clone", "fetch", "pull", "push", "ls-remote", "submodule"})
_COMPARING_NAMES = "diff checkout restore switch reset grep archive worktree merge rebase difftool"
_COMPARING = frozenset(_COMPARING_NAMES.split())
_REVISION = re.compile(
    r"^(?:[0-9a-f]{7,40}|HEAD[~^@].*|ORIG_HEAD|FETCH_HEAD|stash@.*|.*\.\..*|origin/.*|v?\d+\.\d+(?:\.\d+)*)(?::.*)?$"
)


def git(words: Sequence[str]) -> tuple[Act, str] | None:
    """Other revisions than HEAD are history; other repositories are network. The work at hand is neither."""
    if words[0] != "git":
        return None
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in ("-C", "-c", "--git-dir", "--work-tree") else 1]
    if not rest:
        return None
    verb, operands = rest[0], rest[1:]
    if verb in _REMOTE:
        return "network", f"git {verb} reaches for the network"
    only_head = [w for w in operands if not w.startswith("-")] and all(
        w.split(":")[0] == "HEAD" for w in operands if not w.startswith("-")
    )
    if verb in _PAST and not (verb == "show" and (only_head or not operands)):
        return "history", f"git {verb} reads other revisions"
    if verb == "stash" and operands[:1] in (["show"], ["list"]):
        return "history", "git stash show reads other revisions"
    named = operands[: operands.index("--")] if "--" in operands else operands
    if verb in _COMPARING:
        hit = next((w for w in named if _REVISION.match(w.removeprefix("--source="))), None)
        return ("history", f"git {verb} {hit} reads another revision") if hit is not None else None
    return None
