"""The model itself, as the server sees it, and the one that runs on torch."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from index.chunking.tokens import TokenCounter
from index.embedding.weights import ModelCard, card_of


class Model(Protocol):
    """A loaded model. `truncated` counts tokens that were cut off on the way into it; it must stay 0."""

    card: ModelCard
    truncated: int

    def count_tokens(self, inputs: Sequence[str]) -> list[int]:
        """Tokens of each input as the model will see it, special tokens and prefix included."""
        ...

    def encode(self, inputs: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row of unit length for each input, float32. Called from one thread only."""
        ...


class TorchModel:
    """A sentence-transformers model on the CPU. Making one imports torch and takes 10-15 s: once per process."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # weights come from the folder or not at all
        os.environ["TRANSFORMERS_OFFLINE"] = "1"
        import torch  # noqa: PLC0415 - slow and large: only the embedder process pays for it
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - the same

        torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
        self.card = card_of(folder)
        self.truncated = 0
        self._tokens = TokenCounter.of(folder)
        self._model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        self.encode(["warm"])  # the first pass allocates; afterwards the model answers at its usual speed

    def count_tokens(self, inputs: Sequence[str]) -> list[int]:
        """See `Model.count_tokens`."""
        return self._tokens.count(inputs)

    def encode(self, inputs: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `Model.encode`."""
        wanted = sum(self._tokens.count(inputs))
        seen = int(self._model.preprocess(list(inputs))["attention_mask"].sum())
        self.truncated += max(0, wanted - seen)
        vectors = self._model.encode(
            list(inputs),
            batch_size=len(inputs),
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)
