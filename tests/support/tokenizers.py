"""Small trained tokenizers, one of every family that the package must read (and a few nasty ones).

`build("llama2")` returns a `PreTrainedTokenizerFast`; `NAMES` lists them. The merges are learned here, by a plain byte
pair trainer with a fixed order of ties, so that every process gets the same vocabulary.
"""

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CORPUS = Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8")

LLAMA3_REGEX = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
QWEN2_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# No system role: the message is refused, as the templates of some published models do.
LLAMA2_CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% elif m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} {{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Without the BOS that its tokenizer adds to plain text.
METASPACE_CHAT = (
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
GPT2_CHAT = (
    "{% for m in messages %}### {{ m['role'] | capitalize }}\n{{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### Assistant\n{% endif %}"
)


def learn_merges(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs in turn, ties to the smaller pair."""
    parts = [(list(word), n) for word, n in sorted(words.items())]
    merges: list[tuple[str, str]] = []
    pairs: Counter[tuple[str, str]] = Counter()
    for symbols, n in parts:
        for pair in pairwise(symbols):
            pairs[pair] += n
    while len(merges) < count:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        joined = best[0] + best[1]
        for index, (symbols, n) in enumerate(parts):
            if best[0] not in symbols or joined not in "".join(symbols):
                continue
            merged: list[str] = []
            for symbol in symbols:
                if merged and (merged[-1], symbol) == best:
                    merged[-1] = joined
                else:
                    merged.append(symbol)
            if len(merged) == len(symbols):
                continue
            for pair in pairwise(symbols):
                pairs[pair] -= n
            for pair in pairwise(merged):
                pairs[pair] += n
            parts[index] = (merged, n)
    return merges


def _byte_level_vocab(specials: list[str], split: pre_tokenizers.PreTokenizer, merges: int, text: str = CORPUS):
    words = Counter(word for word, _ in split.pre_tokenize_str(text))
    learned = learn_merges(words, merges)
    pieces = specials + sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in learned]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, learned


@cache
def _metaspace_merges() -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    split = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=True)
    words = Counter(word for line in CORPUS.splitlines(keepends=True) for word, _ in split.pre_tokenize_str(line))
    # Rare characters stay out of the alphabet, so that they are spelled with byte pieces.
    counts = Counter(CORPUS.replace(" ", "▁"))
    alphabet = sorted(char for char, n in counts.items() if n >= 3 and char not in "\n\t")
    known = Counter({word: n for word, n in words.items() if set(word) <= set(alphabet)})
    merges = learn_merges(known, 500)
    # Runs of spaces, as code models have them.
    merges += [("▁", "▁")] if ("▁", "▁") not in merges else []
    merges += [("▁▁", "▁▁")] if ("▁▁", "▁▁") not in merges else []
    return tuple(merges), tuple(alphabet)


def _metaspace_vocab(specials: list[str], bytes_first: bool = True) -> tuple[dict[str, int], list[tuple[str, str]]]:
    merges, alphabet = _metaspace_merges()
    byte_pieces = [f"<0x{value:02X}>" for value in range(256)]
    rest = [a + b for a, b in merges] + list(alphabet)
    pieces = specials + (byte_pieces + rest if bytes_first else rest + byte_pieces)
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, list(merges)


def _byte_level(specials, regex=None, merges=500, normalizer=None, ignore_merges=False) -> Tokenizer:
    if regex is None:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    else:
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(regex), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    text = CORPUS if normalizer is None else normalizer.normalize_str(CORPUS)
    vocab, learned = _byte_level_vocab(specials, split, merges, text)
    tokenizer = Tokenizer(models.BPE(vocab, learned, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _add_bos(tokenizer: Tokenizer, bos: str) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _gpt2() -> PreTrainedTokenizerFast:
    tokenizer = _byte_level(["<|endoftext|>"], merges=450)
    return _wrap(tokenizer, GPT2_CHAT, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def _llama3() -> PreTrainedTokenizerFast:
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    tokenizer = _byte_level(specials, LLAMA3_REGEX, merges=600, ignore_merges=True)
    _add_bos(tokenizer, "<|begin_of_text|>")
    return _wrap(tokenizer, LLAMA3_CHAT, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")


def _qwen2() -> PreTrainedTokenizerFast:
    """Normalizes to NFC, so decomposed accents do not survive its encoding; has added tokens that are not special."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = _byte_level(specials, QWEN2_REGEX, merges=350, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    return _wrap(tokenizer, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _metaspace_bpe(specials: list[str], bytes_first: bool = True) -> Tokenizer:
    vocab, merges = _metaspace_vocab(specials, bytes_first)
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return tokenizer


def _llama2() -> PreTrainedTokenizerFast:
    """The dummy prefix space is put there by the normalizer and taken away by the decoder."""
    tokenizer = _metaspace_bpe(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _add_bos(tokenizer, "<s>")
    return _wrap(tokenizer, LLAMA2_CHAT, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _metaspace() -> PreTrainedTokenizerFast:
    """The dummy prefix space is put there by the pre-tokenizer."""
    tokenizer = _metaspace_bpe(["<unk>", "<s>", "</s>", "<pad>"], bytes_first=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _add_bos(tokenizer, "<s>")
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _wrap(tokenizer, METASPACE_CHAT, **names)


def _gemma() -> PreTrainedTokenizerFast:
    """Spaces are replaced; no dummy prefix; runs of newlines are added tokens that are not special."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = _metaspace_bpe(specials)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "\n\n\n", "▁▁▁", "<strong>")])
    _add_bos(tokenizer, "<bos>")
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _wrap(tokenizer, GEMMA_CHAT, **names)


def _unigram() -> PreTrainedTokenizerFast:
    """Unigram with byte fallback; the score of a piece is the logarithm of how often the text holds it."""
    vocab, _ = _metaspace_vocab(["<unk>", "<s>", "</s>"])
    text = CORPUS.replace(" ", "▁")
    scores = []
    for piece in vocab:
        if piece in ("<unk>", "<s>", "</s>") or (piece.startswith("<0x") and piece.endswith(">")):
            scores.append((piece, 0.0))
        else:
            count = text.count(piece)
            scores.append((piece, round(-9.0 + 0.9 * (count**0.25) + 0.1 * len(piece), 6)))
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return _wrap(tokenizer, CHATML, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _lowercase() -> PreTrainedTokenizerFast:
    """Its normalizer changes the bytes of every capital letter."""
    tokenizer = _byte_level(["<|endoftext|>"], merges=200, normalizer=normalizers.Lowercase())
    return _wrap(tokenizer, None, eos_token="<|endoftext|>")


def _added() -> PreTrainedTokenizerFast:
    """Added tokens of every kind, among them ones whose matching swallows the space around them."""
    specials = ["<|endoftext|>", "<|pad|>", "<|fim|>"]
    tokenizer = _byte_level(specials, merges=300)
    tokenizer.add_tokens(
        [
            AddedToken("<tool>", normalized=False),
            AddedToken("    ", normalized=False),
            AddedToken("Müller", normalized=True),
            AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
        ]
    )
    return _wrap(tokenizer, CHATML.replace("im_", "turn_"), eos_token="<|endoftext|>", pad_token="<|pad|>")


def _wrap(tokenizer: Tokenizer, chat_template: str | None, **names: str) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    wrapped.chat_template = chat_template
    return wrapped


BUILDERS = {
    "gpt2": _gpt2,
    "llama3": _llama3,
    "qwen2": _qwen2,
    "llama2": _llama2,
    "metaspace": _metaspace,
    "gemma": _gemma,
    "unigram": _unigram,
    "lowercase": _lowercase,
    "added": _added,
}
NAMES = tuple(BUILDERS)
# One token per byte and no merges: every tokenization is the only one, so models that share it share it exactly.
BUILDERS["bytes"] = lambda: _wrap(_byte_level(["<|endoftext|>"], merges=0), None, eos_token="<|endoftext|>")

# Ids beside the tokenizer's own EOS that end a text, as a generation config lists them.
EXTRA_EOS = {"llama3": ("<|end_of_text|>",), "qwen2": ("<|endoftext|>",), "gemma": ("<end_of_turn>",)}


@cache
def build(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer called `name`, one object per process: do not change it."""
    return BUILDERS[name]()


def eos_ids(name: str) -> list[int]:
    """Every id that ends a text: the tokenizer's EOS and those of the generation config."""
    tokenizer = build(name)
    extra = [tokenizer.convert_tokens_to_ids(text) for text in EXTRA_EOS.get(name, ())]
    return sorted({tokenizer.eos_token_id, *extra})
