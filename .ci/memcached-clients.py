"""Every operation of pymemcache, as its users call them, against the server at HOST PORT."""

import sys

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError
from pymemcache.serde import pickle_serde

address = (sys.argv[1], int(sys.argv[2]))


def basics(client):
    client.flush_all(noreply=False)
    assert client.set("a", b"1", noreply=False) is True
    assert client.get("a") == b"1"
    assert client.get("nothing") is None and client.get("nothing", b"default") == b"default"
    assert client.add("a", b"2", noreply=False) is False
    assert client.replace("nothing", b"2", noreply=False) is False
    assert client.append("a", b"2", noreply=False) is True
    assert client.prepend("a", b"0", noreply=False) is True
    value, token = client.gets("a")
    assert value == b"012"
    assert client.cas("a", b"x", b"999999999", noreply=False) is False
    assert client.cas("nothing", b"x", token, noreply=False) is None
    assert client.cas("a", b"x", token, noreply=False) is True
    assert client.touch("a", 100, noreply=False) is True
    assert client.touch("nothing", 100, noreply=False) is False
    # Not among its methods.
    assert client.raw_command("gat 50 a nothing", end_tokens="END\r\n") == b"VALUE a 0 1\r\nx\r\n"
    assert client.set("n", b"10", noreply=False)
    assert client.incr("n", 5) == 15 and client.decr("n", 7) == 8 and client.decr("n", 100) == 0
    assert client.incr("nothing", 1) is None
    assert client.delete("a", noreply=False) is True and client.delete("a", noreply=False) is False


def many(client):
    items = {f"key{i}": b"v" * i for i in range(2000)}
    assert client.set_many(items, noreply=False) == []
    assert client.get_many(list(items)) == items
    tokens = client.gets_many(["key1", "key2", "nothing"])
    assert sorted(tokens) == ["key1", "key2"] and tokens["key2"][0] == b"vv"
    assert client.delete_many(["key1", "key2"], noreply=False)
    assert client.get_many(["key1", "key2"]) == {}
    for i in range(500):
        client.set(f"quiet{i}", str(i), noreply=True)
    assert client.get("quiet499") == b"499"


def limits(client):
    assert client.set("large", b"x" * (1 << 20), noreply=False)
    assert len(client.get("large")) == 1 << 20
    try:
        client.set("large", b"x" * ((1 << 20) + 1), noreply=False)
        raise AssertionError("a value above the limit was stored")
    except MemcacheServerError as error:
        assert b"object too large for cache" in error.args[0]
    assert client.get("large") is None
    assert client.set("k" * 250, b"x", noreply=False) and client.get("k" * 250) == b"x"
    client.set("text", b"abc", noreply=False)
    try:
        client.incr("text", 1)
        raise AssertionError("a text was counted")
    except MemcacheClientError as error:
        assert b"non-numeric" in error.args[0]


def administration(client):
    stats = client.stats()
    assert stats[b"pid"] > 0 and stats[b"curr_items"] > 0 and stats[b"cmd_get"] > 0
    assert client.stats("settings")[b"cas_enabled"]
    assert client.version()
    assert client.flush_all(noreply=False) is True
    assert client.get("n") is None
    client.quit()


def meta(client):
    assert client.raw_command("mn") == b"MN"
    assert client.raw_command("ms meta 2 T100 c\r\nhi").startswith(b"HD c")
    assert client.raw_command("mg meta s t v", end_tokens=b"hi\r\n").startswith(b"VA 2 s2 t")
    assert client.raw_command("md meta q\r\nmn") == b"MN"


client = Client(address, timeout=20)
for check in (basics, many, limits, meta, administration):
    check(client)
pooled = PooledClient(address, timeout=20, max_pool_size=4)
basics(pooled)
many(pooled)
hashed = HashClient([address], timeout=20, use_pooling=True)
assert hashed.set("a", "b", noreply=False) and hashed.get_many(["a", "b"]) == {"a": b"b"}
retrying = RetryingClient(Client(address, timeout=20, serde=pickle_serde), attempts=2)
assert retrying.set("pickled", {"a": [1, 2]}, noreply=False) and retrying.get("pickled") == {"a": [1, 2]}
print("pymemcache: all operations as expected")
