"""How much memory the caches may take: from what the user says to a limit per model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from ensemble_decode.errors import InputError
from ensemble_decode.members.protocol import Member

GPU_SHARE, HOST_SHARE = 0.8, 0.5  # of what is free, where nothing is said
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{i}{b}": (1024 if i else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for i in ("", "i")
    for b in ("", "B")
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?|%)\s*", re.IGNORECASE)


def parse_memory(memory: int | float | str) -> int | float:
    """Read an amount of memory.

    Args:
        memory: Bytes (``8 * 2**30``), a size (``"8GiB"``, ``"500MB"``), or a share of what is free (``0.5``,
            ``"50%"``).

    Returns:
        Bytes as an int, or a share in (0, 1] as a float.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(memory, str):
        match = _SIZE.fullmatch(memory)
        units = {unit.lower(): size for unit, size in _UNITS.items()} | {"%": -1}
        if match is None or match[2].lower() not in units:
            raise InputError(f"memory {memory!r}: give bytes, a size such as 8GiB or 500MB, or a share such as 50%")
        memory = float(match[1]) / 100 if match[2] == "%" else int(float(match[1]) * units[match[2].lower()])
    if isinstance(memory, bool) or not memory > 0 or (isinstance(memory, float) and memory > 1):
        raise InputError(
            f"memory must be a positive number of bytes, or a share of the free memory up to 1; got {memory!r}"
        )
    return memory


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device.

    Args:
        device: A GPU, whose driver is asked; or the CPU, where what the system has available counts, within the limit
            of the control group (a container's limit, which the system's own figure does not know).
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    available: int = psutil.virtual_memory().available
    left = _left_in_group()
    return available if left is None else min(available, left)


def _left_in_group() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # another kind of group, or no limit ("max")
            continue
    return None


def cache_limits(members: Sequence[Member], memory: int | float | str | None) -> list[int]:
    """Bytes that each member's cache may take, such that all caches hold about as many tokens.

    Args:
        members: The members. One whose ``bytes_per_token`` is 0 has its cache elsewhere: its limit is 0, and limits
            nothing.
        memory: As in ``parse_memory``; None: 0.8 of what is free on a GPU, 0.5 on the host. An amount is shared out
            over all members. A share is taken of each device's free memory, what the caches hold now included, and
            shared out over the members there.

    Returns:
        One limit per member.

    Raises:
        InputError: ``memory`` is no size.
    """
    wanted = None if memory is None else parse_memory(memory)
    if isinstance(wanted, int):
        return _split(wanted, [member.bytes_per_token for member in members])
    limits = [0] * len(members)
    for device in dict.fromkeys(member.device for member in members):
        there = [m for m, member in enumerate(members) if member.device == device]
        share = wanted if wanted is not None else GPU_SHARE if device.type == "cuda" else HOST_SHARE
        held = sum(members[m].bytes_allocated for m in there)
        parts = _split(int(share * (free_memory(device) + held)), [members[m].bytes_per_token for m in there])
        for m, part in zip(there, parts, strict=True):
            limits[m] = part
    return limits


def _split(amount: int, sizes: Sequence[int]) -> list[int]:
    return [max(1, amount * size // sum(sizes)) if size else 0 for size in sizes]
