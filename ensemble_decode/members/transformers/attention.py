"""Attention of packed ragged rows over the slot cache: SDPA everywhere, flash-attn where it is installed and can run.

Transformers calls ``attend`` through its attention registry under the name ``ATTENTION``; the ``Step`` that says which
rows the tokens belong to travels as the keyword ``ensemble_step``. Without it the call is an ordinary one and goes to
transformers' own SDPA, so that a model that a runner uses still works by itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.transformers.packing import Group, Step

ATTENTION = "ensemble_decode"
KINDS = ("auto", "sdpa", "flash")


# -- choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """Which attention runs, and why.

    Attributes:
        kind: "sdpa" or "flash".
        reason: Why, in words.
    """

    kind: str
    reason: str


def flash_function() -> Callable[..., torch.Tensor] | None:
    """``flash_attn_with_kvcache`` of the installed flash-attn, or None."""
    if importlib.util.find_spec("flash_attn") is None:
        return None
    try:
        from flash_attn import flash_attn_with_kvcache
    except (ImportError, OSError, RuntimeError):  # built for another torch or CUDA release
        return None
    return flash_attn_with_kvcache


def status(
    requested: str = "auto", device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, name: str = "model"
) -> Status:
    """Choose an attention.

    Args:
        requested: "sdpa"; "flash"; or "auto", which takes flash where it can run, else SDPA.
        device: Where the model is.
        dtype: That of its weights.
        name: What errors call it.

    Raises:
        InputError: ``requested`` is none of these.
        ModelError: "flash" cannot run there; the message says why.
    """
    if requested not in KINDS:
        raise InputError(f"attention={requested!r} is not known; use one of {', '.join(KINDS)}")
    if requested == "sdpa":
        return Status("sdpa", "asked for")
    device = torch.device(device)
    obstacle = None
    if device.type != "cuda":
        obstacle = f"flash-attn needs a CUDA device, the model is on {device.type}"
    elif dtype not in (torch.float16, torch.bfloat16):
        obstacle = f"flash-attn needs float16 or bfloat16, the model has {str(dtype).removeprefix('torch.')}"
    elif flash_function() is None:
        obstacle = "flash-attn is not installed"
    if obstacle is None:
        return Status("flash", "asked for" if requested == "flash" else "installed, CUDA device, half precision")
    if requested == "flash":
        raise ModelError(f"{name}: attention='flash' cannot run: {obstacle}; use attention='sdpa'")
    return Status("sdpa", obstacle)


# -- masks -------------------------------------------------------------------------------------------------------


def visible(group: Group, window: int | None) -> torch.Tensor:
    """Which keys each query of a group sees.

    Args:
        group: The group.
        window: A query sees the last ``window`` keys up to its own position; None: all of them.

    Returns:
        bool ``[rows, queries, keys]``.
    """
    if group.tree is not None:
        return group.tree.visible(group.keys, window)
    keys = torch.arange(group.keys, device=group.positions.device)
    positions = group.positions[:, :, None]
    seen = keys <= positions
    if window is not None:
        seen = seen & (keys > positions - window)
    return seen


def bias(group: Group, window: int | None, repeat: int, dtype: torch.dtype) -> torch.Tensor | None:
    """The additive mask of a group, built once per step and window, not once per layer.

    Args:
        group: The group, which keeps the mask.
        window: As in ``visible``.
        repeat: How often every query is repeated, once per query head that shares a KV head.
        dtype: That of the scores.

    Returns:
        ``[rows, 1, queries · repeat, keys]``; None where every query sees every key.
    """
    if window is not None and window >= group.keys:
        window = None
    if group.aligned and window is None:
        return None
    key = (window, repeat, dtype)
    if key not in group.masks:
        hidden = ~visible(group, window)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))
        group.masks[key] = mask.repeat_interleave(repeat, 1)[:, None] if repeat > 1 else mask[:, None]
    return group.masks[key]


# -- SDPA --------------------------------------------------------------------------------------------------------


def _softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What SDPA has no argument for: capped scores (Gemma-2), and a learned sink per head that only the softmax sees.

    ``query`` ``[rows, kv heads, queries, D]``, ``sinks`` broadcastable to ``[rows, kv heads, queries, 1]``.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights, value)


def _padded(packed: torch.Tensor, group: Group) -> torch.Tensor:
    """The group's tokens of ``packed`` ``[1, N, ...]`` as ``[rows, queries, ...]``; a view where nothing is padded."""
    if group.take is not None:
        packed = packed[0].index_select(0, group.take)
    elif group.count != packed.shape[1]:
        packed = packed.narrow(1, group.first, group.count)
    return packed.reshape(group.rows, group.queries, *packed.shape[-2:])


def _cached(store: torch.Tensor, group: Group) -> torch.Tensor:
    """``[rows, heads, keys, dim]`` of the group's slots: a view where they lie together, else a copy of that part."""
    store = store.narrow(2, 0, group.keys)
    if group.begin is None:
        return store.index_select(0, group.slots)
    return store if group.rows == store.shape[0] else store.narrow(0, group.begin, group.rows)


