"""What an operator can ask for that is refused. The class's docstring is the message: what, why, what to do."""

from fencebeat.errors import FencebeatError, Refused


class UnknownTenant(Refused):
    """There is no tenant {tenant}.
    Nothing was searched or compared: no document and no source belongs to it.
    Name one of: {known}.
    """


class UnknownSmoke(Refused):
    """There is no smoke run {name}.
    Nothing was started.
    Name one of: {known}.
    """


class NoSources(Refused):
    """No source is set up, so there is nothing to sync.
    Nothing was listed or changed.
    Name one in FENCEBEAT_SOURCES, for example: {{"docs": {{"path": "docs"}}}}
    """


class RepairNotYet(Refused):
    """`fencebeat doctor` only reports in this version; --repair is refused.
    Nothing was changed. A wrong repair could delete what a running attempt has just written, so it waits for its proof.
    The report names the chunks. Another FENCEBEAT_INDEX_PREFIX makes a new target, filled from the cache.
    """


class LedgerMissing(Refused):
    """The ledger at {address} has no schema, or an older one: {why}
    Nothing was done. Run `fencebeat migrate` with a role that may create tables, then try again.
    """


class NoDuration(Refused):
    """{text!r} is no duration.
    Nothing was changed. Write a number and a unit, as in 90s, 30m, 2h or 1d.
    """


class SmokeFailed(FencebeatError):
    """The smoke run {name} failed at: {step}
    Seen: {seen}
    Its files are kept in {folder}.
    """
