"""Start one server: a free port, a probe with a time-out, the last log lines in the error, another port if taken."""

import os
import random
import re
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fencebeat.clock import system_clock
from ops.services.errors import ServerFailed
from ops.services.keeping import Child

PROBE_SECONDS = 2.0  # of one probe's own connection
_PAUSE_SECONDS = 0.05  # between two probes
_PORT_TRIES = 5
SOCKET_LIMIT = 103  # bytes of a socket's path: macOS has 104 with the closing NUL, Linux 108
_TAKEN = re.compile(r"address (is )?already in use|could not bind|failed to bind|BindTransport|BindHttp", re.IGNORECASE)


def free_ports(low: int = 0, high: int = 0) -> Iterator[int]:
    """Ports of 127.0.0.1 that were free a moment ago: any, or those of low..high in random order."""
    # From the system: two processes with one seed would choose the same port, and both find it free.
    candidates = [0] * 1000 if not low else random.SystemRandom().sample(range(low, high + 1), high + 1 - low)
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found = probe.getsockname()[1]
        yield found


def launch(
    server: str,
    start: Callable[[], Child],
    ready: Callable[[Child], bool],
    at_most: float,
    cancelled: threading.Event | None = None,
) -> Child:
    """Start a server and wait until it answers; a start that lost its port to another process is tried again.

    Args:
        server: its name in messages.
        start: starts the process, on ports chosen anew at each call.
        ready: one probe; False or an OSError: not yet.
        at_most: seconds until a start counts as failed.
        cancelled: set by whoever no longer wants the server.

    Raises:
        ServerFailed: it ended, could not be started, or did not answer in time.
    """
    clock = system_clock()
    cancelled = cancelled or threading.Event()
    for attempt in range(1, _PORT_TRIES + 1):
        try:
            child = start()
        except OSError as error:
            raise ServerFailed(server=server, why=str(error), log="its log", tail="(never ran)") from error
        until = clock.elapsed() + at_most
        while not child.ended.wait(_PAUSE_SECONDS):
            if _answers(ready, child):
                return child
            if clock.elapsed() > until or cancelled.is_set():
                why = "cancelled" if cancelled.is_set() else f"no answer within {at_most:g} s"
                raise ServerFailed(server=server, why=why, log=child.log, tail=child.tail())
        if attempt == _PORT_TRIES or not _TAKEN.search(child.tail(60)):
            break
    raise ServerFailed(server=server, why=f"it ended with code {child.code}", log=child.log, tail=child.tail())


def _answers(ready: Callable[[Child], bool], child: Child) -> bool:
    try:
        return ready(child)
    except OSError:  # refused, reset, timed out: not yet
        return False


def private_folder(path: Path, mode: int = 0o700) -> Path:
    """A folder that only we write to, made if missing; for places that others may write beside (the system's /tmp).

    Raises PermissionError when it belongs to someone else, is a link, or may be written by others.
    """
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is not a folder of our own")
    path.chmod(mode)  # the umask may have taken bits away, and others must never have write permission
    return path


def shared_root() -> Path:
    """Our folder under the system's temporary folder, with a short path; others may pass through, not list or write."""
    root = Path(tempfile.gettempdir()) / f"fencebeat-{os.geteuid()}"
    if len(os.fsencode(root)) > SOCKET_LIMIT - 40:  # a long TMPDIR
        root = Path("/tmp") / root.name  # noqa: S108 - made and checked as a private folder
    return private_folder(root, 0o711)
