"""GGUF conversion: the weights are the file's, the tokenizer is the original's, and nothing half-done stays."""

import itertools
import re
import warnings
from dataclasses import replace

import pytest
import regex
import torch
from gguf.quants import dequantize
from safetensors.torch import load_file
from support.gguf_files import BYTE_LEVEL, END, HEADS, KV_HEADS, SPELL, TOKENS, TURN, write_gguf

from ensemble_decode.errors import ModelError
from ensemble_decode.members.sources import gguf_convert
from ensemble_decode.members.transformers import loading
from ensemble_decode.members.transformers.cpu import bfloat16_products


def interleaved(weight, heads):
    """llama.cpp stores the rows of each query and key head with rotary pairs side by side; transformers has them in
    halves."""
    half = weight.shape[0] // heads // 2
    return torch.stack([weight.view(heads, half, 2, -1)[:, :, part] for part in (0, 1)], 1).reshape(weight.shape)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ENSEMBLE_DECODE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(("kind", "dtype"), [("q8", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)])
def test_weights_are_the_files_rounded_once(home, tmp_path, kind, dtype):
    written = write_gguf(tmp_path / "tiny.gguf", kind=kind)
    folder = gguf_convert.converted_folder(tmp_path / "tiny.gguf", "tiny")
    saved = load_file(folder / "model.safetensors")
    expected = {
        "model.embed_tokens.weight": written["token_embd.weight"],
        "model.norm.weight": written["output_norm.weight"],
        "model.layers.1.mlp.down_proj.weight": written["blk.1.ffn_down.weight"],
        "model.layers.1.self_attn.v_proj.weight": written["blk.1.attn_v.weight"],
        "model.layers.0.self_attn.q_proj.weight": interleaved(written["blk.0.attn_q.weight"], HEADS),
        "model.layers.0.self_attn.k_proj.weight": interleaved(written["blk.0.attn_k.weight"], KV_HEADS),
    }
    for name, values in expected.items():
        assert saved[name].dtype == dtype
        assert torch.equal(saved[name], values.to(dtype)), name
    assert "quantization_config" not in (folder / "config.json").read_text()


def test_loads_with_every_end_id_and_its_context_length(home, tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    loaded = loading.load(tmp_path / "tiny.gguf", device="cpu")
    assert loaded.eos_ids == (END, TURN)
    assert loaded.model.config.max_position_embeddings == 128
    assert loaded.name == "tiny.gguf"
    assert loaded.dtype == torch.float32 or bfloat16_products() == "instructions"


def test_converted_once_until_the_file_changes(home, tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    first = gguf_convert.converted_folder(path, "tiny")
    with monkeypatch.context() as patched:
        patched.setattr(gguf_convert, "_convert", lambda *args: pytest.fail("converted again"))
        patched.setattr(gguf_convert, "file_sha256", lambda *args: pytest.fail("hashed again"))
        assert gguf_convert.converted_folder(path, "tiny") == first
    path.unlink()
    write_gguf(path, seed=1)
    second = gguf_convert.converted_folder(path, "tiny")
    assert second != first
    assert not torch.equal(*(load_file(f / "model.safetensors")["model.embed_tokens.weight"] for f in (first, second)))


def test_files_beside_the_gguf_do_not_change_what_it_means(home, tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "eos_token": "[SEP]"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    loaded = loading.load(tmp_path / "tiny.gguf")
    assert loaded.eos_ids == (END, TURN)
    assert loaded.tokenizer.eos_token == "<|end|>"


@pytest.mark.parametrize("damage", ["truncated", "not a gguf", "unknown architecture"])
def test_unreadable_file_is_one_error_and_leaves_nothing(home, tmp_path, damage):
    path = tmp_path / "bad.gguf"
    write_gguf(path)
    data = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 3])
    elif damage == "not a gguf":
        path.write_bytes(b"\0" * 1000)
    else:
        path.write_bytes(data.replace(b"llama", b"lxama"))
    with pytest.raises(ModelError, match=r"model bad: .*cannot be read"):
        gguf_convert.converted_folder(path, "bad")
    assert [p.name for p in (home / "converted").iterdir() if p.is_dir()] == []


def test_digits_are_split_where_the_file_says_so(home, tmp_path):
    ids = {}
    for pre in ("smollm", "gpt-2"):
        write_gguf(tmp_path / f"{pre}.gguf", vocab=replace(BYTE_LEVEL, pre=pre))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ids[pre] = loading.load(tmp_path / f"{pre}.gguf").tokenizer.encode("12é")
    one, two, both = (TOKENS.index(t) for t in ("1", "2", "12"))
    accent = TOKENS.index("Ã©")
    assert ids == {"smollm": [one, two, accent], "gpt-2": [both, accent]}


@pytest.mark.parametrize("pre", ["made-up", None])
def test_unknown_pre_tokenizer_is_warned_of_at_every_load(home, tmp_path, pre):
    write_gguf(tmp_path / "odd.gguf", vocab=replace(BYTE_LEVEL, pre=pre))
    for _ in range(2):
        with pytest.warns(UserWarning, match=rf"odd\.gguf: the pre-tokenizer {re.escape(repr(pre))} .*may differ"):
            loading.load(tmp_path / "odd.gguf")


def test_missing_package_says_what_to_install(home, tmp_path, monkeypatch):
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_convert, "_READERS", ("no-such-package",))
    with pytest.raises(ModelError, match=r"needs the package no-such-package; install ensemble-decode\[demo\]"):
        gguf_convert.converted_folder(tmp_path / "tiny.gguf", "tiny")


