"""The ledger's tables."""

from alembic import op

from index.ledger.migrate import sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of sql/0001_schema.sql."""
    op.execute(sql("0001_schema.sql"))
