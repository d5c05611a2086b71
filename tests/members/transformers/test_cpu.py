"""How the CPU multiplies bfloat16, from what torch and Linux say about it."""

from types import SimpleNamespace

import pytest
import torch

from ensemble_decode.members.transformers import cpu

PROBES = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")


@pytest.fixture
def machine(monkeypatch):
    """Sets what a CPU has."""

    def have(features=(), mkldnn=True, cpuinfo=""):
        for probe in PROBES:
            monkeypatch.setattr(torch.cpu, probe, lambda probe=probe: probe in features, raising=False)
        known = {} if mkldnn is None else {"_is_mkldnn_bf16_supported": lambda: mkldnn}
        monkeypatch.setattr(cpu.torch.ops, "mkldnn", SimpleNamespace(**known))
        monkeypatch.setattr(cpu.Path, "read_text", lambda path: cpuinfo)

    return have


@pytest.mark.parametrize("probe", PROBES)
def test_any_of_the_instructions(machine, probe):
    machine(features=[probe])
    assert cpu.bfloat16_products() == "instructions"


def test_linux_on_arm_lists_them(machine):
    machine(mkldnn=None, cpuinfo="processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n")
    assert cpu.bfloat16_products() == "instructions"


@pytest.mark.parametrize(
    ("mkldnn", "answer"), [(True, "float32 vectors"), (False, "emulated"), (None, "float32 vectors")]
)
def test_without_them_torch_says_whether_it_has_vectors(machine, mkldnn, answer):
    machine(mkldnn=mkldnn, cpuinfo="flags\t: avx2 bf16like\n")
    assert cpu.bfloat16_products() == answer
