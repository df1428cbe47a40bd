"""What a process gives up before it reads hostile input: everything but reading files and computing.

Invariant: after `confine()` this process, its threads and whatever they become cannot start a process, signal or
trace another, open a socket, open a file for writing, remove, rename or create one, or raise a limit; they have no
capabilities, and nobody of the same user can read their memory. It holds for good: there is no way back. How: a
seccomp filter, which needs no privilege and no namespace and so works in a container too. What is forbidden fails
with EPERM; system calls newer than Linux 5.1 do not exist, so the C library falls back to the older ones listed here.
What it does not stop: reading any file that the user can read, and burning time and memory (limits are for that).
Standard library only.
"""

import ctypes
import errno
import os
import struct
import sys

# name: (number on x86_64, number on aarch64)
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "setsid": (112, 157), "setpgid": (109, 154), "setns": (308, 268), "unshare": (272, 97), "prlimit64": (302, 261),
    "setrlimit": (160, 164), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # the network, and memory that no limit counts
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "mq_unlink": (241, 181),
    # changes to files
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "mknod": (133, None), "mknodat": (259, 33),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "chmod": (90, None), "fchmod": (91, 52),
    "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "open_by_handle_at": (304, 265),
    # the kernel itself
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218),
}  # fmt: skip
_NEWER_THAN_LINUX_5_1 = 424  # io_uring, pidfd_*, the mount calls, clone3, openat2, ...; the same on both machines

# machine: (its audit name, column above, the numbers of open, openat, clone, prctl)
_MACHINES: dict[str, tuple[int, int, int | None, int, int, int]] = {
    "x86_64": (0xC000003E, 0, 2, 257, 56, 157),
    "aarch64": (0xC00000B7, 1, None, 56, 220, 167),
}

_CLONE_THREAD = 0x10000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
_SECCOMP_MODE_FILTER = 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
_ALLOW, _FAIL, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def supported() -> bool:
    return sys.platform == "linux" and os.uname().machine in _MACHINES


def confine() -> None:
    """Give up the rights; an OSError if the kernel will not have it."""
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _drop_capabilities()
    program = _filter(os.uname().machine)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends."""
    _call("prctl", _PR_SET_PDEATHSIG, 9, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets away."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _drop_capabilities() -> None:
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
    _call("capset", header, ctypes.create_string_buffer(24))  # effective, permitted, inheritable: all zero


def _call(function: str, *arguments: object) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def _filter(machine: str) -> bytes:
    audit_name, column, open_, openat, clone, prctl = _MACHINES[machine]
    rules = [
        _step(_LOAD, _ARCH_OFFSET),
        _step(_JUMP_EQUAL, audit_name, jump_true=1),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _NUMBER_OFFSET),
        _step(_JUMP_AT_LEAST, _NEWER_THAN_LINUX_5_1, jump_false=1),
        _step(_RETURN, _FAIL | errno.ENOSYS),
    ]
    for numbers in _FORBIDDEN.values():
        if numbers[column] is not None:
            rules += [_step(_JUMP_EQUAL, numbers[column] or 0, jump_false=1), _step(_RETURN, _FAIL | errno.EPERM)]
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    rules += _unless_bits(open_, 1, writes) if open_ is not None else []
    rules += _unless_bits(openat, 2, writes)
    rules += [  # a new thread may be, a new process may not
        _step(_JUMP_EQUAL, clone, jump_false=4),
        _step(_LOAD, 16),
        _step(_JUMP_ANY_BIT, _CLONE_THREAD, jump_true=1),
        _step(_RETURN, _FAIL | errno.EPERM),
        _step(_RETURN, _ALLOW),
        _step(_JUMP_EQUAL, prctl, jump_false=3),  # it may not outlive its parent
        _step(_LOAD, 16),
        _step(_JUMP_EQUAL, _PR_SET_PDEATHSIG, jump_false=1),
        _step(_RETURN, _FAIL | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(rules)


def _unless_bits(number: int, argument: int, bits: int) -> list[bytes]:
    """Allow the call `number` unless its argument has one of the bits."""
    return [
        _step(_JUMP_EQUAL, number, jump_false=4),
        _step(_LOAD, 16 + 8 * argument),
        _step(_JUMP_ANY_BIT, bits, jump_false=1),
        _step(_RETURN, _FAIL | errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]


def _step(code: int, operand: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, jump_true, jump_false, operand)
