"""The errors of the index. The base class says what happens to the document; see `fencebeat.errors`."""

from fencebeat.errors import FencebeatError, Permanent, Refused, Retryable


class SourceUnavailable(Retryable):
    """Source {source} cannot be read: {why}
    Nothing was deleted or changed. Check that the place exists and may be read, then run the sync again.
    """


class DocumentNotFound(FencebeatError):
    """{uid} is not in source {source} any more; the next complete listing decides whether it is deleted."""


class DocumentUnreadable(Permanent):
    """{uid} may not be read: {why}
    Its indexed version stays. Grant permission to read it; the next sync tries again once it changes.
    """


class DocumentTooLarge(Permanent):
    """{uid} has {size} bytes, more than the limit of {limit}.
    Its indexed version stays. Raise FENCEBEAT_MAX_DOCUMENT_BYTES or split the document.
    """


class DocumentUnparsable(Permanent):
    """{uid} cannot be parsed as {media_type}: {why}
    Its indexed version stays. Correct the document, or exclude it from the source.
    """


class EmbedderUnavailable(Retryable):
    """The embedder at {address} did not answer: {why}
    Documents stay dirty and are tried again. Start it with `fencebeat embedder`, or set EMBEDDER_URL.
    """


class EmbedderRubbish(Retryable):
    """The embedder at {address} returned vectors that cannot be used: {why}
    Nothing was written. Compare its model with the target's, and restart it.
    """


class TargetUnavailable(Retryable):
    """Target {target} did not answer: {why}
    Documents stay dirty and are tried again.
    """


class TargetSick(Retryable):
    """Target {target} refuses every write: {why}
    Documents stay dirty; nothing became a dead letter. Mend the target, the work goes on by itself.
    """


class TargetLost(FencebeatError):
    """Target {target} is gone or is not ours any more: {why}
    Nothing is written to it. It has to be rebuilt under a new name from the cache.
    """


class ItemRefused(Permanent):
    """Target {target} can never hold a chunk of {uid}: {reason}
    Its indexed version stays.
    """


class IncarnationBehind(Refused):
    """Target {target} was written by incarnation {marked}, the ledger says {incarnation}: an older ledger was restored.
    Nothing was written. Raise the incarnation above both before any worker goes on.
    """


class InputRefused(Retryable):
    """The embedder at {address} refuses a text that the chunker made for its model: {why}
    Documents stay dirty. Chunker and embedder must have the same model: compare FENCEBEAT_MODEL_PATH of both.
    """


class LedgerBusy(Retryable):
    """Postgres gave this call up so that another could end: {why}
    Nothing was changed; the same call may be made again.
    """
