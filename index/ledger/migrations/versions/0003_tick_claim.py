"""Claims of ticks as fencebeat's worker guard keeps them: the library's own file, over the table of 0001."""

from alembic import op

from fencebeat.claims.schema import schema

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the library's tick_claim.sql; its grants stay as 0001 gave them."""
    op.execute(schema())
    op.execute("DROP INDEX tick_claim_token")  # now by namespace
