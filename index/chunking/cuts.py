"""Where cuts go, so that an edit moves as few of them as possible.

A stretch that is too long is cut at its best boundary: of the highest rank, and among those at the one whose following
unit has the highest hash. Both halves are then treated alike. The choice depends on what stands at a boundary, never on
how far it is from the beginning, so a sentence put in early in a section moves no later cut (packing greedily from the
left would move all of them). An edit changes the chunk it falls into, and its neighbour where it made or removed the
best boundary. Cuts nearer than `least` to an end of the stretch are not made unless there is no other.

The same idea cuts files for synchronisation ("content-defined chunking"; Muthitacharoen, Chen, Mazieres, "A
Low-bandwidth Network File System", SOSP 2001); the recursion by priority is that of a treap (Seidel, Aragon, 1996).
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from index.chunking.units import Fits, Unit

_HASH_BITS = 56  # below them the rank; together they fit a signed 64-bit integer


def cut(text: str, units: Sequence[Unit], *, fits: Fits, least: int) -> list[tuple[int, int]]:
    """Spans of the chunks that `units` are packed into, in order; each has one unit, or `fits`.

    least: characters that a chunk should have, where the boundaries allow.
    """
    if not units:
        return []
    starts = np.fromiter((unit.start for unit in units), np.int64, len(units))
    ends = np.fromiter((unit.end for unit in units), np.int64, len(units))
    priorities = _priorities(text, units)
    spans: list[tuple[int, int]] = []
    open_ = [(0, len(units) - 1)]  # stretches of units, both ends included; the leftmost is on top
    while open_:
        first, last = open_.pop()
        start, end = int(starts[first]), int(ends[last])
        if first == last or fits(start, end):
            spans.append((start, end))
            continue
        # A cut before unit i leaves [start, ends[i - 1]) and [starts[i], end).
        low = int(np.searchsorted(ends[first:last], start + least)) + first + 1
        high = int(np.searchsorted(starts[first + 1 : last + 1], end - least, side="right")) + first
        if low > high:
            low, high = first + 1, last
        at = low + _best(priorities[low : high + 1])
        open_.append((at, last))
        open_.append((first, at - 1))
    return spans


def _priorities(text: str, units: Sequence[Unit]) -> npt.NDArray[np.int64]:
    def priority(unit: Unit) -> int:
        digest = blake2b(text[unit.start : unit.end].encode(), digest_size=_HASH_BITS // 8).digest()
        return unit.rank << _HASH_BITS | int.from_bytes(digest, "big")

    return np.fromiter(map(priority, units), np.int64, len(units))


def _best(priorities: npt.NDArray[np.int64]) -> int:
    """The place of the highest; of equal ones that in the middle, or a text of equal lines would be peeled slowly."""
    places = np.flatnonzero(priorities == priorities.max())
    return int(places[len(places) // 2])
