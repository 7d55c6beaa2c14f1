"""Merging the word leg and the vector leg of a search into one ranking, as OpenSearch's normalization-processor does.

Pure. Used where the store has no hybrid query of its own, so that the order is the same with and without it.
"""

from collections.abc import Mapping, Sequence

FLOOR = 0.001
"""Score of the worst hit of a leg: still more than a hit that the leg does not have (0)."""


def min_max(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores of one leg moved to (0, 1]: best 1, worst FLOOR; all equal, or one alone: 1.

    Source: OpenSearch neural-search, MinMaxScoreNormalizationTechnique (FLOOR is its MIN_SCORE).
    """
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if low == high:
        return dict.fromkeys(scores, 1.0)
    return {key: (score - low) / (high - low) or FLOOR for key, score in scores.items()}


def fuse(legs: Sequence[Mapping[str, float]], weights: Sequence[float]) -> list[tuple[str, float]]:
    """Merge legs (id -> raw score, higher is better) by the weighted mean of their min-max scores.

    An id that a leg does not have counts 0 there. Returns (id, score in [0, 1]), best first, ties by id.
    Raises ValueError when there are not as many weights as legs, or they sum to 0.
    """
    total = sum(weights)
    if len(legs) != len(weights) or total == 0:
        raise ValueError("one weight for each leg, not all 0")
    merged: dict[str, float] = {}
    for leg, weight in zip(legs, weights, strict=True):
        for key, score in min_max(leg).items():
            merged[key] = merged.get(key, 0.0) + weight * score / total
    return sorted(merged.items(), key=lambda pair: (-pair[1], pair[0]))
