"""Counting tokens as the model does, with the model's own tokenizer file and without torch."""

import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads do not survive a fork, and it warns about them

from tokenizers import Tokenizer

from fencebeat.errors import ImpossibleConfiguration


class TokenCounter:
    """The tokenizer of the model in a folder, and the model's limit.

    max_tokens: most tokens of one input, special tokens included. fingerprint: of the tokenizer file and the limit.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, fingerprint: str) -> None:
        tokenizer.no_truncation()  # the file may carry both; counts must be of the whole text and of nothing else
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.fingerprint = fingerprint

    @classmethod
    def of(cls, folder: Path) -> "TokenCounter":
        """Read tokenizer.json and the limit. Raises ImpossibleConfiguration when the folder has no such model."""
        try:
            text = (folder / "tokenizer.json").read_text()
            limit = int(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
            tokenizer = Tokenizer.from_str(text)
        except OSError as error:
            raise ImpossibleConfiguration(rules=f"{folder} is not a model's folder: {error.strerror}.") from error
        except Exception as error:  # tokenizers raises bare exceptions
            raise ImpossibleConfiguration(rules=f"the tokenizer in {folder} cannot be read: {error}.") from error
        return cls(tokenizer, limit, f"{blake2b(text.encode(), digest_size=16).hexdigest()}:{limit}")

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as an input of its own, special tokens included."""
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]

    def starts(self, text: str) -> npt.NDArray[np.int64]:
        """Where each token of `text` starts, in characters, ascending; special tokens left out."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return np.sort(np.fromiter((start for start, _ in offsets), np.int64, len(offsets)))
