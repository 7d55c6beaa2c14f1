"""Audit records as an effect store keeps them."""

import itertools

from fencebeat.effects import AuditRecord

_numbers = itertools.count()


def sent(effects, at, *ticks, entry="e", guarded=True):
    """Emitted ticks as the effect store has them, `ticks` in microseconds, written at `at`."""
    for tick in ticks:
        fields = {"outcome": "emitted", "entry": entry, "fire_time": str(tick), "token": "7", "holder": "h"}
        more = {"guarded": "1"} if guarded else {}
        identity = f"{at // 1000}-{next(_numbers)}"
        effects.copy_audit([AuditRecord(identity, {**fields, **more, "task_id": f"{entry}-{tick}"})])
