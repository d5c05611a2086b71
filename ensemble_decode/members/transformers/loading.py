"""Loading one model, or several, each with its own device, dtype, revision and further settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.per_model import per_model
from ensemble_decode.members.sources.catalogue import DEMO_MODELS
from ensemble_decode.members.sources.specs import ModelSpec, parse_spec
from ensemble_decode.members.transformers.cpu import bfloat16_products

_DTYPES = {
    "float32": torch.float32, "fp32": torch.float32,
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip

# What configuration, tokenizer and weights are all found with; everything else is the weights' alone.
_OF_ALL = ("trust_remote_code", "token", "cache_dir", "local_files_only", "force_download", "proxies", "subfolder")
# Decided by arguments of their own.
_NOT_OURS = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "device_map": "device",
    "revision": "revision",
    "attn_implementation": "attention",
}
_FAILURES = (OSError, ValueError, KeyError, ImportError, RuntimeError)

Spec = str | os.PathLike[str] | ModelSpec
Device = str | torch.device
Dtype = str | torch.dtype


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, with what is known about it.

    Attributes:
        model: The transformers model, in evaluation mode, on ``device``.
        tokenizer: Its tokenizer.
        name: What messages call it.
        device: Where it lies.
        dtype: Of its weights.
        eos_ids: The end ids of the tokenizer and of the generation config, sorted.
    """

    model: Any
    tokenizer: Any
    name: str
    device: torch.device
    dtype: torch.dtype
    eos_ids: tuple[int, ...]


def load(
    spec: Spec,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: str | None = None,
    model_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> LoadedModel:
    """Load one model and its tokenizer.

    Args:
        spec: A hub id, a folder, a GGUF file or a demo model's name; see ``parse_spec``.
        device: ``"auto"`` is the first CUDA device, else the CPU.
        dtype: ``"auto"`` is the checkpoint's dtype on a GPU and on a CPU with bfloat16 instructions; float32 on any
            other CPU, and for float16 checkpoints on every CPU.
        revision: Of the weights and of the tokenizer alike.
        model_kwargs: What ``from_pretrained`` takes beside these: ``trust_remote_code`` (False unless it is given;
            nobody is ever asked), ``token``, ``local_files_only``, ``quantization_config`` and the like.
        name: What messages call the model; default: from ``spec``.

    Returns:
        The model.

    Raises:
        InputError: An argument fits nothing.
        ModelError: The model cannot be loaded.
    """
    parsed = parse_spec(spec, revision)
    name = name or parsed.name
    target = resolve_devices(device, 1)[0]
    wanted = resolve_dtype(dtype, name)
    shared, own = _options(parsed, model_kwargs, name)
    source = _source(parsed, name)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(source, **shared)
        tokenizer = AutoTokenizer.from_pretrained(source, **shared)
        chosen = _dtype_for(wanted, _checkpoint_dtype(config), target)
        quantised = "quantization_config" in own or getattr(config, "quantization_config", None) is not None
        if quantised:  # its weights are made where they are to stay, and cannot be moved
            own = own | {"device_map": {"": str(target)}}
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=chosen, **shared, **own)
    except TypeError as error:
        if not own:
            raise
        raise InputError(f"model {name}: model_kwargs {', '.join(own)}: {_first_lines(error)}") from error
    except _FAILURES as error:
        raise ModelError(f"model {name}: cannot be loaded: {_first_lines(error)}") from error
    try:
        model = model.requires_grad_(False).eval()
        model = model if quantised else model.to(target)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"model {name}: cannot be put on {target}: {_first_lines(error)}") from error
    return LoadedModel(model, tokenizer, name, target, model.dtype, _eos_ids(model, tokenizer, name))


def load_tokenizer(
    spec: Spec,
    *,
    revision: str | None = None,
    name: str | None = None,
) -> Any:
    """Load a model's tokenizer alone, as ``load`` would.

    Args:
        spec: As in ``load``.
        revision: As in ``load``.
        name: As in ``load``.

    Raises:
        InputError: An argument fits nothing.
        ModelError: The tokenizer cannot be loaded.
    """
    parsed = parse_spec(spec, revision)
    name = name or parsed.name
    shared, _ = _options(parsed, None, name)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(_source(parsed, name), **shared)
    except _FAILURES as error:
        raise ModelError(f"model {name}: its tokenizer cannot be loaded: {_first_lines(error)}") from error


