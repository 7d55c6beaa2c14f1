"""Cutting a parsed document into chunks that fit the model and stay the same where the text stays the same.

Read `headings` (the chunker), `units` (what may not be cut lightly), `cuts` (where cuts go, and why there).

May import: `index.model`, `index.errors`, numpy, tokenizers.
Must never know: sources, vectors, the ledger; and never torch.
"""
