"""Sources become documents, chunks, vectors and an index that equals them. The ledger is the only truth.

Read in this order: `model` (words), `ports` (what is pluggable), `protocol` (one attempt, step by step),
`ledger/sql` (what each step may do).

May import: `config`, and the leaf modules of `fencebeat` (decision 001).
Must never know: Celery, tasks, who leads, how switches are stored (only the port `Switches`).
"""