def load_all(
    specs: Sequence[Spec],
    *,
    device: Device | Sequence[Device] = "auto",
    dtype: Dtype | Sequence[Dtype] = "auto",
    revision: str | Sequence[str | None] | None = None,
    model_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
) -> list[LoadedModel]:
    """Load several models. Every argument is one value for all of them, or a list with one per model.

    Models that would share a name are told apart by their number.

    Args:
        specs: The models, at least one, as in ``load``.
        device: ``"auto"`` puts model ``i`` on CUDA device ``i mod n`` of the ``n`` visible ones, or on the CPU where
            there is none.
        dtype: As in ``load``.
        revision: As in ``load``.
        model_kwargs: As in ``load``.

    Returns:
        The models, in order.

    Raises:
        InputError: An argument fits nothing.
        ModelError: A model cannot be loaded.
    """
    if isinstance(specs, (str, os.PathLike)) or not specs:
        raise InputError("models: give a list of at least one model")
    count = len(specs)
    revisions = per_model(revision, count, "revision")
    parsed = [parse_spec(spec, one) for spec, one in zip(specs, revisions, strict=True)]
    names = [spec.name for spec in parsed]
    names = [name if names.count(name) == 1 else f"{name} (model {i})" for i, name in enumerate(names)]
    placed = resolve_devices(device, count)
    dtypes, kwargs = per_model(dtype, count, "dtype"), per_model(model_kwargs, count, "model_kwargs")
    return [
        load(spec, device=where, dtype=what, model_kwargs=more, name=name)
        for spec, where, what, more, name in zip(parsed, placed, dtypes, kwargs, names, strict=True)
    ]


def resolve_devices(device: Device | Sequence[Device], count: int) -> list[torch.device]:
    """One torch device per model.

    Args:
        device: As in ``load_all``.
        count: The number of models.

    Raises:
        InputError: Something is no device, or the list has another length.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    resolved = []
    for index, one in enumerate(per_model(device, count, "device")):
        if one == "auto":
            resolved.append(torch.device("cuda", index % available) if available else torch.device("cpu"))
            continue
        try:
            resolved.append(torch.device(one))
        except (RuntimeError, TypeError) as error:
            raise InputError(f"device {one!r} of model {index}: not a device such as 'cpu' or 'cuda:0'") from error
    return resolved


def resolve_dtype(dtype: Dtype, name: str) -> torch.dtype | None:
    """The torch dtype that was asked for; None for ``"auto"``.

    Args:
        dtype: ``"auto"``, a torch dtype, or a name such as ``"bfloat16"`` or ``"bf16"``.
        name: What an error calls the model.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES.values():
        return dtype
    if dtype == "auto":
        return None
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    raise InputError(f"model {name}: dtype {dtype!r} is not one of auto, float32, bfloat16, float16")


def spec_source(spec: ModelSpec) -> str:
    """What transformers reads a model from: a hub id, or a folder, converted where it is a GGUF file."""
    return _source(spec, spec.name)


def _source(spec: ModelSpec, name: str) -> str:
    if spec.kind in ("hub", "folder"):
        return spec.location
    from ensemble_decode.members.sources.demo import fetch_demo
    from ensemble_decode.members.sources.gguf_convert import converted_folder

    if spec.kind == "demo":
        return str(converted_folder(fetch_demo(spec.location), name, DEMO_MODELS[spec.location].sha256))
    return str(converted_folder(Path(spec.location), name))


def _options(
    spec: ModelSpec, model_kwargs: Mapping[str, Any] | None, name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``from_pretrained`` gets for configuration, tokenizer and weights, and what for the weights alone."""
    if model_kwargs is not None and not isinstance(model_kwargs, Mapping):
        raise InputError(f"model {name}: model_kwargs must be a mapping, got {model_kwargs!r}")
    given = dict(model_kwargs or {})
    for key in given:
        if key in _NOT_OURS:
            raise InputError(f"model {name}: model_kwargs has {key!r}; use the argument {_NOT_OURS[key]!r}")
    # Left open, transformers would ask on the terminal whether to run a repository's code.
    shared = {"trust_remote_code": False} | {key: given.pop(key) for key in _OF_ALL if key in given}
    if not isinstance(shared["trust_remote_code"], bool):
        raise InputError(f"model {name}: trust_remote_code must be True or False, got {shared['trust_remote_code']!r}")
    if spec.revision is not None:
        shared["revision"] = spec.revision
    return shared, given


def _checkpoint_dtype(config: Any) -> torch.dtype | None:
    return getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)


def _dtype_for(wanted: torch.dtype | None, checkpoint: torch.dtype | None, device: torch.device) -> torch.dtype | str:
    if wanted is not None:
        return wanted
    if device.type == "cpu" and not (checkpoint == torch.bfloat16 and bfloat16_products() == "instructions"):
        return torch.float32
    return checkpoint or "auto"


def _eos_ids(model: Any, tokenizer: Any, name: str) -> tuple[int, ...]:
    ids: set[int] = set()
    for stated in (tokenizer.eos_token_id, getattr(getattr(model, "generation_config", None), "eos_token_id", None)):
        if stated is not None:
            ids.update([stated] if isinstance(stated, int) else map(int, stated))
    if not ids:
        warnings.warn(
            f"model {name}: neither its tokenizer nor its generation config states an end token; it never ends a text",
            stacklevel=3,
        )
    return tuple(sorted(ids))


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:600]
