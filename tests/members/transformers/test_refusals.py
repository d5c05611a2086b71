"""Case 22: models that cannot be rolled back, or are not understood, are refused at load by name and reason."""

import pytest
import torch
import transformers as tf
from support.tiny_models import tiny_model

from ensemble_decode.errors import ModelError
from ensemble_decode.members.transformers.rollback_support import check_model, context_length
from ensemble_decode.members.transformers.runner import Runner

V = 64
SMALL = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": None, "eos_token_id": None}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}
PLAIN_HEADS = {name: value for name, value in HEADS.items() if name != "head_dim"}
MAMBA = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_expand": 2}


def mamba():
    return tf.MambaForCausalLM(tf.MambaConfig(**SMALL, state_size=4))


def mamba2():
    return tf.Mamba2ForCausalLM(tf.Mamba2Config(**SMALL, state_size=4, num_heads=8, head_dim=8, n_groups=1))


def rwkv():
    return tf.RwkvForCausalLM(tf.RwkvConfig(**SMALL, attention_hidden_size=32, context_length=64))


def jamba():
    config = tf.JambaConfig(
        **SMALL,
        **PLAIN_HEADS,
        **MAMBA,
        use_mamba_kernels=False,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
    )
    return tf.JambaForCausalLM(config)


def qwen3_next():
    config = tf.Qwen3NextConfig(
        **SMALL,
        **HEADS,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    )
    return tf.Qwen3NextForCausalLM(config)


def falcon_h1():
    config = tf.FalconH1Config(**SMALL, **HEADS, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4)
    return tf.FalconH1ForCausalLM(config)


def lfm2():
    config = tf.Lfm2Config(**SMALL, **PLAIN_HEADS, layer_types=["conv", "full_attention"])
    return tf.Lfm2ForCausalLM(config)


def t5():
    config = tf.T5Config(
        vocab_size=V, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0
    )
    return tf.T5ForConditionalGeneration(config)


def llama4():
    config = tf.Llama4TextConfig(
        **SMALL,
        **HEADS,
        intermediate_size_mlp=32,
        num_local_experts=2,
        attention_chunk_size=8,
        max_position_embeddings=64,
    )
    return tf.Llama4ForCausalLM(config)


CASES = {
    "mamba": (mamba, "'linear_attention': its recurrent state|keeps a recurrent state"),
    "mamba2": (mamba2, "'linear_attention': its recurrent state|keeps a recurrent state"),
    "rwkv": (rwkv, "keeps a recurrent state"),
    "jamba": (jamba, "layer 0 is of type '(linear_attention|mamba)': its recurrent state"),
    "qwen3-next": (qwen3_next, "layer 0 is of type 'linear_attention': its recurrent state"),
    "falcon-h1": (falcon_h1, "layer 0 is of type 'hybrid': part of it is a recurrent state"),
    "lfm2": (lfm2, "layer 0 is of type 'conv': its convolution state"),
    "t5": (t5, "encoder-decoder"),
    "llama4": (llama4, "'chunked_attention': attention within fixed chunks"),
}


@pytest.mark.parametrize("case", CASES)
def test_case_22_models_that_cannot_be_rolled_back_are_refused_by_name(case):
    build, reason = CASES[case]
    model = build()
    with pytest.raises(ModelError, match=reason) as caught:
        Runner(model, name=f"org/{case}")
    message = str(caught.value)
    assert f"org/{case} ({type(model).__name__})" in message
    assert "use a decoder whose layers are all full or sliding-window attention" in message


def test_a_model_that_reads_later_tokens_is_refused():
    model = tiny_model("gemma3", V)
    model.config.use_bidirectional_attention = True
    with pytest.raises(ModelError, match=r"tiny .* attends to later tokens"):
        check_model(model, "tiny")


def test_state_beside_keys_and_values_is_found_in_the_structure_whatever_the_configuration_says():
    """A model that says nothing of its convolution layers is found out by what it asks of the cache."""
    model = lfm2()
    model.config.layer_types = ["full_attention", "full_attention"]
    check_model(model, "silent")
    with pytest.raises(ModelError, match=r"silent.*its layers keep a convolution state beside keys and values"):
        Runner(model, name="silent")


def test_an_attention_of_its_own_is_refused():
    model = tf.BloomForCausalLM(tf.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ModelError, match=r"bloom \(BloomForCausalLM\)"):
        Runner(model, name="bloom")


def test_a_body_without_head_is_refused():
    with pytest.raises(ModelError, match="has no LM head"):
        Runner(tiny_model("llama", V).model, name="body")


def test_layers_that_share_keys_are_refused():
    model = tiny_model("llama", V)
    model.config.num_hidden_layers = 3  # as if the third took its keys from another
    model.model.layers.append(torch.nn.Module())
    model.model.layers[2].forward = lambda hidden, **kwargs: hidden
    with pytest.raises(ModelError, match=r"layers \[2\] keep no keys and values of their own"):
        Runner(model, name="sharing")


@pytest.mark.parametrize("change", ["scale", "cap", "layer"])
def test_a_head_or_attention_that_does_something_unknown_is_found_at_load(change):
    """The load check compares with the model's own forward, so whatever the runner leaves out is seen."""
    model = tiny_model("llama", V)
    own = model.forward

    def forward(*args, **kwargs):
        out = own(*args, **kwargs)
        if change == "scale":
            out.logits = out.logits * 0.5
        elif change == "cap":
            out.logits = torch.tanh(out.logits / 5) * 5
        else:
            out.logits = out.logits + out.logits.roll(1, -1)
        return out

    model.forward = forward
    with pytest.raises(ModelError, match=r"strange .* its logits differ from its own by"):
        Runner(model, name="strange")


def test_a_window_other_than_the_configured_one_is_found_at_load():
    model = tiny_model("gemma3", V)
    model.model.layers[0].self_attn.sliding_window = 9  # longer than the texts of the load check
    with pytest.raises(ModelError, match=r"'sliding_attention' .window 12. but asks attention for window 9"):
        Runner(model, name="odd")


def test_nan_weights_are_not_the_load_checks_business():
    model = tiny_model("llama", V)
    model.model.norm.weight.fill_(float("nan"))
    runner = Runner(model)
    assert runner.extend([runner.acquire()], [[1, 2]]).values.isnan().all()


def test_head_scalings_of_the_families_that_have_them():
    cohere = tf.CohereForCausalLM(tf.CohereConfig(**SMALL, **PLAIN_HEADS, logit_scale=0.25))
    granite = tf.GraniteForCausalLM(tf.GraniteConfig(**SMALL, **PLAIN_HEADS, logits_scaling=8.0))
    gemma2 = tiny_model("gemma2", V, final_logit_softcapping=2.0)
    for model in (cohere.eval(), granite.eval(), gemma2):
        runner = Runner(model)
        with torch.no_grad():
            wanted = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits[0]
        got = runner.extend([runner.acquire()], [[5, 6, 7]], "all").values
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5 * wanted.std().item())
    assert got.abs().max() < 2.0


def test_context_length_of_each_way_to_write_it():
    assert context_length(tf.LlamaConfig(max_position_embeddings=77)) == 77
    assert context_length(tf.GPT2Config(n_positions=33)) == 33
    with pytest.raises(ModelError, match="names no context length"):
        context_length(tf.PreTrainedConfig())
