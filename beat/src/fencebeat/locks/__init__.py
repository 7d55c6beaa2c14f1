"""Where the lease is kept: one module per store, all passing `tests/conformance/test_locks.py`.

May import: `lease`, `keys`, `scripts`, `connection`, `clock`, `errors`, and the store's own client: etcd3gw only in
`etcd`.
Must never know: ticks, entries, Celery. No thread is started here, and nothing is retried: the elector does both.
"""
