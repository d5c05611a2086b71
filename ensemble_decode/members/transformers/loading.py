"""Loading one model, or several, each with its own device, dtype and revision."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.sources.catalogue import DEMO_MODELS
from ensemble_decode.members.sources.demo import fetch_demo
from ensemble_decode.members.sources.gguf_convert import converted_folder
from ensemble_decode.members.sources.specs import ModelSpec, parse_spec

_DTYPES = {
    "float32": torch.float32, "fp32": torch.float32,
    "bfloat16": torch.bfloat16, "bf16": torch.bfloat16,
    "float16": torch.float16, "fp16": torch.float16,
}  # fmt: skip

Spec = str | os.PathLike[str] | ModelSpec


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, with what is known about it.

    ``eos_ids`` is the sorted union of the tokenizer's and the generation config's end ids; ``context_length`` is in
    tokens, ``None`` where the model states no limit; ``folder`` is where the files were read from, ``None`` for the
    hub.
    """

    model: Any
    tokenizer: Any
    spec: ModelSpec
    name: str
    device: torch.device
    dtype: torch.dtype
    eos_ids: tuple[int, ...]
    context_length: int | None
    folder: Path | None


def load(
    spec: Spec,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    name: str | None = None,
) -> LoadedModel:
    """Load one model and its tokenizer.

    ``spec``: see ``parse_spec``. ``device="auto"``: the first CUDA device, else the CPU. ``dtype="auto"``: the
    checkpoint's dtype on a GPU and on a CPU with bfloat16 instructions; float32 on any other CPU, and for float16
    checkpoints on every CPU. ``revision`` is used for the weights and the tokenizer alike. ``name`` is what messages
    call the model (default: from the spec). Raises ``InputError`` for arguments that fit nothing and ``ModelError`` for
    a model that cannot be loaded.
    """
    parsed = parse_spec(spec, revision)
    name = name or parsed.name
    target = resolve_devices(device, 1)[0]
    wanted = resolve_dtype(dtype, name)
    source, folder = _source(parsed, name)
    options = {} if parsed.revision is None else {"revision": parsed.revision}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        chosen = _dtype_for(wanted, _checkpoint_dtype(config), target)
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=chosen, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"model {name}: cannot be loaded: {_first_lines(error)}") from error
    try:
        model = model.requires_grad_(False).eval().to(target)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"model {name}: cannot be put on {target}: {_first_lines(error)}") from error
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        spec=parsed,
        name=name,
        device=target,
        dtype=model.dtype,
        eos_ids=_eos_ids(model, tokenizer, name),
        context_length=_context_length(model.config),
        folder=folder,
    )


def load_tokenizer(spec: Spec, *, revision: str | None = None, name: str | None = None) -> Any:
    """A model's tokenizer alone, as ``load`` would load it. Raises ``InputError`` and ``ModelError`` likewise."""
    parsed = parse_spec(spec, revision)
    name = name or parsed.name
    source, _ = _source(parsed, name)
    try:
        return AutoTokenizer.from_pretrained(
            source, **({} if parsed.revision is None else {"revision": parsed.revision})
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"model {name}: its tokenizer cannot be loaded: {_first_lines(error)}") from error


def load_all(
    specs: Sequence[Spec],
    *,
    devices: "str | torch.device | Sequence[str | torch.device]" = "auto",
    dtypes: "str | torch.dtype | Sequence[str | torch.dtype]" = "auto",
    revisions: Sequence[str | None] | None = None,
) -> list[LoadedModel]:
    """Load several models; ``devices`` and ``dtypes`` are one for all or one per model.

    ``devices="auto"``: model ``i`` goes to CUDA device ``i mod n`` of the ``n`` visible ones, or to the CPU where there
    is none. Models that would share a name are told apart by their number.
    """
    if isinstance(specs, (str, os.PathLike)) or not specs:
        raise InputError("models: give a list of at least one model")
    parsed = [
        parse_spec(spec, revision)
        for spec, revision in zip(specs, _each(revisions, len(specs), "revisions"), strict=True)
    ]
    names = [spec.name for spec in parsed]
    names = [name if names.count(name) == 1 else f"{name} (model {i})" for i, name in enumerate(names)]
    placed = resolve_devices(devices, len(parsed))
    each_dtype = _each(dtypes, len(parsed), "dtype")
    return [load(s, device=d, dtype=t, name=n) for s, d, t, n in zip(parsed, placed, each_dtype, names, strict=True)]


def resolve_devices(devices: "str | torch.device | Sequence[str | torch.device]", count: int) -> list[torch.device]:
    """One torch device for each of ``count`` models; ``"auto"`` as in ``load_all``."""
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    resolved = []
    for index, device in enumerate(_each(devices, count, "devices")):
        if device == "auto":
            resolved.append(torch.device("cuda", index % available) if available else torch.device("cpu"))
            continue
        try:
            resolved.append(torch.device(device))
        except (RuntimeError, TypeError) as error:
            raise InputError(f"device {device!r} of model {index}: not a device such as 'cpu' or 'cuda:0'") from error
    return resolved


def resolve_dtype(dtype: str | torch.dtype, name: str) -> torch.dtype | None:
    """The torch dtype that was asked for; ``None`` for ``"auto"``."""
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES.values():
        return dtype
    if dtype == "auto":
        return None
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    raise InputError(f"model {name}: dtype {dtype!r} is not one of auto, float32, bfloat16, float16")


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 by instruction: AVX-512 BF16, AMX or the Arm extension."""
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported"):
        if getattr(torch.cpu, probe, lambda: False)():
            return True
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("Features") and " bf16" in line for line in lines)  # as Linux on Arm lists it


def _each(values: Any, count: int, what: str) -> list[Any]:
    if values is None or isinstance(values, (str, torch.device, torch.dtype)):
        return [values] * count
    if len(values) != count:
        raise InputError(f"{what}: {len(values)} given for {count} models; give one for all or one per model")
    return list(values)


def spec_source(spec: ModelSpec) -> str:
    """What transformers reads a model from: a hub id, or a folder, converted where it is a GGUF file."""
    return _source(spec, spec.name)[0]


def _source(spec: ModelSpec, name: str) -> tuple[str, Path | None]:
    if spec.kind == "hub":
        return spec.location, None
    if spec.kind == "folder":
        return spec.location, Path(spec.location)
    if spec.kind == "demo":
        folder = converted_folder(fetch_demo(spec.location), name, DEMO_MODELS[spec.location].sha256)
    else:
        folder = converted_folder(Path(spec.location), name)
    return str(folder), folder


def _checkpoint_dtype(config: Any) -> torch.dtype | None:
    return getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)


def _dtype_for(wanted: torch.dtype | None, checkpoint: torch.dtype | None, device: torch.device) -> "torch.dtype | str":
    if wanted is not None:
        return wanted
    if device.type == "cpu" and not (checkpoint == torch.bfloat16 and cpu_has_bfloat16()):
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


def _context_length(config: Any) -> int | None:
    text = config.get_text_config()
    for attribute in ("max_position_embeddings", "max_seq_len", "seq_length"):  # one of them, by family
        length = getattr(text, attribute, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:600]
