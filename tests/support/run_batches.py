"""Runs batches until nothing is claimable, then collects and ends: `python -m tests.support.run_batches`."""

from config.logging import configure
from config.settings import settings
from fencebeat.history import record
from tasks.wiring import services


def main() -> None:
    """Index what is dirty."""
    configure(settings())
    made = services()
    while (report := made.indexer.run_batch()).claimed:
        record("event", event="batch.ended", outcomes={str(k): v for k, v in report.outcomes.items()})
        if set(report.outcomes) == {"stopped"}:
            break
    made.collect()
    made.close()


if __name__ == "__main__":
    main()