def test_removing_conversions(home, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    folder = gguf_convert.converted_folder(path, "tiny")
    digest = gguf_convert.file_sha256(path)
    assert gguf_convert.conversions(digest) == [folder]
    assert gguf_convert.remove_conversions(digest) == 1
    assert gguf_convert.remove_conversions(digest) == 0
    assert not folder.exists()


# -- the demo models ---------------------------------------------------------------------------------------------------

TEXTS = [
    "In 2024, 1234567 people paid $3.50 (or 12%) on 01/02/03.",
    "Ein Käse für Göteborg: naïve café, ÀÉÎõü, ﬁ and Ⅷ½²",
    "混合 text 123 and emoji 👩‍👩‍👧 🇩🇪 ✨, tabs\tand  two   three spaces",
    "def f(x):\n    return x[0] + 42  # it's we'll don't",
    "\n\n  leading\r\nand trailing \n",
]


@pytest.mark.real
def test_demo_weights_equal_the_files_dequantized(demo_files):
    picked = {
        "smollm2": {
            "blk.7.ffn_down.weight": "model.layers.7.mlp.down_proj.weight",
            "token_embd.weight": "model.embed_tokens.weight",
        },
        "gemma3": {
            "blk.3.attn_q.weight": "model.layers.3.self_attn.q_proj.weight",
            "blk.5.ffn_down.weight": "model.layers.5.mlp.down_proj.weight",
            "blk.9.ffn_up.weight": "model.layers.9.mlp.up_proj.weight",
        },
    }  # fmt: skip
    for name, tensors in picked.items():
        path, folder = demo_files[name]
        saved = load_file(folder / "model.safetensors")
        with gguf_convert.read_once(path) as reader:
            stored = {tensor.name: tensor for tensor in reader.tensors}
        for theirs, ours in tensors.items():
            tensor = stored[theirs]
            assert tensor.tensor_type.name not in ("F32", "F16", "BF16")
            values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).to(torch.bfloat16)
            assert torch.equal(saved[ours], values), theirs


def byte_pair(piece, ranks):
    parts = list(piece)
    while len(parts) > 1:
        pairs = list(itertools.pairwise(parts))
        best = min(pairs, key=lambda pair: ranks.get(pair, 1 << 30))
        if best not in ranks:
            break
        merged, i = [], 0
        while i < len(parts):
            if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                merged.append(parts[i] + parts[i + 1])
                i += 2
            else:
                merged.append(parts[i])
                i += 1
        parts = merged
    return parts


@pytest.mark.real
def test_case_14_smollm2_ids_follow_the_files_own_merges_digit_by_digit(demo_files):
    """Field case 14. The reference is written from the file: split off every digit, split as GPT-2, then merge by
    rank."""
    path, folder = demo_files["smollm2"]
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.reader import read_gguf_metadata

    keys = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    metadata, _ = read_gguf_metadata(str(path), keys)
    ids = {token: i for i, token in enumerate(metadata[keys[0]])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata[keys[1]])}
    gpt2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = []
        for part in regex.findall(r"\p{N}|\P{N}+", text):
            for piece in gpt2.findall(part):
                spelled = "".join(SPELL[byte] for byte in piece.encode())
                expected += [ids[token] for token in byte_pair(spelled, ranks)]
        assert tokenizer.encode(text) == expected, text
    assert tokenizer.encode("<|im_start|>user<|im_end|>")[::2] == [1, 2]


@pytest.mark.real
def test_demo_tokenizers_give_the_text_back_and_their_special_ids(demo_files):
    smollm2, gemma3 = (loading.load(f"demo:{name}") for name in ("smollm2", "gemma3"))
    for text in TEXTS:
        assert smollm2.tokenizer.decode(smollm2.tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
        ids = gemma3.tokenizer.encode(text)
        assert (ids[0], ids.count(2)) == (2, 1)  # one <bos>
        assert gemma3.tokenizer.decode(ids[1:], clean_up_tokenization_spaces=False) == text
    assert smollm2.tokenizer.encode("12")[0] != smollm2.tokenizer.bos_token_id
    assert smollm2.eos_ids == (smollm2.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert gemma3.eos_ids == (gemma3.tokenizer.convert_tokens_to_ids("<eos>"),)
    lengths = [loaded.model.config.max_position_embeddings for loaded in (smollm2, gemma3)]
    assert lengths == [8192, 32768]
    assert "<|im_start|>assistant" in smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
