"""Which tick is being run, by whom, until when: the records by which a tick's task has its effect once.

Lives here: the port (`port`), its stores (`memory` for tests, `redis`, `postgres`), what renews a claim while its task
runs (`heartbeat`), and how the setting names a store (`opening`). All stores pass `tests/conformance/test_claims.py`.

    absent --claim--> running --close--> closed (for good: a further copy of the message is dropped)
                        |  ^
           lease over   |  |  claim: the attempt is one higher, and the older attempt can change nothing any more
           or release   v  |
                        free

May import: `clock`, `errors`, `scripts`, `connection`, the store's own client (psycopg: `postgres`, `bounded`).
Must never know: who leads, what is due, what a task does. Nothing here is retried: the guard decides what to do.
"""

from fencebeat.claims.port import Claimed, ClaimState, ClaimStore, Closed, Running, Tick

__all__ = ["ClaimState", "ClaimStore", "Claimed", "Closed", "Running", "Tick"]
