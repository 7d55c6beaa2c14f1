"""The jars of OpenSearch, in the user's cache folder: built once by Maven from our pom.xml, never in the checkout.

The folder is named by the pom's hash, built beside its place and renamed into it: it is whole or absent. A file lock
makes a second process wait for the first one's build.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ops.services.errors import NoMaven, ServerFailed

_POM = Path(__file__).with_name("pom.xml")
BUILD_SECONDS = 900.0  # 110 MB over a slow line


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where things that can be fetched again are kept: FENCEBEAT_CACHE, else fencebeat in the user's cache folder."""
    if environ.get("FENCEBEAT_CACHE"):
        return Path(environ["FENCEBEAT_CACHE"])
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fencebeat"


def cached(environ: Mapping[str, str]) -> Path | None:
    """The folder of the jars if they are there: `lib`, `knn` and `ns` in it."""
    folder = _folder(environ)
    return folder if folder.is_dir() else None


def _folder(environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / f"opensearch-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]}"


def run_maven(argv: list[str], cwd: Path, environ: Mapping[str, str], log: Path) -> None:
    """Run Maven here and now. Raises subprocess.SubprocessError when it fails."""
    with log.open("wb") as output:
        subprocess.run(
            argv,
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            check=True,
        )


RunMaven = Callable[[list[str], Path, Mapping[str, str], Path], None]


def fetch(environ: Mapping[str, str], run: RunMaven = run_maven) -> Path:
    """The folder of the jars, built by Maven if it is not there yet.

    Args:
        environ: names the cache; Maven is found on its PATH.
        run: runs Maven, as `run_maven` does; so that a keeper can hold it.

    Raises:
        NoMaven: they have to be built and there is no `mvn`.
        ServerFailed: Maven failed; its last lines are in the message.
    """
    folder = _folder(environ)
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn", path=environ.get("PATH"))
    if maven is None:
        raise NoMaven
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(maven, folder, environ, run)
    return folder


def _build(maven: str, folder: Path, environ: Mapping[str, str], run: RunMaven) -> None:
    # Builds whose process was killed in the middle; the lock says that none of them is going on.
    for left in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(left)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.building-", dir=folder.parent))
    shutil.copy(_POM, building / "pom.xml")
    log = folder.with_suffix(".log")
    try:
        run([maven, "--batch-mode", "--quiet", "package"], building, environ, log)
    except subprocess.SubprocessError as error:
        shutil.rmtree(building)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise ServerFailed(server="OpenSearch", why=f"Maven could not fetch it: {error}", log=log, tail=tail) from error
    building.rename(folder)
