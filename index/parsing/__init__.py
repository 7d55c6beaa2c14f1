"""Bytes become a title, a normalised text and its structure. Every span later on counts characters of that text.

Read `normalise` (what a character may be), then a parser: `markdown`, `html` or `plain`. `parse` chooses among them and
keeps the limits.

May import: `index.model`, `index.errors`, `fencebeat.clock`; markdown-it-py, lxml, pyyaml.
Must never know: where a document came from, tokens, models, the ledger.
"""
