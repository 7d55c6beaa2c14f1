"""The copy of the scheduler's records, by namespace, and its stored entries."""

from alembic import op

from index.ledger.migrate import sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change what sql/0004_ticks.sql names."""
    op.execute(sql("0004_ticks.sql"))
