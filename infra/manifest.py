"""Manifests: what a stage made, from what, and how. One immutable manifest stands for one artifact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.digests import digest_of

SCHEMA_VERSION = 1

_DIGEST = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")


class ManifestError(ValueError):
    """A manifest that contradicts itself. Says what was got and what is wanted."""


def is_digest(text: str) -> bool:
    """Whether `text` is a SHA-256 in hex, as content keys and content digests are."""
    return _DIGEST.fullmatch(text) is not None


def _need(condition: object, message: str) -> None:
    if not condition:
        raise ManifestError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """Who made an artifact and at what cost.

    `config_digest` is of the stage's config section. `code_version` is a git sha or package version.
    `image_digests` are (name, digest) of container images used. `cpu_s`, `gpu_s` are seconds of this attempt.
    """

    stage: str
    stage_version: int
    config_digest: str
    code_version: str
    seed: int
    image_digests: tuple[tuple[str, str], ...] = ()
    attempt: int = 0
    cpu_s: float = 0.0
    gpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One artifact: a file or a folder, found by `key`, whose content has digest `sha256`.

    `kind` says what it holds ('trajectories', 'policy'). `uri` is relative to the store, so that a store may be
    moved or mirrored. `rows` counts records (0 for a folder of other files); `schema_version` is theirs.
    `parents` are the keys of the manifests it was made from.

    >>> manifest = Manifest(key="a" * 64, kind="samples", uri="objects/" + "b" * 64 + ".samples.parquet",
    ...     sha256="b" * 64, rows=32, schema_version=1, parents=("c" * 64,),
    ...     producer=Producer(stage="judge", stage_version=1, config_digest="d" * 64, code_version="v1", seed=0))
    >>> manifest.same_artifact(manifest)
    True
    """

    key: str
    kind: str
    uri: str
    sha256: str
    rows: int
    schema_version: int
    parents: tuple[str, ...]
    producer: Producer

    def __post_init__(self) -> None:
        for name in ("key", "sha256"):
            value = getattr(self, name)
            _need(is_digest(value), f"manifest.{name} is {value!r}; want 64 hex digits")
        _need(_KIND.fullmatch(self.kind), f"manifest.kind is {self.kind!r}; want a lower-case name such as 'samples'")
        _need(self.rows >= 0, f"manifest.rows is {self.rows}; want 0 or more")
        parts = self.uri.split("/")
        _need(
            len(parts) == 2 and parts[0] == "objects" and parts[1].startswith(self.sha256),
            f"manifest.uri is {self.uri!r}; want 'objects/<sha256>.<name>'",
        )

    def same_artifact(self, other: Manifest) -> bool:
        """Whether both stand for the same content from the same parents, whatever it cost to make."""
        mine = (self.key, self.kind, self.sha256, self.rows, self.schema_version, self.parents)
        return mine == (other.key, other.kind, other.sha256, other.rows, other.schema_version, other.parents)


def content_key(*, parents: Sequence[Manifest], stage: str, stage_version: int, config_section: Any, seed: int) -> str:
    """The key under which a stage's result is stored: equal work has an equal key, so it is done once.

    Parents count by content (in order), not by key: a parent made anew with other content is another parent.
    `config_section` is anything `digest_of` takes: a dataclass, mapping, sequence or scalar.
    """
    made_from = [[parent.kind, parent.sha256] for parent in parents]
    return digest_of([stage, stage_version, digest_of(config_section), seed, made_from])
