"""What can go wrong with local servers and `fencebeat up`: a `ServerMissing` is a fact, a `ServerFailed` a fault."""

from fencebeat.errors import FencebeatError, Refused


class ServerMissing(FencebeatError):
    """{server} cannot run here: {why}"""


class NoJava(ServerMissing):
    """No Java 21 or newer for a local OpenSearch ({found}): install one, or name it in FENCEBEAT_JAVA_HOME, or set OPENSEARCH_URL."""  # noqa: E501 - one line on the terminal


class NoMaven(ServerMissing):
    """No Maven (`mvn`) to fetch a local OpenSearch: install it, or set OPENSEARCH_URL."""


class ServerFailed(FencebeatError):
    """{server} did not start: {why}
    Last lines of {log}:
    {tail}
    """


class KeeperLost(FencebeatError):
    """The keeper of the local servers ended by itself; the processes it held were stopped.
    Start again. Its last words are in {log}.
    """


class ProcessFailed(FencebeatError):
    """{name} ended {times} times in a row, the last time with code {code}.
    Last lines of {log}:
    {tail}
    """


class CorpusMissing(Refused):
    """The corpus {path} cannot be read: {why}
    Nothing was started. Name a folder of documents: fencebeat up --corpus FOLDER
    """


class StateBusy(Refused):
    """Another `fencebeat up` runs on {folder} (process {pid}).
    Nothing was started. Stop it with Ctrl-C, or set FENCEBEAT_STATE_DIR to another folder.
    """


class IndexDiffers(FencebeatError):
    """The index does not equal its sources: {differences} differences, {dead} documents failed for good.
    Look at `fencebeat doctor` and `fencebeat status` while `fencebeat up` runs on the same state folder.
    """


class SourceFailed(FencebeatError):
    """Source {source} could not be listed: {why} Mend it; the next sync goes on from there."""


class Stalled(FencebeatError):
    """Nothing has moved for {seconds} s, with {dirty} documents still to do. Seen: {problems} Logs are in {logs}."""
