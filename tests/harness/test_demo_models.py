"""lm-evaluation-harness from its command line on the demo models: `Single` beside the harness's own `hf`."""

import pytest
from support.harness_samples import likelihoods, lines

import ensemble_decode as ed
from ensemble_decode.determination.questions import completion, multiple_choice
from ensemble_decode.members.sources.specs import parse_spec
from ensemble_decode.members.transformers.loading import spec_source

pytest.importorskip("lm_eval")

pytestmark = [pytest.mark.real, pytest.mark.slow]

TASKS = ("--tasks", "local_pick,local_read,local_write,local_line", "--device", "cpu")


@pytest.fixture
def documents():
    """Questions with the words to choose from, and lines to complete."""
    made = []
    for question in multiple_choice(5, seed=3):
        asked = question.prompt.rsplit("\n\n", 1)[1]
        words = [line.split(") ")[1] for line in asked.splitlines()[1:4]]
        made.append({"question": asked, "options": words, "answer": "ABC".index(question.answer)})
    for question in completion(3, seed=3):
        asked = question.prompt.rsplit("\n", 1)[1]
        made.append({"question": asked, "options": [question.answer, "Größe"], "answer": 0})
    return made


@pytest.mark.parametrize("spec", ["demo:smollm2", "demo:gemma3"])
def test_single_is_the_harness_own_model_at_every_batch(lm_eval, spec):
    folder = spec_source(parse_spec(spec))
    _, wanted = lm_eval(
        "--model", "hf", "--model_args", f"pretrained={folder},dtype=float32", *TASKS, "--batch_size", "1"
    )
    ours = f"models={spec},method=single,dtype=float32"
    runs = [
        lm_eval("--model", "ensemble_decode", "--model_args", ours, *TASKS, "--batch_size", batch)[1]
        for batch in ("1", "4")
    ]
    for task, requests in (("local_pick", 21), ("local_read", 8)):
        expected = [value for line in lines(wanted[task]) for value in likelihoods(line)]
        assert len(expected) == requests
        for samples in runs:
            assert [v for line in lines(samples[task]) for v in likelihoods(line)] == pytest.approx(expected, abs=1e-4)
    for task in ("local_write", "local_line"):
        expected = [line["resps"][0][0] for line in lines(wanted[task])]
        for samples in runs:
            assert [line["resps"][0][0] for line in lines(samples[task])] == expected


def test_requests_of_an_ensemble_stop_at_their_own_strings_at_every_batch(lm_eval, documents):
    """Two tasks with different stops and lengths are run in one call; each text is that of its prompt alone."""
    args = "models=demo:smollm2;demo:gemma3,method=safe(draft_length=5),dtype=float32"
    runs = [
        lm_eval("--model", "ensemble_decode", "--model_args", args, *TASKS, "--batch_size", batch)
        for batch in ("1", "4")
    ]
    ensemble = ed.Ensemble.load(["demo:smollm2", "demo:gemma3"], dtype="float32")
    prompts = [document["question"] for document in documents]
    settings = {"local_write": (["e"], 12), "local_line": (["\n", "."], 20)}
    for task, (stop, length) in settings.items():
        done = ensemble.generate(prompts, method=ed.SAFE(), max_new_tokens=length, stop=stop, batch_size=1)
        for _, samples in runs:
            texts = [line["resps"][0][0] for line in lines(samples[task])]
            assert texts == [one.text for one in done]
            assert not any(end in text for text in texts for end in stop)
        assert {one.finish_reason for one in done} >= {"stop"}
    first, second = (
        [value for line in lines(samples["local_pick"]) for value in likelihoods(line)] for _, samples in runs
    )
    assert first == pytest.approx(second, abs=1e-4)
    assert all(value < 0 for value in first)
