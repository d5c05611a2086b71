"""The tiny tokenizers and models are what they say: deterministic, of different kinds, able to be saved and read."""

import hashlib
import subprocess
import sys

import pytest
import torch
import transformers
from support import tiny_models, tokenizers
from support.oracle.vocab import Vocab


def fingerprint(name: str) -> str:
    return hashlib.sha256(tokenizers.build(name).backend_tokenizer.to_str().encode()).hexdigest()


def test_tokenizers_are_the_same_in_every_process():
    code = (
        "import hashlib; from support import tokenizers as t\n"
        "for n in t.NAMES: print(hashlib.sha256(t.build(n).backend_tokenizer.to_str().encode()).hexdigest())"
    )
    path = [entry for entry in sys.path if entry.endswith("tests")]
    other = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == [fingerprint(name) for name in tokenizers.NAMES]


def test_tokenizers_differ():
    assert len({fingerprint(name) for name in tokenizers.NAMES}) == len(tokenizers.NAMES)
    assert all(400 <= len(tokenizers.build(name)) <= 1000 for name in tokenizers.NAMES)
    templates = {tokenizers.build(name).chat_template for name in tokenizers.NAMES}
    assert len(templates) >= 7


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_every_byte_can_be_spelled(name):
    vocab = Vocab(tokenizers.build(name), eos_ids=tokenizers.eos_ids(name))
    assert all(vocab.exact(bytes([byte])) is not None for byte in range(256))


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_saved_model_is_the_model(family, tmp_path):
    name = next((t for t, f in tiny_models.USUAL.items() if f == family), "gpt2")
    folder = tiny_models.save_tiny(tmp_path / "model", family, name, seed=3, padding=7)
    model = tiny_models.tiny_model(family, name, seed=3, padding=7)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The price: 12 Brötchen, 你好 🎉\n\n    x = 1"
    assert tokenizer(text).input_ids == tokenizers.build(name)(text).input_ids
    ids = torch.tensor([tokenizer(text).input_ids])
    assert model.config.vocab_size == len(tokenizer) + 7
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert model.generation_config.eos_token_id == loaded.generation_config.eos_token_id == tokenizers.eos_ids(name)


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_the_far_context_matters(family):
    """Another first token changes the logits of a token past every sliding window: the layers are not idle."""
    model = tiny_models.tiny_model(family, "gpt2", seed=1)
    ids = torch.arange(40, 80)[None]
    other = ids.clone()
    other[0, 0] = 99
    near = ids.clone()
    near[0, -2] = 99
    last = model(ids).logits[0, -1]
    assert (model(near).logits[0, -1] - last).abs().max() > 0.05
    if family != "mistral":  # 2 layers of a window of 12 do not reach 40 tokens back
        assert (model(other).logits[0, -1] - last).abs().max() > 1e-3


def test_same_seed_same_weights_and_global_state_untouched():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = tiny_models.tiny_model("llama", "llama2", seed=1)
    assert torch.equal(torch.rand(1), expected)
    second = tiny_models.tiny_model("llama", "llama2", seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    third = tiny_models.tiny_model("llama", "llama2", seed=2)
    assert not torch.equal(first.lm_head.weight, third.lm_head.weight)
