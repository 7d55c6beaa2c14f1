"""Takes each guard away once, in a copy of the tree, and sees whether a test dies: `make guards`.

    python tests/guards/remove.py                    all guards
    python tests/guards/remove.py commit-token ...   these only (beginnings of names do)
    python tests/guards/remove.py --list | --changed (those in files that differ from HEAD)

The rows of docs/guards.md that were run are written anew, the others stay.

First the named tests must pass on the untouched copy, or their death would prove nothing. Exit code 0 only where every
guard was missed by a test.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.guards.guard import ROOT, Guard, guards, patched
from tests.support.servers import running

TABLE = ROOT / "docs" / "guards.md"
LIMIT = 300
"""Seconds for the tests of one guard."""
NO_TESTS = 5
"""What pytest ends with where nothing was selected."""
ALL = 1800
"""Seconds for all of them with every guard in place."""


@dataclass(frozen=True)
class Death:
    """What the tests said without a guard."""

    guard: Guard
    died: tuple[str, ...]  # empty: the guard was not missed
    trouble: str = ""


def copy(folder: Path) -> None:
    """The tree as it is now, without what git ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())


def run_tests(
    folder: Path, tests: tuple[str, ...], *more: str, redis_url: str = "", limit: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    """Pytest in `folder`, with that folder's product before the one that is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    path = os.pathsep.join(str(folder / part) for part in ("beat/src", "."))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    if redis_url:
        environment["REDIS_URL"] = redis_url
    try:
        return subprocess.run(
            [*command, *more, *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        said = slow.stdout.decode(errors="replace") if isinstance(slow.stdout, bytes) else slow.stdout or ""
        return subprocess.CompletedProcess(command, 124, said, "")


def without(folder: Path, guard: Guard, redis_url: str = "") -> Death:
    """Take one guard away in `folder`, run its tests, and put it back."""
    changed = patched(folder, guard)
    before = {path: path.read_text() for path in changed}
    try:
        for path, text in changed.items():
            path.write_text(text)
        done = run_tests(folder, guard.tests, "-x", "--timeout", "60", redis_url=redis_url)
    finally:
        for path, text in before.items():
            path.write_text(text)
    failed = re.findall(r"^FAILED ([^\s\[]+)", done.stdout, re.MULTILINE)
    died = tuple(dict.fromkeys(failed))  # each once, also where several of its parameters failed
    if done.returncode == 1 and died:
        return Death(guard, died)
    end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
    return Death(guard, (), "" if done.returncode == 0 else f"pytest ended with {done.returncode}\n{end}")


def proper(folder: Path) -> None:
    """Raises SystemExit unless the copy's own product would be tested."""
    code = "import fencebeat, sys; print(fencebeat.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(folder / "beat/src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    if not done.stdout.startswith(str(folder)):
        raise SystemExit(f"the copy would test {done.stdout.strip()}, not itself")


def row(death: Death) -> str:
    """One line of docs/guards.md."""
    guard = death.guard
    tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in death.died) or "**none**"
    files = ", ".join(dict.fromkeys(f"`{Path(name).name}`" for name, _, _ in guard.patches))
    return f"| {guard.name} | {guard.breaks} | {files} | {tests} |"


def rows(text: str) -> dict[str, str]:
    """The rows of docs/guards.md, by guard."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return {line.split("|")[1].strip(): line for line in lines}


def table(deaths: list[Death], before: str = "") -> str:
    """docs/guards.md, in the order of the list; `before` is its text until now."""
    known = {**rows(before), **{death.guard.name: row(death) for death in deaths}}
    lines = [known[guard.name] for guard in guards() if guard.name in known]
    missed = sum("**none**" not in line for line in lines)
    return "\n".join([HEAD.format(missed=missed, all=len(lines)), *lines, ""])


HEAD = """# Guards, each taken away once

`make guards` removes each guard in a copy of the tree and runs the tests named for it. {missed} of {all} removals were
noticed. A removal is a small patch in `tests/guards/`, so the product holds no switch for it; a patch that no longer
applies fails the run. The model in `tests/model/` takes away the guards of the protocol itself.

| guard | breaks without it | in | dies without it |
| --- | --- | --- | --- |"""


def chosen(names: list[str], *, changed: bool) -> list[Guard]:
    """The guards to remove. Raises SystemExit for a name that is none."""
    every = guards()
    if changed:
        command = ["git", "-C", str(ROOT), "diff", "--name-only", "HEAD"]
        differing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
        return [guard for guard in every if any(name in differing for name, _, _ in guard.patches)]
    unknown = [name for name in names if not any(guard.name.startswith(name) for guard in every)]
    if unknown:
        raise SystemExit(f"no guard is called {', '.join(unknown)}; --list shows them")
    return [guard for guard in every if not names or any(guard.name.startswith(name) for name in names)]


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description="Take guards away and see which test dies.")
    parser.add_argument("names", nargs="*", help="guards, or beginnings of their names; all where none is named")
    parser.add_argument("--list", action="store_true", help="show the guards and end")
    parser.add_argument("--changed", action="store_true", help="only guards in files that differ from HEAD")
    parser.add_argument("--jobs", type=int, default=2, help="guards that are taken away at once, each in its own copy")
    options = parser.parse_args()
    todo = chosen(options.names, changed=options.changed)
    if options.list:
        print("\n".join(f"{guard.name:32} {guard.breaks:10} {guard.file}" for guard in todo))  # noqa: T201 - a command
        return 0
    for guard in todo:
        patched(ROOT, guard)  # a guard that has moved fails before anything runs
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencebeat-guards-")))
        jobs = 1 if "REDIS_URL" in os.environ else options.jobs  # one server has databases for one of them only
        places: SimpleQueue[tuple[Path, str]] = SimpleQueue()
        for number in range(1, jobs + 1):  # each with a server of its own: the tests empty its databases
            tree = folder / f"tree-{number}"
            copy(tree)
            proper(tree)
            places.put((tree, stack.enter_context(running("valkey", folder / f"valkey-{number}")).redis_url))
        tests = tuple(dict.fromkeys(test for guard in todo for test in guard.tests))
        tree, redis_url = places.get()
        beside = ("-n", str(jobs), "-m", "not timed")  # each process with a server of its own
        alone = ("-m", "timed")  # they hold promised times against the clock
        for more, url in ((beside, "" if jobs > 1 else redis_url), (alone, redis_url)):
            whole = run_tests(tree, tests, "--timeout", "120", *more, redis_url=url, limit=ALL)
            if whole.returncode not in (0, NO_TESTS):
                print(whole.stdout[-6000:], whole.stderr[-2000:])  # noqa: T201 - a command
                print("these tests fail with all guards in place, so their death would prove nothing")  # noqa: T201
                return 2
        places.put((tree, redis_url))

        def one(guard: Guard) -> Death:
            tree, redis_url = places.get()
            try:
                return without(tree, guard, redis_url)
            finally:
                places.put((tree, redis_url))

        deaths = []
        with ThreadPoolExecutor(jobs) as pool:
            for death in pool.map(one, todo):
                deaths.append(death)
                said = ", ".join(death.died) or f"NOT MISSED by {', '.join(death.guard.tests)}\n{death.trouble}"
                print(f"{death.guard.name:32} {said}", flush=True)  # noqa: T201 - a command
    missed = sum(bool(death.died) for death in deaths)
    print(f"{missed} of {len(deaths)} guards were missed by a test")  # noqa: T201 - a command
    TABLE.write_text(table(deaths, TABLE.read_text() if TABLE.exists() else ""))
    return 0 if missed == len(deaths) else 1


if __name__ == "__main__":
    sys.exit(main())
