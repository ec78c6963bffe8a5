"""Who holds which slot of the key-value cache: sessions, idle leftovers, and the prefixes they can share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from infra.engines.packed import KVCache

Ids = npt.NDArray[np.int64]


class Slot:
    """One row of the cache. `ids[:length]` are the tokens whose keys and values it holds."""

    def __init__(self, index: int, ids: Ids) -> None:
        self.index = index
        self.session_id: str | None = None
        self.busy = False
        self.last_used = 0
        self.length = 0
        self._ids = ids

    def keep(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.length = min(self.length, length)

    def append(self, ids: Sequence[int] | Ids) -> None:
        """Note that the keys and values of `ids` are now in the cache, after those held."""
        self._ids[self.length : self.length + len(ids)] = ids
        self.length += len(ids)

    def common_prefix(self, ids: Ids) -> int:
        """How many of `ids` stand here already, from the start."""
        return common_prefix(self._ids[: self.length], ids)


class SlotTable:
    """Slots handed to calls and taken back; idle ones are re-used least recently used first.

    The bound on cache memory is the number of slots: a session that was evicted is read again from its ids.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._ids: Ids = np.zeros((cache.num_slots, cache.positions), dtype=np.int64)
        self._slots = [Slot(i, self._ids[i]) for i in range(cache.num_slots)]
        self._of_session: dict[str, Slot] = {}
        self._clock = 0

    def acquire(self, session_id: str, prompt: Ids, limit: int) -> Slot | None:
        """The session's slot, or the best idle one, cut to the common prefix; None while all are busy.

        `limit` is the most tokens of `prompt` that may come from the cache. A second call of a session that is
        answering already gets a slot of its own.
        """
        slot = self._of_session.get(session_id)
        if slot is None or slot.busy:
            idle = [s for s in self._slots if not s.busy]
            if not idle:
                return None
            slot = min(idle, key=lambda s: (s.session_id is not None, s.last_used))
            self._bind(slot, session_id)
        slot.busy = True
        slot.keep(min(slot.common_prefix(prompt), limit))
        return slot

    def _bind(self, slot: Slot, session_id: str) -> None:
        if slot.session_id is not None:
            del self._of_session[slot.session_id]
        slot.session_id = None
        if session_id not in self._of_session:
            slot.session_id = session_id
            self._of_session[session_id] = slot

    def borrow_prefix(self, slot: Slot, prompt: Ids, limit: int) -> None:
        """Copy into `slot` the longest prefix of `prompt[:limit]` that another slot holds, if longer than its own."""
        lengths = np.array([s.length for s in self._slots])
        same = self._ids[:, :limit] == prompt[:limit]
        same &= np.arange(limit) < lengths[:, None]
        shared = np.where(same.all(axis=1), limit, same.argmin(axis=1))
        donor = int(shared.argmax())
        if shared[donor] > slot.length:
            start, end = slot.length, int(shared[donor])
            self._cache.copy_prefix(donor, slot.index, start, end)
            slot.append(prompt[start:end])

    def release(self, slot: Slot) -> None:
        """The call that held `slot` has ended; what it holds stays for the next turn."""
        self._clock += 1
        slot.busy, slot.last_used = False, self._clock

    def close_session(self, session_id: str) -> None:
        """Unbind the session's slot: the first to be re-used, and until then a donor of prefixes."""
        slot = self._of_session.pop(session_id, None)
        if slot is not None:
            slot.session_id = None

    def clear(self) -> None:
        """Forget everything (new weights): no slot may be busy."""
        self._of_session.clear()
        for slot in self._slots:
            slot.session_id, slot.length = None, 0


def common_prefix(left: Ids, right: Ids) -> int:
    """The number of leading ids that are equal."""
    count = min(len(left), len(right))
    different = np.flatnonzero(left[:count] != right[:count])
    return int(different[0]) if len(different) else count
