"""What a guard is, and the list of all of them: every `GUARDS` in the files `of_*.py` beside this one."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Guard:
    """One guard, how it is taken away, and which tests must die then.

    file: from the root of the tree. text: exactly as it stands there, once. instead: what stands there without the
    guard. breaks: the invariants at stake. tests: node ids without parameters; all are run, one must fail. also:
    further patches (file, text, instead), where two guards back each other up and one alone is not missed.
    """

    name: str
    breaks: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def patches(self) -> tuple[tuple[str, str, str], ...]:
        """All patches: (file, text, instead)."""
        return ((self.file, self.text, self.instead), *self.also)


class Moved(AssertionError):
    """The text of a patch is not there any more, or there twice: the guard has moved."""


def patched(root: Path, guard: Guard) -> dict[Path, str]:
    """The files of `root` that the guard's removal changes, with their new text. Raises Moved."""
    changed: dict[Path, str] = {}
    for name, text, instead in guard.patches:
        path = root / name
        before = changed.get(path) or (path.read_text() if path.exists() else "")
        if before.count(text) != 1:
            raise Moved(f"{guard.name}: {name} has {before.count(text)} times, not once:\n{text}")
        changed[path] = before.replace(text, instead)
    return changed


def guards() -> tuple[Guard, ...]:
    """Every guard, in the order of the files and within them."""
    found: list[Guard] = []
    for path in sorted(Path(__file__).parent.glob("of_*.py")):
        spec = importlib.util.spec_from_file_location(f"guards_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.extend(module.GUARDS)
    return tuple(found)
