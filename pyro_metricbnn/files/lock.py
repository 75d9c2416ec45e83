"""A file for one process alone, until that process ends or is killed.

In: the path of a file that is written again and again.  Out: a context in which no other process has it locked.
"""

import errno
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .storage import clear_left_over

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """The file at `path` for this process; what killed ones left half-written beside it is cleared away.

    The system lets go of it when the process ends, however it ends. There is no lock where files cannot have one, as on
    Windows. Raises ValueError if another process has it.
    """
    lock = path.with_name(f".{path.name}.lock")
    file = None if fcntl is None else _opened(lock, path)
    try:
        yield
    finally:
        if file is not None:
            lock.unlink(missing_ok=True)
            file.close()


def _opened(lock: Path, path: Path) -> IO[bytes] | None:
    """The lock file, open and locked; None where that cannot be done."""
    while True:
        try:
            file = open(lock, "a+b", buffering=0)  # noqa: SIM115  (what is open is the lock)
        except OSError:
            return None
        try:
            # Not flock: forked workers of a DataLoader, which outlive a killed process for seconds, would hold it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return None
            holder = "unknown"
            with suppress(OSError, UnicodeDecodeError):
                holder = lock.read_text()[:80] or holder
            taken = f"{path} is the checkpoint of a walk that goes on in another process ({holder})"
            advice = "Wait until it is over, stop it, or take another path."
            raise ValueError(f"{taken}: two would overwrite each other's state. {advice}") from error
        with suppress(FileNotFoundError):  # whoever had it last has just taken it away
            if os.fstat(file.fileno()).st_ino == lock.stat().st_ino:
                break
        file.close()
    clear_left_over(path, idle=-math.inf)
    with suppress(OSError):  # a full disk: the lock stands without a name on it
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
    return file
