"""The prelude that gives a script virtual time answers as the server itself does, and time stands still otherwise."""

from types import SimpleNamespace

import pytest
import redis

from fencebeat.keys import Keys
from fencebeat.lease import LeaseTiming
from fencebeat.locks.redis import RedisLock
from tests.simulation.virtual import PRELUDE, Server, SimClient

PROBE = """
local key, said = KEYS[1], {}
local function say(value) said[#said + 1] = tostring(value) end
say(redis.call('PTTL', key)) say(redis.call('PEXPIRE', key, 1000))
redis.call('SET', key, 'v', 'PX', 5000)
local left = redis.call('PTTL', key) say(left > 4900 and left <= 5000)
say(redis.call('PEXPIRE', key, 2000)) left = redis.call('PTTL', key) say(left > 1900 and left <= 2000)
say(redis.call('GET', key)) say(redis.call('DEL', key)) say(redis.call('PTTL', key)) say(redis.call('TYPE', key).ok)
redis.call('SET', key, 'w') say(redis.call('PTTL', key))
local time = redis.call('TIME') say(#time) say(tonumber(time[1]) > 0 and tonumber(time[2]) < 1000000)
say(redis.sha1hex('x'))
return said
"""


@pytest.fixture
def world(redis_url):
    server = Server(redis_url)
    made = SimpleNamespace(server=server, now=1_800_000_000.0)
    made.port, made.server_time = (lambda _name, ask: ask()), (lambda: made.now)
    server.tell_time(made.now)
    yield made
    server.close()


def later(world, seconds):
    world.now += seconds
    world.server.tell_time(world.now)


def test_a_script_sees_the_same_with_and_without_the_prelude(world):
    client = world.server.client
    assert client.eval(PRELUDE + PROBE, 1, "virtual") == client.eval(PROBE, 1, "real")


def test_a_lease_ends_when_virtual_time_says_so_and_not_before(world):
    timing, keys = LeaseTiming.of(5.0), Keys("sim")
    one, two = (RedisLock(SimClient(world.server.pool, world), None, keys, timing, name) for name in ("one", "two"))
    term = one.acquire("n-1")
    assert term.token == 1_800_000_000_000_001
    later(world, 4.9)
    assert two.acquire("n-2") is None
    assert one.renew(term)
    later(world, 4.9)
    assert two.acquire("n-2") is None
    later(world, 0.2)
    assert not one.renew(term)
    assert two.acquire("n-2").token > term.token


def test_time_is_virtual_in_plain_calls_and_in_pipelines(world):
    client = SimClient(world.server.pool, world)
    pipe = client.pipeline()
    pipe.time()
    pipe.dbsize()
    assert client.time() == pipe.execute()[0] == (1_800_000_000, 0)


def test_a_failover_brings_back_what_the_replica_had(world):
    client = world.server.client
    client.rpush("queue", "a")
    world.server.lag()
    client.rpush("queue", "b")
    world.server.failover(world.now)
    assert client.lrange("queue", 0, -1) == ["a"]
    world.server.lose_data(world.now)
    assert client.keys() == ["sim:now"]


def test_an_error_of_a_script_is_the_servers_own(world):
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        world.server.client.eval(PRELUDE + "redis.call('SET', 'k', 'v') return redis.call('HGET', 'k', 'f')", 0)
