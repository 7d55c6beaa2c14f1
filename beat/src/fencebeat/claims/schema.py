"""The SQL of the table of claims, for our own command and for anybody's migrations. Needs no driver."""

from importlib.resources import files


def schema() -> str:
    """The SQL that makes the table. May be run again."""
    return files("fencebeat.claims").joinpath("sql", "tick_claim.sql").read_text(encoding="utf-8")
