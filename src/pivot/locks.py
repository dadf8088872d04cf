"""Locks on files and folders that end with the process, however it ends. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_held: set[int] = set()
"""File descriptors of the locks that this process holds."""
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Of file systems without locks; there every lock is granted."""


def _release_after_fork() -> None:
    """A forked worker must not hold its parent's locks: it would outlive a killed parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_after_fork)


def acquire(path: Path, *, shared: bool = False, wait: bool = False) -> int | None:
    """Lock a file or folder that exists; returns a descriptor for `release`, None if it is taken.

    Raises FileNotFoundError if `path` is gone, also if it was replaced while this call waited for it.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    writable = not shared and not path.is_dir()  # NFS wants it for an exclusive lock
    descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as refusal:
        if refusal.errno not in _UNSUPPORTED:
            os.close(descriptor)
            raise
    _held.add(descriptor)
    if not _is_at(descriptor, path):
        release(descriptor)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return descriptor


def release(descriptor: int) -> None:
    """Unlock; a lock that was already released stays so."""
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock of a file or folder and keep it for the block."""
    descriptor = acquire(path, wait=True)
    assert descriptor is not None, "waited for"
    try:
        yield
    finally:
        release(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
