"""fencebeat: a Celery Beat scheduler that can neither emit a tick twice nor lose one, on any number of hosts.

Read the core in this order: `elector` (who may act), `lua/commit.lua` (what one step does), `rounds` (one round of
the leader), `scheduler` (how Celery drives them). The rest stands in rooms around it:

    leadership      lease, locks/, elector, watchdog (and its process _watch), jumps
    schedule        firetimes, solar, catchup: pure · schedules, entries: what people write · edits, redbeat: changes
    one round       rounds, planner, overlap, quarantine, requests (extra runs), schedule_memory, sync, schedule_watch
    messages        ticks: identity · render, capture: Celery's own path · templates, message_template, plainness: fast
    records         keys, scripts, lua/, connection, store · explain: the story of a tick
    stops           flags (an effect store has the truth), flagmemory (Redis alone) · repeated: their threads
    loss of Redis   effects: the port · copying, entrycopy: what is kept elsewhere · recovery: what a new term does
    other brokers   outbox, outbox_record, outbox_capture, outbox_sending
    worker          guard, claims/
    joints          configuration (app.conf), scheduler, checks, cli/
    leaves          clock, errors, failpoints, history, signals
    proof           testing/: beats that can be frozen and killed, and what must come out

The leader's path is one line through them:

    scheduler ─▶ rounds ─▶ store.due ─▶ planner ─▶ entries.plan ─▶ render ─▶ store.commit ─▶ lua/commit.lua
        └─▶ elector ─▶ locks ─▶ lua/acquire, renew, seal

May import: the standard library, Celery, kombu, redis, python-redis-lock. Extras stay in their corner: etcd3gw in
`locks.etcd`, psycopg in `claims`, ephem in `solar`, typer and rich in `cli`.
Must never know: documents, indexes, ledgers. What it needs of an application comes through `effects.EffectStore`.
Leaf modules import nothing of this package but each other. What is pure never meets Redis; the worker's side never
meets the leader's. import-linter checks the last three sentences.
"""

__version__ = "0.1.0"
