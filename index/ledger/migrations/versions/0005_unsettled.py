"""An index by which the unsettled ticks are looked through in pages."""

from alembic import op

from index.ledger.migrate import sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change what sql/0005_unsettled.sql names."""
    op.execute(sql("0005_unsettled.sql"))
