"""Texts become vectors: the embedder process, its client, and the cache that makes each text cost one embedding.

One process per host holds the model (`server`, `batcher`, `model`); workers talk to it (`client`) through the cache
(`cached`, `cache`) and never import torch. `weights` names a model by what it is; `calls` is the log that proves how
many texts went through it.

May import: `index.model`, `index.errors`, `index.ids`, `index.chunking.tokens`, `index.ledger.pool`, `config`,
leaf modules of `fencebeat`.
Must never know: documents, sources, targets, epochs.
"""
