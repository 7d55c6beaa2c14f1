"""fencebeat: a Celery Beat scheduler that can neither emit a tick twice nor lose one, on any number of hosts.

Read the core in this order: `elector` (who may act), `lua/commit.lua` (what one step does), `rounds` (one round of
the leader), `scheduler` (how Celery drives them).

May import: the standard library, Celery, kombu, redis, python-redis-lock; etcd3gw only in `locks.etcd`,
typer and rich only in `cli`.
Must never know: documents, indexes, ledgers. What it needs of an application comes through `effects.EffectStore`.
Leaf modules (`clock`, `errors`, `failpoints`, `history`, `signals`) import nothing else of this package.
"""

__version__ = "0.1.0"
