"""What can go wrong with a local server. A `ServerMissing` is a fact about this machine; `ServerFailed` is a fault."""

from fencebeat.errors import FencebeatError


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
