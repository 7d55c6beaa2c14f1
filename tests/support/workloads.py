"""Recorded edit histories in `../shared/data` (or FENCEBEAT_DATA_DIR): a base state, and commits to replay on it."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest


def data_dir() -> Path:
    """Where the data for tests is; it is not part of this repository."""
    return Path(os.environ.get("FENCEBEAT_DATA_DIR") or Path(__file__).parents[3] / "shared" / "data")


class Workload:
    """One recorded history: `write_base`, then `apply` each of `commits`."""

    def __init__(self, name: str) -> None:
        self.folder = data_dir() / name
        if not (self.folder / "manifest.json").is_file():
            pytest.skip(f"the recorded history {name} is not here; set FENCEBEAT_DATA_DIR to the folder that has it")
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        self.commits = list(_lines(self.folder / "commits.jsonl.gz"))

    def write_base(self, root: Path) -> int:
        """Write the base state below `root`; returns the number of files."""
        count = 0
        for file in _lines(self.folder / "base.jsonl.gz"):
            _write(root, file["path"], file["text"])
            count += 1
        return count

    def apply(self, root: Path, commit: dict) -> None:
        """Change the folder as one commit did; a rename is a deletion and an addition, as a crawler sees it."""
        for change in commit["changes"]:
            if change["op"] == "D":
                (root / change["path"]).unlink()
            else:
                _write(root, change["path"], change["text"])

    def state(self, root: Path) -> str:
        """The folder's state as the manifest's `final_state_sha256` has it."""
        pairs = sorted(
            [path.relative_to(root).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()]
            for path in root.rglob("*")
            if path.is_file()
        )
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def _lines(path: Path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text.encode())
