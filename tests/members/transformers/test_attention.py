"""Attention: the choice, SDPA with everything models ask of it, and the flash-attn path against its contract."""

import sys
import types

import pytest
import torch
import transformers as tf
from support import flash_emulation
from support.flash_emulation import flash_runner
from support.runner_checks import Schedule, assert_same_logits, fresh_logits
from support.tiny_models import FAMILIES, tiny_model

from ensemble_decode.errors import InputError, ModelError
from ensemble_decode.members.transformers import attention
from ensemble_decode.members.transformers.runner import Runner

V = 111


# -- choice ------------------------------------------------------------------------------------------------------


@pytest.fixture
def flash_attn(monkeypatch):
    """A flash_attn module that is the emulation."""
    module = types.ModuleType("flash_attn")
    module.__spec__ = types.SimpleNamespace(name="flash_attn")
    module.flash_attn_with_kvcache = flash_emulation.flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", module)


def test_sdpa_is_taken_where_flash_cannot_run_and_the_reason_is_said(flash_attn):
    half, full = torch.bfloat16, torch.float32
    assert attention.status("sdpa", "cuda", half) == attention.Status("sdpa", "asked for")
    assert "on cpu" in attention.status("auto", "cpu", half).reason
    assert "has float32" in attention.status("auto", "cuda", full).reason
    for device, dtype in (("cpu", half), ("cuda", full)):
        assert attention.status("auto", device, dtype).kind == "sdpa"
        with pytest.raises(ModelError, match="my model: attention='flash' cannot run: flash-attn needs"):
            attention.status("flash", device, dtype, "my model")


def test_flash_is_taken_where_it_can_run(flash_attn):
    for dtype in (torch.float16, torch.bfloat16):
        assert attention.status("auto", "cuda", dtype).kind == "flash"
        assert attention.status("flash", "cuda", dtype) == attention.Status("flash", "asked for")


def test_flash_that_is_missing_or_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert attention.flash_function() is None
    broken = types.ModuleType("flash_attn")
    broken.__spec__ = types.SimpleNamespace(name="flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", broken)
    assert attention.status("auto", "cuda", torch.float16) == attention.Status("sdpa", "flash-attn is not installed")
    with pytest.raises(ModelError, match="not installed"):
        attention.status("flash", "cuda", torch.float16)


def test_unknown_attention_is_refused():
    with pytest.raises(InputError, match="'fast' is not known; use one of auto, sdpa, flash"):
        attention.status("fast")
    with pytest.raises(ModelError, match=r"tiny: attention='flash' cannot run: .*model is on cpu"):
        Runner(tiny_model("llama", V), attention="flash", name="tiny")


# -- the flash path ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_flash_path_equals_a_fresh_forward_over_random_schedules(family, monkeypatch):
    model = tiny_model(family, V)
    runner, calls = flash_runner(monkeypatch, model, name=family)
    schedule = Schedule(runner, V, 5, rows=3, counts=(1, 1, 2, 5, 9))
    for _ in range(8):
        schedule.step(lambda ids, new, values: assert_same_logits(values, fresh_logits(model, ids)[-len(values) :]))
    assert calls
    windows = {call["window_size"] for call in calls}
    sliding = getattr(model.config, "sliding_window", None) if family in ("mistral", "gemma2", "gemma3") else None
    assert windows == {
        "mistral": {(11, 0)},
        "gemma2": {(11, 0), (-1, -1)},
        "gemma3": {(11, 0), (-1, -1)},
    }.get(family, {(-1, -1)}), sliding
    assert {call["softcap"] for call in calls} == ({50.0} if family == "gemma2" else {0.0})


def test_flash_path_equals_sdpa_at_the_end_of_the_context(monkeypatch):
    """Padded queries append behind a row's end, where there may be no room within the context."""
    model = tiny_model("llama", V, max_position_embeddings=32)
    runner, _ = flash_runner(monkeypatch, model)
    slots = [runner.acquire(), runner.acquire()]
    runner.extend(slots, [[1] * 31, [2] * 3], "none")
    out = runner.extend(slots, [[5], [6] * 20])
    assert_same_logits(out.values[:1], fresh_logits(model, [1] * 31 + [5])[-1:])
    assert_same_logits(out.values[1:], fresh_logits(model, [2] * 3 + [6] * 20)[-1:])


def test_emulation_follows_the_contract_on_a_case_worked_by_hand():
    """Two cached keys, two new ones, all scores 0: each query averages the values that it may see."""
    cache_k, cache_v = torch.zeros(2, 8, 1, 1), torch.zeros(2, 8, 1, 1)
    cache_v[1, :2, 0, 0] = torch.tensor([10.0, 20.0])
    new_v = torch.tensor([30.0, 40.0]).view(1, 2, 1, 1)
    q = torch.zeros(1, 2, 2, 1)
    common = {
        "cache_seqlens": torch.tensor([2], dtype=torch.int32),
        "cache_batch_idx": torch.tensor([1], dtype=torch.int32),
        "causal": True,
    }
    out = flash_emulation.flash_attn_with_kvcache(q, cache_k, cache_v, torch.zeros(1, 2, 1, 1), new_v, **common)
    assert out[0, :, 0, 0].tolist() == [20.0, 25.0]
    assert cache_v[1, :4, 0, 0].tolist() == [10.0, 20.0, 30.0, 40.0]
    out = flash_emulation.flash_attn_with_kvcache(
        q, cache_k, cache_v, torch.zeros(1, 2, 1, 1), new_v, window_size=(1, 0), **common
    )
    assert out[0, :, 1, 0].tolist() == [25.0, 35.0]


# -- SDPA --------------------------------------------------------------------------------------------------------


def test_sinks_take_part_in_the_softmax_of_a_model_that_has_them():
    torch.manual_seed(3)
    config = tf.GptOssConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=6,
        max_position_embeddings=128,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        pad_token_id=None,
        eos_token_id=None,
    )
    model = tf.GptOssForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    runner = Runner(model, block=16)
    schedule = Schedule(runner, V, 4, rows=3)
    for _ in range(12):
        schedule.step(lambda ids, new, values: assert_same_logits(values, fresh_logits(model, ids)[-len(values) :]))


def test_a_position_bias_is_refused():
    with pytest.raises(ModelError, match="position bias"):
        attention.attend(
            torch.nn.Module(), torch.zeros(1, 1, 1, 2), None, None, None, ensemble_step=object(), position_bias=1
        )
