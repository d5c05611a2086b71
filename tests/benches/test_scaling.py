"""Models with random weights: vocabularies of the size asked for, that spell everything; cells that carry their own
models."""

import pytest
import random_models
import torch
from latency import scaling
from support import bench as support_bench

from ensemble_decode import ModelVocab
from ensemble_decode.bench.record import Record


@pytest.mark.parametrize("size", [600, 32_000])
def test_a_random_vocabulary_has_its_size_and_spells_every_text(size):
    tokenizer = random_models.tokenizer(size, seed=1)
    assert len(tokenizer) == size
    vocab = ModelVocab.build(tokenizer)
    text = "The quick brown fox, Größe 你好 \n\t 12+7".encode()
    ids = vocab.encode(text)
    assert vocab.decode(ids) == text
    assert len(ids) < len(text)
    assert random_models.tokenizer(size, seed=2).get_vocab() != tokenizer.get_vocab()


def test_random_models_leave_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    made = random_models.model(300, layers=2, hidden=64, seed=1, dtype=torch.bfloat16)
    assert torch.equal(torch.rand(3), expected)
    assert made.dtype == torch.bfloat16
    assert made.get_output_embeddings().weight.shape == (300, 64)
    assert made.get_output_embeddings().weight.data_ptr() == made.get_input_embeddings().weight.data_ptr()


def test_vocabularies_are_measured_one_size_after_the_other(monkeypatch):
    monkeypatch.setattr(scaling, "VOCABULARIES", (600, 1200))
    bench = support_bench.bench()
    record = Record.begin(bench.names, "float32", ["cpu"], "")
    shapes = scaling.measure_vocabularies(record, bench, tokens=3, rounds=1, say=lambda words: None)
    assert [cell.label for cell in record.cells] == ["UniTE, 2 vocabularies of 600", "UniTE, 2 vocabularies of 1200"]
    assert sorted({shape.vocab for shape in shapes.values()}) == [600, 1200]
    for cell in record.cells:
        assert len(cell.models) == 2
        assert set(cell.models) <= set(shapes)
        assert all(seconds > 0 for seconds in cell.samples[0].forward)


def test_models_are_added_one_by_one():
    bench = support_bench.bench()
    record = Record.begin(bench.names, "float32", ["cpu"], "")
    said = []
    shapes = scaling.measure_models(record, bench, support_bench.loaded(), most=3, tokens=3, rounds=1, say=said.append)
    assert said == ["models: 2", "models: 3"]
    assert [len(cell.models) for cell in record.cells] == [2] * 3 + [3] * 3
    assert record.cells[-1].models == ["llama3", "gemma", "random-0"]
    assert set(shapes) == {"llama3", "gemma", "random-0"}
    assert all(seconds > 0 for cell in record.cells[4:] for seconds in cell.samples[0].forward)
