"""The Celery application and its tasks. Each task reads like the protocol step it performs; nothing is decided here.

`celery` makes the app, `wiring` builds what a process needs, `base` is what all tasks have in common, `indexing` and
`upkeep` hold the tasks, `lifecycle` what happens when workers start and stop.
May import: everything below (`control`, `index`, `config`) and `fencebeat`.
Must never know: commands, pages, local servers.
"""

from tasks.celery import app

__all__ = ["app"]
