"""Memory for the caches: what users may write, what is free, and how it is shared out."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from support import batches

from ensemble_decode.errors import InputError
from ensemble_decode.members import memory as module
from ensemble_decode.members.memory import cache_limits, free_memory, parse_memory

CPU = torch.device("cpu")


def member(bytes_per_token, allocated=0, device=CPU):
    return SimpleNamespace(bytes_per_token=bytes_per_token, bytes_allocated=allocated, device=device)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (8 * 2**30, 8 * 2**30),
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("500MB", 500_000_000),
        ("1.5k", 1500),
        ("123", 123),
        ("50%", 0.5),
        (0.25, 0.25),
        (1.0, 1.0),
    ],
)
def test_memory_is_bytes_a_size_or_a_share(said, meant):
    got = parse_memory(said)
    assert got == meant
    assert type(got) is type(meant)


@pytest.mark.parametrize("wrong", ["", "8 cows", "-1", "0", 0, -5, 1.5, "150%", "0%", True, "8GiBs"])
def test_what_is_no_amount_of_memory_is_refused(wrong):
    with pytest.raises(InputError, match="memory"):
        parse_memory(wrong)


def test_the_hosts_memory_is_what_the_system_has_within_the_limit_of_the_group(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    files = {"/sys/fs/cgroup/memory.max": "700\n", "/sys/fs/cgroup/memory.current": "100\n"}

    def read(path):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert free_memory(CPU) == 600
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert free_memory(CPU) == 1000
    files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "300"
    files["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = "400"
    assert free_memory(CPU) == 0


def test_an_amount_is_shared_out_so_that_caches_hold_as_many_tokens():
    assert cache_limits([member(10), member(30)], 1000) == [250, 750]
    runners = batches.pair().runners
    limits = cache_limits(runners, 1_000_000)
    tokens = [limit / runner.bytes_per_token for limit, runner in zip(limits, runners, strict=True)]
    assert tokens[0] == pytest.approx(tokens[1], rel=1e-3)


def test_a_share_counts_what_the_caches_hold_and_is_taken_per_device(monkeypatch):
    other = torch.device("cuda:0")
    monkeypatch.setattr(module, "free_memory", lambda device: 800 if device == CPU else 3000)
    members = [member(10, allocated=200), member(10), member(5, device=other)]
    assert cache_limits(members, "10%") == [50, 50, 300]
    assert cache_limits(members, None) == [250, 250, 2400]  # half of the host, 0.8 of a GPU


def test_a_member_whose_cache_lies_elsewhere_takes_no_share():
    assert cache_limits([member(10), member(0)], 1000) == [1000, 0]
    assert cache_limits([member(0)], 1000) == cache_limits([member(0)], None) == [0]
