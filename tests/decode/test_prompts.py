"""Prompts: messages that are continued, text parts, token ids, template arguments, weights of one request."""

import pytest
from support.ensembles import same, tiny

import ensemble_decode as ed

USER = {"role": "user", "content": "Hello there"}
CHAT = [USER, {"role": "assistant", "content": "Well, I"}]


@pytest.fixture(scope="module")
def trio():
    return tiny("gpt2", "llama2", "gemma")


def text_of(trio, m, messages, **kwargs):
    return trio.tokenizers[m].apply_chat_template(messages, tokenize=False, **kwargs)


def test_the_last_message_is_continued(trio):
    """The text of every model ends with the assistant's words."""
    for m, tokenizer in enumerate(trio.tokenizers):
        ids = trio.prompt_ids(m, CHAT, ed.Rendering(continue_final_message=True))
        text = text_of(trio, m, CHAT, continue_final_message=True)
        assert text.endswith("Well, I")
        assert tokenizer.decode(ids).endswith("Well, I")
        assert ids != trio.prompt_ids(m, CHAT)
    (one,) = trio.generate([CHAT], max_new_tokens=3, continue_final_message=True)
    assert one.error is None
    assert not same(one, trio.generate([CHAT], max_new_tokens=3)[0])


def test_the_assistants_answer_need_not_be_opened(trio):
    for m, tokenizer in enumerate(trio.tokenizers):
        bare = tokenizer(text_of(trio, m, [USER]), add_special_tokens=False)["input_ids"]
        assert trio.prompt_ids(m, [USER], ed.Rendering(add_generation_prompt=False)) == bare


def test_text_parts_are_their_joined_text(trio):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}]
    for chat in ("template", "plain"):
        rendering = ed.Rendering(chat=chat)
        assert all(trio.prompt_ids(m, parts, rendering) == trio.prompt_ids(m, [USER], rendering) for m in range(3))
    image = [{"role": "user", "content": [{"type": "image", "url": "x"}]}]
    (row,) = trio.generate([image])
    assert "message 0 of the prompt has a part that is no text" in row.error


def test_templates_get_arguments_one_for_all_or_one_each(trio, monkeypatch):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}"
    for tokenizer in trio.tokenizers:
        monkeypatch.setattr(tokenizer, "chat_template", template)
    for given, moods in (({"mood": "!"}, "!!!"), ([{"mood": "a"}, None, {"mood": "c"}], ["a", "", "c"])):
        rendering = ed.Rendering(chat_template_kwargs=given)
        for m, mood in enumerate(moods):
            expected = trio.tokenizers[m](f"Hello there{mood}", add_special_tokens=False)["input_ids"]
            assert trio.prompt_ids(m, [USER], rendering) == expected
    (row,) = trio.generate([[USER]], chat_template_kwargs=[{}, {}])
    assert "chat_template_kwargs: 2 values for 3 models" in row.error
    (row,) = trio.generate([[USER]], chat_template_kwargs={"continue_final_message": True})
    assert "is an argument of its own" in row.error
    with pytest.raises(ed.InputError, match="give one of them"):
        trio.generate([[USER]], add_generation_prompt=True, continue_final_message=True)


def test_token_ids_for_some_models_or_all(trio):
    """They are used as they are; the others read the text."""
    text = "The quick brown fox"
    (wanted,) = trio.generate(text, max_new_tokens=6)
    ids = {m: trio.prompt_ids(m, text) for m in range(3)}
    for prompt in (ed.TokenPrompt(ids), ed.TokenPrompt(ids[0], text), ed.TokenPrompt({1: ids[1]}, text)):
        (row,) = trio.generate(prompt, max_new_tokens=6)
        assert same(row, wanted)
        assert row.prompt is prompt
    alone = trio.generate(ed.TokenPrompt(ids[0][:-1]), method=ed.Single(), max_new_tokens=6)[0]
    assert alone.error is None
    for prompt, named in (
        (ed.TokenPrompt(ids[0]), r"no token ids for model 1 \(llama2\) and no text"),
        (ed.TokenPrompt({0: [1.5]}, text), "must be integers, 0 or more; got 1.5"),
        (ed.TokenPrompt([10**6], text), "must be below"),
    ):
        with pytest.raises(ed.InputError, match=named):
            trio.generate(prompt, errors="raise")


@pytest.mark.parametrize(
    "method", [ed.UniTE(), ed.GaC(1.0), ed.SAFE(), ed.SpecFuse(segment_length=3)], ids=lambda m: type(m).__name__
)
def test_weights_of_one_request_are_those_of_an_ensemble_with_them(trio, method):
    """In one batch with rows that have others, and none."""
    weights = [None, [0.9, 0.05, 0.05], [0.05, 0.05, 0.9]]
    asked = [ed.BatchRequest("The quick brown fox", weight=w, max_new_tokens=10, method=method) for w in weights]
    results = [result.completion for result in trio.generate_batch(asked)]
    assert len({row.data for row in results}) > 1
    for weight, row in zip(weights, results, strict=True):
        own = ed.Ensemble(trio.runners, trio.tokenizers, trio.vocab, weight)
        options = {"method": method, "max_new_tokens": 10}
        assert same(row, own.generate("The quick brown fox", **options)[0])
        assert same(row, trio.generate("The quick brown fox", weight=weight, **options)[0])
