"""What several modules need: the worlds of the acceptance tests, applications, leases, commands in a project."""

import sys

import pytest
from celery import Celery

from fencebeat.cli import main
from fencebeat.edits import Schedule
from fencebeat.render import Renderer
from tests.support.locks import RedisLease, nonce
from tests.support.world_fixtures import make_world

__all__ = ["make_world"]


@pytest.fixture
def schedule(fence):
    """Edits of the stored schedule of `fence`."""
    return Schedule(fence.client, fence.keys, by="a test")


@pytest.fixture
def store(redis_url, namespace):
    """The records of an election in `redis_url`, and locks on them."""
    store = RedisLease(redis_url, namespace, lease=5.0)
    yield store
    store.close()


@pytest.fixture
def term(store):
    """A term won in `store`."""
    return store.lock("host-1").acquire(nonce())


@pytest.fixture
def make_app(redis_url):
    """Make applications with these settings."""
    made = []

    def make(**conf):
        app = Celery("messages", broker=conf.pop("broker", redis_url), set_as_current=False)
        app.conf.update(conf)
        app.finalize()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def make_renderer():
    """Make renderers of the namespace `ns`."""
    made = []

    def make(app, **options):
        made.append(Renderer(app, "ns", 2.0, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def in_project(tmp_path, monkeypatch, capsys, redis_url, namespace):
    """Run a command in a folder with a project of this text; returns exit code, stdout and stderr."""
    module = f"project_{namespace.replace('-', '_')}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FENCEBEAT_APP", module)
    monkeypatch.setenv("COLUMNS", "160")

    def run(project, *arguments, **facts):
        (tmp_path / f"{module}.py").write_text(project.format(url=redis_url, namespace=namespace, **facts))
        sys.modules.pop(module, None)
        code = main(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    yield run
    sys.modules.pop(module, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]
