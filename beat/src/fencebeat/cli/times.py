"""Moments as they are typed."""

from datetime import UTC, datetime

import typer

from fencebeat.firetimes import SECOND


def read_instant(text: str) -> int:
    """A moment in microseconds since the epoch: ISO 8601 (UTC where it says nothing else), or seconds.

    Raises typer.BadParameter for anything else.
    """
    try:
        return round(float(text) * SECOND)
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time. Use ISO 8601, for example 2026-11-30T02:30:00Z, or seconds since the epoch."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.replace(microsecond=0).timestamp()) * SECOND + moment.microsecond
