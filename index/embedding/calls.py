"""The embedder's own call log: one JSON line for each batch that is given to the model.

    {"t": CLOCK_BOOTTIME, "wall": UTC seconds, "pid": …, "n": 2, "inputs": [blake2b-256 in hex, …], "probes": 1, …}

A line is written *before* the model runs, so no embedding can be missing from it, also not after SIGKILL. The probe
text of the client's check is counted apart: `n` and `inputs` are texts of documents and of searches.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fencebeat.clock import SystemClock
from index.embedding.probe import PROBE
from index.ids import input_hash


class CallLog:
    """Appends to one call log. Lines of several processes stay whole, as each is one write in append mode."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._clock = SystemClock()  # what it says is evidence: no injected clock may move it

    def batch(self, inputs: Sequence[str], tokens: int) -> None:
        """Record a batch that is about to run."""
        hashes = [input_hash(text).hex() for text in inputs if text != PROBE]
        line = {
            "t": round(self._clock.elapsed(), 6),
            "wall": round(self._clock.wall(), 6),
            "pid": os.getpid(),
            "n": len(hashes),
            "inputs": hashes,
            "probes": len(inputs) - len(hashes),
            "tokens": tokens,
        }
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines so far, oldest first; none where there is no such file."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def count(path: Path) -> int:
    """How many texts were embedded, probes apart."""
    return sum(line["n"] for line in read(path))
