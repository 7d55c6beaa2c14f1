"""pgvector as a target."""

from alembic import op

from index.ledger.migrate import sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create what sql/0002_pgvector.sql names."""
    op.execute(sql("0002_pgvector.sql"))
