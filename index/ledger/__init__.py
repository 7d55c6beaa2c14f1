"""The ledger in Postgres: documents, epochs, manifests, claims, dead letters, switches. The only truth about documents.

Lives here: the schema (`migrations`, `sql`), the steps of the protocol as server-side functions (`sql/functions_*`)
and their typed face (`documents`). May import: `index.model`, `index.errors`, psycopg, alembic.
Must never know: targets' wire formats, embeddings, chunking.
"""

from index.ledger.documents import HeadView, KnownDocument, Ledger, Progress
from index.ledger.pool import open_pool

__all__ = ["HeadView", "KnownDocument", "Ledger", "Progress", "open_pool"]
