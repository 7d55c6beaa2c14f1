"""Which Java runs OpenSearch: the first that is new enough of the named ones, the system's, and the one on PATH."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ops.services.errors import NoJava

OLDEST = 21  # OpenSearch 3's class files
_ASK_SECONDS = 20.0  # `java -version` on a cold, busy machine
_SYSTEM_FOLDERS = (
    Path("/usr/lib/jvm"),
    Path("/usr/java"),
    Path("/opt/java"),
    Path("/Library/Java/JavaVirtualMachines"),
)


def find_java(environ: Mapping[str, str], folders: Sequence[Path] = _SYSTEM_FOLDERS) -> Path:
    """The `java` program to use. Raises NoJava, which says what was found instead."""
    found = []
    for java in _candidates(environ, folders):
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return java
        found.append(f"{java} is {version or 'unknown'}")
    raise NoJava(found=", ".join(dict.fromkeys(found)) or "none found")


def _candidates(environ: Mapping[str, str], folders: Sequence[Path]) -> Iterator[Path]:
    homes = [Path(environ[name]) for name in ("FENCEBEAT_JAVA_HOME", "JAVA_HOME") if environ.get(name)]
    for folder in folders:
        if folder.is_dir():
            # The highest version in a name first; a name without a number comes last.
            homes += sorted((home for home in folder.iterdir() if home.is_dir()), key=_number_in_name, reverse=True)
    for home in homes:
        for java in (home / "bin" / "java", home / "Contents" / "Home" / "bin" / "java"):
            if java.is_file():
                yield java
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path:
        yield Path(on_path)


def _number_in_name(home: Path) -> int:
    number = re.search(r"\d+", home.name)
    return int(number.group()) if number else 0


def java_version(java: Path) -> int | None:
    """The major version that `java -version` reports; None when it does not run."""
    try:
        said = subprocess.run([java, "-version"], check=True, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match.group(1)) if match else None
