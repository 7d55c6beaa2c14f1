"""What is checked of vectors that came over a wire, before anybody uses them.

Count, dimension, finite values and unit length are seen in the vectors themselves. Another build of the model, or
vectors in another order, are not: for those a probe text with a known vector travels in the batch.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np

from index.model import Vector

NORM_TOLERANCE = 1e-3  # float32 sums over 384 squares stay within 1e-6; half precision within 1e-3
PROBE_COSINE = 0.999  # another CPU gives 0.99999, int8 instead of float32 0.9994, another model about 0


class Rubbish(ValueError):
    """The answer cannot be used; the text says why."""


def decode(data: Any, count: int, dimension: int) -> list[Vector]:
    """The vectors of an OpenAI answer's `data`, in the order of the inputs. Raises Rubbish."""
    if not isinstance(data, list) or len(data) != count:
        raise Rubbish(f"{len(data) if isinstance(data, list) else 'no'} vectors for {count} inputs")
    by_index: dict[object, Vector] = {}
    for entry in data:
        if not isinstance(entry, dict):
            raise Rubbish("an entry that is not an object")
        by_index[entry.get("index")] = as_vector(entry.get("embedding"))
    if set(by_index) != set(range(count)):
        raise Rubbish("indexes that are not those of the inputs")
    vectors = [by_index[index] for index in range(count)]
    for vector in vectors:
        check(vector, dimension)
    return vectors


def as_vector(value: Any) -> Vector:
    """A vector from base64 of little-endian float32, or from a list of numbers. Raises Rubbish."""
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
        return np.asarray(value, dtype=np.float32)
    except (binascii.Error, ValueError, TypeError) as error:
        raise Rubbish(f"a vector that cannot be read: {error}") from error


def check(vector: Vector, dimension: int) -> None:
    """Raises Rubbish unless the vector has this dimension, finite values and unit length."""
    if vector.shape != (dimension,):
        raise Rubbish(f"a vector of shape {vector.shape} where ({dimension},) was expected")
    if not np.isfinite(vector).all():
        raise Rubbish("a vector that is not finite")
    norm = float(np.linalg.norm(vector))
    if abs(norm - 1) > NORM_TOLERANCE:
        raise Rubbish(f"a vector of length {norm:.6f} instead of 1")


def check_model(told: object, pinned: str) -> None:
    """Raises Rubbish when a server names another model than the one it had at first."""
    if told != pinned:
        raise Rubbish(f"it has another model now: {told} instead of {pinned}")


def check_probe(vector: Vector, known: Vector) -> None:
    """Raises Rubbish when the probe's vector is not the known one: another build, or vectors in another order."""
    cosine = float(np.dot(vector, known))
    if cosine < PROBE_COSINE:
        raise Rubbish(f"the probe text's vector is not the known one (cosine {cosine:.4f}): another build or order")


def plan(inputs: Sequence[str], budget_tokens: int, max_tokens: int) -> list[list[int]]:
    """Positions of `inputs` in batches of similar length, each about `budget_tokens` with its padding.

    The tokens are estimated from above by characters (English prose has four to a token, code three).
    """
    sizes = [min(len(text) // 3 + 2, max_tokens) for text in inputs]
    batches: list[list[int]] = []
    for position in sorted(range(len(inputs)), key=sizes.__getitem__):
        if not batches or sizes[position] * (len(batches[-1]) + 1) > budget_tokens:
            batches.append([])
        batches[-1].append(position)
    return batches
