"""Models that misbehave, and doors to hold them at, for tests of the embedder and its client."""

import threading
from contextlib import contextmanager

import numpy as np

from index.embedding.probe import PROBE
from tests.support.fake_embedder import HashModel


class Door:
    """Holds the model's thread before each batch until it is opened. Pass `door.wait` as a model's `before`."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def wait(self, inputs):
        if list(inputs) == [PROBE]:  # the server's own look at the model, before it is ready
            return
        self.reached.set()
        assert self._open.wait(30), "nobody opened the door"

    def open(self):
        self._open.set()

    @contextmanager
    def closed(self):
        """The door is open after the block, also when it fails."""
        try:
            yield self
        finally:
            self.open()


class SpoiledModel(HashModel):
    """A good model until `spoil` names a way to be bad."""

    def __init__(self) -> None:
        super().__init__()
        self.spoil = None

    def encode(self, inputs):
        rows = super().encode(inputs)
        match self.spoil:
            case "nan":
                rows[0, 0] = np.nan
            case "zero":
                rows[-1] = 0
            case "long":
                rows *= 1.01
            case "dimension":
                rows = rows[:, :-1]
            case "order":
                rows = rows[::-1]
            case "build":
                rows = HashModel("other").encode(inputs)
        return rows
