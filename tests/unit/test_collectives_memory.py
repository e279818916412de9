"""What flags of the collectives become: atomic loads and stores, in LLVM's code and in that of two processors."""

import pytest
from llvmlite import binding
from numba import njit

from overlap.compiled.memory import load_acquire, store_release


def wait_and_answer(flag, answer):
    while load_acquire(flag) < 1:
        pass
    store_release(answer, 1)


@pytest.fixture(scope="module")
def llvm():
    compiled = njit("void(int64, int64)")(wait_and_answer)
    (text,) = compiled.inspect_llvm().values()
    return text


def test_flags_are_atomic(llvm):
    assert "load atomic i64" in llvm and "acquire, align 8" in llvm
    assert "store atomic i64" in llvm and "release, align 8" in llvm


def assembly(llvm, triple):
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(opt=2)
    module = binding.parse_assembly("\n".join(line for line in llvm.splitlines() if not line.startswith("target ")))
    module.triple, module.data_layout = triple, str(machine.target_data)
    return machine.emit_assembly(module)


def test_on_arm_they_are_acquire_and_release_instructions(llvm):
    try:
        binding.initialize_all_targets()
        binding.Target.from_triple("aarch64-linux-gnu")
    except RuntimeError:
        pytest.skip("this llvmlite has no back end for ARM")
    text = assembly(llvm, "aarch64-linux-gnu")
    assert ("ldar" in text or "ldapr" in text) and "stlr" in text


def test_on_x86_they_are_plain_moves(llvm):
    text = assembly(llvm, "x86_64-linux-gnu")
    assert "lock" not in text and "xchg" not in text and "fence" not in text
