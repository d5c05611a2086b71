"""Chats of the harness: every model reads its own template, through the request cache too, and what has none is
refused."""

import math
import pickle

import pytest
from support import tiny_models, tokenizers
from support.harness_samples import likelihoods, lines

import ensemble_decode as ed

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from ensemble_decode.errors import InputError
from ensemble_decode.harness import EnsembleLM
from ensemble_decode.harness.conversation import Conversation

NAMES = ("llama3", "qwen2", "gemma")  # three different templates; the first writes BOS, and the last
CHAT = [
    {"role": "user", "content": "What is printing?"},
    {"role": "assistant", "content": "An art."},
    {"role": "user", "content": "Größe?"},
]
BEGUN = [*CHAT, {"role": "assistant", "content": "It is"}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    for seed, name in enumerate((*NAMES, "gpt2")):
        tiny_models.save_tiny(home / name, tiny_models.USUAL[name], name, seed=seed, max_position_embeddings=256)
    return home


@pytest.fixture(scope="module")
def together(folders):
    return ed.Ensemble.load([str(folders / name) for name in NAMES], dtype="float32", cache_dir=None)


def own_ids(name, messages, opens):
    """By transformers alone."""
    return tokenizers.build(name).apply_chat_template(
        messages, add_generation_prompt=opens, continue_final_message=not opens, return_dict=False
    )


@pytest.mark.parametrize(("messages", "opens"), [(CHAT, True), (BEGUN, False)])
def test_each_model_scores_behind_its_own_template(together, messages, opens):
    lm = EnsembleLM(ensemble=together, method="unite")
    context = lm.apply_chat_template(messages, add_generation_prompt=opens)
    assert context == tokenizers.build(NAMES[0]).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=opens, continue_final_message=not opens
    )
    kept = pickle.loads(pickle.dumps(context))
    assert isinstance(kept, Conversation)
    scored = lm._scored((kept, " Länge"), *lm._encode_pair(kept, " Länge"))
    assert scored.contexts == [own_ids(name, messages, opens) for name in NAMES]
    assert lm._vocab.decode(scored.targets) == " Länge".encode()
    assert scored.lead == b""
    requests = [Instance("loglikelihood", {}, (kept, text), 0) for text in (" Länge", " a printing press")]
    batches = [
        EnsembleLM(ensemble=together, method="unite", batch_size=n).loglikelihood(requests, disable_tqdm=True)
        for n in (1, 2)
    ]
    assert [v for v, _ in batches[0]] == pytest.approx([v for v, _ in batches[1]], abs=1e-4)
    assert all(math.isfinite(v) and v < 0 for v, _ in batches[0])


def test_each_model_writes_behind_its_own_template(together):
    lm = EnsembleLM(ensemble=together, method="safe(draft_length=3)", batch_size=2)
    kwargs = {"until": ["e"], "max_gen_toks": 10}
    chats = [CHAT, CHAT[:1]]
    asked = [Instance("generate_until", {}, (lm.apply_chat_template(chat), kwargs), i) for i, chat in enumerate(chats)]
    expected = together.generate(chats, method=ed.SAFE(draft_length=3), max_new_tokens=10, stop=["e"])
    assert lm.generate_until(asked, disable_tqdm=True) == [one.text for one in expected]


def test_a_single_models_chat_is_the_harness_own(folders):
    from lm_eval.models.huggingface import HFLM

    folder = str(folders / "qwen2")
    hf = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1, max_length=256)
    own = EnsembleLM(folder, "single", dtype="float32")
    contexts = [lm.apply_chat_template(CHAT) for lm in (hf, own)]
    assert contexts[0] == contexts[1]
    assert hf.chat_template(True) == own.chat_template(True)
    got, expected = (
        lm.loglikelihood([Instance("loglikelihood", {}, (context, " Länge"), 0)], disable_tqdm=True)[0][0]
        for lm, context in zip((own, hf), contexts, strict=True)
    )
    assert got == pytest.approx(expected, abs=1e-4)


def test_the_templates_are_logged_by_name(together):
    lm = EnsembleLM(ensemble=together, method="unite")
    logged = lm.chat_template(True)
    for m, name in enumerate(NAMES):
        assert f"model {m} ({together.vocab.models[m].name}): {tokenizers.build(name).chat_template}" in logged


def test_what_a_template_refuses_names_the_model(folders, together):
    pair = ed.Ensemble.load([str(folders / name) for name in ("llama3", "gpt2")], dtype="float32", cache_dir=None)
    pair.tokenizers[1].chat_template = None
    with pytest.raises(InputError, match=r"model 1 .*gpt2.* has no chat template"):
        EnsembleLM(ensemble=pair, method="unite").apply_chat_template(CHAT)
    EnsembleLM(ensemble=pair, method="single").apply_chat_template(CHAT)
    pair.tokenizers[1].chat_template = tokenizers.LLAMA2_CHAT
    with pytest.raises(InputError, match=r"model 1 .*refuses these messages: System role not supported"):
        EnsembleLM(ensemble=pair, method="unite").apply_chat_template(
            [{"role": "system", "content": "Be brief."}, *CHAT]
        )


def test_its_command_line_applies_every_models_template(lm_eval, folders, documents):
    args = f"models={folders / 'llama3'};{folders / 'qwen2'},method=unite(top_k=5),dtype=float32"
    tasks = ("--tasks", "local_write,local_pick", "--batch_size", "2")
    _, samples = lm_eval("--model", "ensemble_decode", "--model_args", args, *tasks, "--apply_chat_template")
    both = ed.Ensemble.load([str(folders / n) for n in ("llama3", "qwen2")], dtype="float32", cache_dir=None)
    chats = [[{"role": "user", "content": document["question"]}] for document in documents]
    expected = both.generate(chats, method=ed.UniTE(top_k=5), max_new_tokens=12, stop=["e"])
    assert [line["resps"][0][0] for line in lines(samples["local_write"])] == [one.text for one in expected]
    assert all(value < 0 for line in lines(samples["local_pick"]) for value in likelihoods(line))
