"""Texts that break tokenization by parts, and strategies that mix them."""

from hypothesis import strategies as st

FRAGMENTS = (
    *(" ", "  ", "    ", "\n", "\n\n", "\n\n\n", " \n", "\t", "\r\n", "\x00", "\x1b", "\u00a0", "\u3000", "\ufeff"),
    *(
        "a",
        "the",
        " the",
        " quick",
        "ing",
        "Hello World",
        "A",
        "ß",
        "é",
        "e\u0301",
        "\u0301",
        "\u0323",
        "Müller",
        "Mül",
    ),
    *(
        "你好",
        "，",
        "。",
        " 你好",
        "한국",
        "\u1100",
        "\u1161",
        "\u11a8",
        "क़",
        "שלום",
        "привет",
        "\u202b",
        "😀",
        "👨\u200d👩\u200d👧",
    ),
    *("1", "234", "5 678", "3.14", "'s", "'", "'ll", "...", "//", "_", "-", '"', "(", ")", "def f(x):\n    return x\n"),
    *("<tool>", "<think>", "<strong>", "<strip>", "word", "</s>", "<|im_end|>", "<0x41>", "▁", "▁▁▁"),
    *("pneumonoultramicroscopicsilicovolcanoconiosis", "=" * 40, " " * 37),
)
INVALID = [b"\xff", b"\xe4", b"\xbd", b"\xc3", b"\x80", b"\xf0\x9f", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90"]

pieces = st.one_of(
    st.sampled_from(FRAGMENTS).map(str.encode),
    st.text(max_size=4).map(str.encode),
    st.sampled_from(INVALID),
)
data = st.lists(pieces, max_size=12).map(b"".join)
# What happens to a growing text: bytes to append, or how much to cut from its end.
edits = st.lists(st.one_of(data, st.integers(1, 80)), min_size=1, max_size=14)
