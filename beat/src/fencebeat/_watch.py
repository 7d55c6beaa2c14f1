"""The watcher of `watchdog`, run as a program: `_watch.py PID LIMIT SIGNAL`, heartbeats on standard input.

It counts slices of one second in which its owner ran but said nothing. At LIMIT it sends SIGNAL, then SIGKILL. It ends
with its owner: end of file, also after SIGKILL. Only the standard library, so that it starts fast and stays small.
"""

import os
import select
import signal
import sys


def stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger. Without /proc nobody can tell, so: no."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - pathlib would double the start-up time
            return stat.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except OSError:
        return False


def watch(pid: int, limit: int, signum: int) -> None:
    """Return when the owner has gone or called off; else end it after `limit` silent slices."""
    silent = 0
    while silent < limit:
        ready, _, _ = select.select([0], [], [], 1.0)
        if ready:
            if not os.read(0, 65536):
                return
            silent = 0
        elif os.getppid() != pid:  # a fork of the owner may keep the pipe open
            return
        elif not stopped(pid):
            silent += 1
    os.write(2, f"fencebeat: the tick thread was silent for {limit} s; ending process {pid}\n".encode())
    os.kill(pid, signum)
    ready, _, _ = select.select([0], [], [], 1.0)
    if os.getppid() == pid:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(*(int(argument) for argument in sys.argv[1:4]))
