"""Local servers for `fencebeat up` and the tests: Valkey, PostgreSQL with pgvector, OpenSearch, etcd, RabbitMQ.

A server belongs to its owner: a keeper process starts it and stops it when the owner ends, also after SIGKILL.
An address in the environment (REDIS_URL, POSTGRES_URL, OPENSEARCH_URL, ETCD_URL, RABBITMQ_URL) is used instead of a
server of ours.

May import: `config`, the leaf modules of `fencebeat`, the packages that carry the servers (at call time only).
Must never know: documents, tasks, the schedule.
"""

from ops.services.errors import NoJava, NoMaven, ServerFailed, ServerMissing
from ops.services.keeping import Child, Keeper
from ops.services.start import Addresses, Services

__all__ = ["Addresses", "Child", "Keeper", "NoJava", "NoMaven", "ServerFailed", "ServerMissing", "Services"]