def _sdpa_group(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: Group,
    scaling: float,
    softcap: float | None,
    window: int | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """SDPA of a group: ``[rows, queries, heads, Dv]``.

    Query heads that share a KV head are folded into the query axis, so that no key or value is repeated.
    """
    rows, queries, heads, dim = query.shape
    kv_heads = key.shape[1]
    share = heads // kv_heads
    folded = query.view(rows, queries, kv_heads, share, dim)
    if queries > 1:
        folded = folded.transpose(1, 2)
    folded = folded.reshape(rows, kv_heads, queries * share, dim)
    mask = bias(group, window, share, query.dtype)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        if sinks is not None:
            sinks = sinks.view(kv_heads, 1, share).expand(-1, queries, -1).reshape(kv_heads, queries * share, 1)
        out = _softmax_attention(folded, key, value, mask, scaling, softcap, sinks)
    if queries > 1:
        out = out.view(rows, kv_heads, queries, share, -1).transpose(1, 2)
    return out.reshape(rows, queries, heads, -1)


# -- flash-attn --------------------------------------------------------------------------------------------------


def _flash_group(
    flash: Callable[..., torch.Tensor],
    query: torch.Tensor,
    new_key: torch.Tensor,
    new_value: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: Group,
    scaling: float,
    softcap: float | None,
    window: int | None,
) -> torch.Tensor:
    """``[rows, queries, heads, Dv]``; the kernel itself appends the new keys and values at each row's length.

    Padded queries append too, behind the row's real end, where nothing sees them and the next tokens overwrite them.
    """
    return flash(
        query,
        key.transpose(1, 2),
        value.transpose(1, 2),
        new_key,
        new_value,
        cache_seqlens=group.starts,
        cache_batch_idx=group.slots32,
        softmax_scale=scaling,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=0.0 if softcap is None else softcap,
    )


# -- the registered function -------------------------------------------------------------------------------------


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    ensemble_step: Step | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed step, in the signature of transformers' attention registry.

    Args:
        module: The layer's attention; its ``layer_idx`` says which.
        query: ``[1, heads, N, D]``.
        key: The layer's whole cache ``[slots, kv heads, capacity, D]``, as ``StepCache.update`` returned it (SDPA), or
            the new keys ``[1, kv heads, N, D]`` (flash-attn, which appends them itself).
        value: Likewise.
        attention_mask: Unused where there is a step.
        scaling: Factor on the scores; None: ``D ** -0.5``.
        dropout: Unused where there is a step.
        softcap: Scores s become ``softcap · tanh(s / softcap)``; None: they stay.
        sliding_window: Keys that a query sees, its own included; None: all.
        s_aux: A learned sink per head.
        ensemble_step: The step; None: an ordinary call, which transformers' own SDPA answers.
        **kwargs: What else the layer passes.

    Returns:
        ``[1, N, heads, Dv]``, and None for the weights.

    Raises:
        ModelError: The layer asks for a position bias, or for sinks under flash-attn.
    """
    if ensemble_step is None:
        return _plain(
            module, query, key, value, attention_mask, scaling, dropout, softcap, sliding_window, s_aux, kwargs
        )
    if kwargs.get("position_bias") is not None:
        raise ModelError("attention with a position bias per layer is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    packed = query.transpose(1, 2)
    step = ensemble_step
    layer: int = module.layer_idx  # type: ignore[assignment]
    if step.windows is not None:
        step.windows[layer] = sliding_window
    outs = []
    for group in step.groups:
        q = _padded(packed, group)
        if step.flash is None:
            out = _sdpa_group(
                q, _cached(key, group), _cached(value, group), group, scale, softcap, sliding_window, s_aux
            )
        else:
            if s_aux is not None:
                raise ModelError("attention sinks are not supported by the flash-attn path; use attention='sdpa'")
            store = step.stores[layer]
            new_key, new_value = (_padded(x.transpose(1, 2), group) for x in (key, value))
            out = _flash_group(
                step.flash, q, new_key, new_value, store.keys, store.values, group, scale, softcap, sliding_window
            )
        out = out.reshape(1, -1, *out.shape[2:])
        outs.append(out if group.put is None else out.index_select(1, group.put))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1), None


def _plain(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    dropout: float,
    softcap: float | None,
    sliding_window: int | None,
    sinks: torch.Tensor | None,
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, None]:
    """A call from outside a runner, as transformers' own implementation would answer it."""
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if softcap is None and sinks is None:
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, sliding_window=sliding_window, **kwargs
        )
    share = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, share), repeat_kv(value, share)
    if mask is None:
        total, new = key.shape[2], query.shape[2]
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, float("-inf"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks = None if sinks is None else sinks.view(-1, 1, 1)
    out = _softmax_attention(query, key, value, mask, scale, softcap, sinks)
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make ``attend`` known to transformers under the name ``ATTENTION``, with SDPA's masks for plain calls."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
