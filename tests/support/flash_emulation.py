"""`flash_attn_with_kvcache` by its documented contract, in plain torch, one row and head at a time.

Contract: `k`, `v` are appended in place at `cache_seqlens` of the cache row that `cache_batch_idx` names; then the
queries attend to all keys up to the new length. `causal` aligns the mask to the bottom right corner: query i of T sees
keys up to `seqlen - T + i`. `window_size=(left, right)` restricts that to
`[i + seqlen - T - left, i + seqlen - T + right]`; -1 means no limit. `softcap > 0` turns scores s into
softcap · tanh(s / softcap). Query heads come in groups that share a KV head (heads 0 to g-1 share KV head 0). Shapes:
q [B, T, H, D], caches [slots, capacity, KV heads, D], k and v [B, T, KV heads, D].
"""

import torch

from ensemble_decode.members.transformers import attention
from ensemble_decode.members.transformers.runner import Runner


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    *,
    cache_seqlens=None,
    cache_batch_idx=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
):
    batch, queries, heads, dim = q.shape
    assert k_cache.stride(-1) == v_cache.stride(-1) == q.stride(-1) == 1
    assert cache_seqlens.dtype == cache_batch_idx.dtype == torch.int32
    assert heads % k_cache.shape[2] == 0
    share = heads // k_cache.shape[2]
    scale = dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(batch, queries, heads, v_cache.shape[-1], dtype=q.dtype)
    ends = []
    for b in range(batch):
        slot, length = int(cache_batch_idx[b]), int(cache_seqlens[b])
        new = 0 if k is None else k.shape[1]
        assert length + new <= k_cache.shape[1], "the kernel would write past the cache"
        if k is not None:
            k_cache[slot, length : length + new] = k[b]
            v_cache[slot, length : length + new] = v[b]
        ends.append(length + new)
    for b in range(batch):
        slot, end = int(cache_batch_idx[b]), ends[b]
        for h in range(heads):
            keys, values = k_cache[slot, :end, h // share].float(), v_cache[slot, :end, h // share].float()
            for i in range(queries):
                at = end - queries + i
                first = 0 if window_size[0] < 0 else max(at - window_size[0], 0)
                last = end - 1 if window_size[1] < 0 else min(at + window_size[1], end - 1)
                if causal:
                    last = min(last, at)
                scores = keys[first : last + 1] @ q[b, i, h].float() * scale
                if softcap > 0:
                    scores = softcap * torch.tanh(scores / softcap)
                out[b, i, h] = (torch.softmax(scores, 0) @ values[first : last + 1]).to(q.dtype)
    return out


def flash_runner(monkeypatch, model, **options):
    """A runner that takes the flash path on a CPU, through the emulation, and the list of its calls."""
    calls = []

    def flash(*args, **kwargs):
        calls.append(kwargs)
        return flash_attn_with_kvcache(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(attention, "status", lambda *args: attention.Status("flash", "emulated"))
        patch.setattr(attention, "flash_function", lambda: flash)
        runner = Runner(model, attention="flash", block=16, **options)
    calls.clear()
    return runner, calls
