"""Alembic's revisions of the ledger; run by `index.ledger.migrate`, never imported by the product."""
