"""The seccomp filter of a box: system calls that build new worlds or reach deep into the kernel are refused.

Above all user namespaces: with one, an agent would hold capabilities in it and could mount memory file systems past
its disk limit. Numbers are those of the kernel's tables (arch/x86/entry/syscalls, include/uapi/asm-generic/unistd.h);
the program is classic BPF over struct seccomp_data (see seccomp(2)).
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

# fsopen and kin, io_uring and clone3 have the same numbers on every architecture.
NEW_MOUNT_CALLS = (428, 429, 430, 431, 432, 433, 442)
IO_URING_CALLS = (425, 426, 427)
CLONE3 = 435
NEW_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # low half of the argument: both are little-endian
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An audit number, and the numbers of refused calls and of clone."""

    audit: int
    refused: tuple[int, ...]
    clone: int


ARCHITECTURES = {
    # mount, umount2, pivot_root, unshare, setns, add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd
    "x86_64": Architecture(
        audit=0xC000003E, refused=(165, 166, 155, 272, 308, 248, 249, 250, 298, 321, 323), clone=56
    ),
    "aarch64": Architecture(
        audit=0xC00000B7, refused=(40, 39, 41, 97, 268, 217, 218, 219, 241, 280, 282), clone=220
    ),
}  # fmt: skip


def filter_program() -> bytes | None:
    """The filter for this machine; None where its system call numbers are not known here."""
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return None
    refuse = _refuse(errno.EPERM)
    program = [
        _op(_LOAD, _ARCHITECTURE_AT),
        _op(_JUMP_EQUAL, architecture.audit, yes=1),
        refuse,
        _op(_LOAD, _NUMBER_AT),
        _op(_JUMP_GREATER_EQUAL, X32_BIT, no=1),
        refuse,
    ]
    for number in (*architecture.refused, *NEW_MOUNT_CALLS, *IO_URING_CALLS):
        program += [_op(_JUMP_EQUAL, number, no=1), refuse]
    program += [_op(_JUMP_EQUAL, CLONE3, no=1), _refuse(errno.ENOSYS)]  # its flags cannot be read; libc uses clone
    program += [
        _op(_JUMP_EQUAL, architecture.clone, no=3),
        _op(_LOAD, _FIRST_ARGUMENT_AT),
        _op(_JUMP_ANY_BIT, NEW_NAMESPACE_FLAGS, no=1),
        refuse,
        _op(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _op(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One struct sock_filter: `yes` and `no` are how many instructions a jump skips."""
    return struct.pack("<HBBI", code, yes, no, value)


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _REFUSE | number)
