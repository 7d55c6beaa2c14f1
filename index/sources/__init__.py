"""Places documents come from. A source lists what it holds and fetches one document; it decides nothing.

Read `folder` as the example of the contract in `index.ports.Source`; `registry` makes sources from settings.

May import: `index.model`, `index.errors`, `config`, `fencebeat.clock`.
Must never know: what a document's text means, the ledger, targets.
"""
