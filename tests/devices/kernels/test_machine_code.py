"""Machine code of kernels: parsing a disassembly, loops, shortest paths, and where figures are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuexec.devices.kernels import machine_code
from gpuexec.devices.kernels.machine_code import (
    CodeFigures,
    Instruction,
    LoopFigures,
    find_nvdisasm,
    measure,
    parse_functions,
    read_figures,
)
from gpuexec.errors import DeviceNotFoundError

# What nvdisasm prints, in small: a loop with a part out of line, a slow path by a subroutine, vectors where they fit.
LISTING = """\
	.target	sm_90a

	.section	.text.first,"ax",@progbits
	.align	128
        .type           first,@function
first:
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   ISETP.GE.U32.AND P0, PT, R2, 0x5, PT ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/                   IMAD R4, R5, 0x8, RZ ;
        /*0040*/                   IMAD.MOV.U32 R6, RZ, RZ, R4 ;
        /*0050*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0060*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*0070*/                   EXIT ;
.L_x_0:
        /*0080*/                   LDG.E R4, desc[UR4][R2.64] ;
        /*0090*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64] ;
        /*00a0*/                   LDS.64 R8, [R2] ;
        /*00b0*/                   STS [R2], R8 ;
        /*00c0*/                   FFMA R0, R1, R2, R0 ;
        /*00d0*/                   HFMA2.MMA R7, -RZ, RZ, 0, 0 ;
        /*00e0*/               @P1 BRA `(.L_x_2) ;
.L_x_1:
        /*00f0*/                   ISETP.NE.AND P2, PT, R5, R6, PT ;
        /*0100*/                   BRA P2, `(.L_x_0) ;
        /*0110*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0120*/                   EXIT ;
.L_x_2:
        /*0130*/                   FFMA R0, R1, R2, R0 ;
        /*0140*/                   LOP3.LUT R5, R5, 0x1, RZ, 0xc0, !PT ;
        /*0150*/                   BRA `(.L_x_1) ;
        .weak           $__internal_0_$__cuda_sm20_div_s64
$__internal_0_$__cuda_sm20_div_s64:
        /*0160*/                   IADD3 R4, P1, R15, R42, RZ ;
        /*0170*/                   RET.REL.NODEC R2 `(first) ;
.L_x_3:
        /*0180*/                   BRA `(.L_x_3);
        /*0190*/                   NOP;
        /*01a0*/                   NOP;
.L_x_4:


	.section	.text.second,"ax",@progbits
second:
.text.second:
        /*0000*/                   BRX R2 -0x10                                     (*"BRANCH_TARGETS .L_x_5,.L_x_6"*);
.L_x_5:
        /*0010*/                   IADD3 R4, R4, 0x1, RZ ;
        /*0020*/              @!P0 CALL.REL.NOINC `(.L_x_6) ;
        /*0030*/                   BRA `(.L_x_5) ;
.L_x_6:
        /*0040*/                   STL [R1], R4 ;
        /*0050*/                   LDL.64 R4, [R1] ;
        /*0060*/                   EXIT ;
"""


def figures(name: str) -> CodeFigures:
    return measure(parse_functions(LISTING)[name])


def test_parse_functions_reads_predicates_opcodes_and_targets() -> None:
    functions = parse_functions(LISTING)
    assert list(functions) == ["first", "second"]
    code = functions["first"].instructions
    assert code[1] == Instruction("", "ISETP.GE.U32.AND", "P0, PT, R2, 0x5, PT")
    assert code[2] == Instruction("@!P0", "BRA", "`(.L_x_0)", (8,))
    assert code[16].targets == (8,)
    assert functions["second"].instructions[0].targets == (1, 4)


WAITING = """\
	.section	.text.waiting,"ax",@progbits
.text.waiting:
        /*0000*/                   LDG.E.CONSTANT R4, desc[UR4][R2.64] ;
        /*0010*/               @P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   ACQBULK ;
        /*0030*/                   LDG.E R5, desc[UR4][R2.64] ;
        /*0040*/                   STG.E desc[UR4][R2.64], R5 ;
        /*0050*/                   EXIT ;
.L_x_1:
        /*0060*/                   RED.E.ADD.STRONG.GPU desc[UR4][R2.64], R5 ;
        /*0070*/                   BRA `(.L_x_0) ;
"""


def test_early_accesses_are_those_on_a_path_to_the_wait() -> None:
    (function,) = parse_functions(WAITING).values()
    assert measure(function).early_accesses == 2
    (without,) = parse_functions(WAITING.replace("ACQBULK", "NOP")).values()
    assert measure(without).early_accesses == 0


@pytest.mark.parametrize(
    ("opcode", "bits"),
    [("LDG.E", 32), ("LDG.E.128.CONSTANT", 128), ("LDG.E.U8", 8), ("LDG.E.S16", 16), ("STG.E.64", 64), ("LDS.U", 32)],
)
def test_bits_are_what_a_thread_moves(opcode: str, bits: int) -> None:
    assert Instruction("", opcode, "R4, [R2]").bits == bits


def test_padding_and_data_moves_are_no_arithmetic() -> None:
    assert figures("first").instructions == 24
    assert not Instruction("", "IMAD.MOV.U32", "R6, RZ, RZ, R4").is_integer
    assert not Instruction("", "HFMA2.MMA", "R7, -RZ, RZ, 0, 0").is_multiply_add
    assert Instruction("", "HFMA2.MMA", "R7, R2, R3, R7").is_multiply_add
    assert Instruction("", "UIADD3", "UR4, UR4, 0x1, URZ").is_integer


def test_main_loop_has_what_lies_out_of_line_and_not_what_leaves_it() -> None:
    assert figures("first").loop == LoopFigures(
        instructions=12,
        multiply_adds=2,
        integers=2,
        calls=0,
        global_loads={32: 1, 128: 1},
        shared_loads={64: 1},
        shared_stores={32: 1},
    )


def test_path_to_the_widest_store_counts_its_integers() -> None:
    assert (figures("first").store_bits, figures("first").path_integers) == (128, 2)
    assert (figures("second").store_bits, figures("second").path_integers) == (0, 0)


def test_call_of_a_label_is_a_jump_and_of_a_subroutine_a_call() -> None:
    assert figures("first").calls == 1
    assert figures("second").calls == 0
    assert figures("second").loop == LoopFigures(instructions=3, multiply_adds=0, integers=1, calls=0)


def test_local_memory_is_counted() -> None:
    assert figures("first").local_accesses == 0
    assert figures("second").local_accesses == 2


def test_innermost_loop_with_most_multiply_adds_is_the_main_loop() -> None:
    lines = [
        ".text.f:",
        ".L_x_0:",  # around both
        *["        /*0000*/                   IADD3 R4, R4, 0x1, RZ ;"] * 9,
        ".L_x_1:",
        "        /*0010*/                   FFMA R0, R1, R2, R0 ;",
        "        /*0020*/               @P0 BRA `(.L_x_1) ;",
        ".L_x_2:",
        *["        /*0030*/                   LDG.E R4, desc[UR4][R2.64] ;"] * 5,
        "        /*0040*/               @P0 BRA `(.L_x_2) ;",
        "        /*0050*/               @P1 BRA `(.L_x_0) ;",
        "        /*0060*/                   EXIT ;",
    ]
    loop = measure(parse_functions("\n".join(lines) + "\n")["f"]).loop
    assert loop is not None
    assert (loop.instructions, loop.multiply_adds, loop.multiply_add_share) == (2, 1, 0.5)


def test_figures_are_read_again_without_a_disassembly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = []
    monkeypatch.setattr(machine_code, "disassembler_version", lambda: "nvdisasm-1")
    monkeypatch.setattr(machine_code, "disassemble", lambda image: images.append(image) or LISTING)
    first = read_figures(b"cubin", tmp_path / "figures")
    assert read_figures(b"cubin", tmp_path / "figures") == first == {n: figures(n) for n in ("first", "second")}
    assert images == [b"cubin"]
    (file,) = (tmp_path / "figures").glob("*.json")
    file.write_text(file.read_text()[:-9])
    assert read_figures(b"cubin", tmp_path / "figures") == first
    monkeypatch.setattr(machine_code, "disassembler_version", lambda: "nvdisasm-2")
    read_figures(b"cubin", tmp_path / "figures")
    assert len(images) == 3


def test_missing_disassembler_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_PACKAGE", "gpuexec-has-no-such-package")
    monkeypatch.setattr(machine_code.shutil, "which", lambda name: None)
    with pytest.raises(DeviceNotFoundError, match=r"needs nvdisasm.*Run: pip install 'gpuexec\[dev\]'"):
        find_nvdisasm.__wrapped__()
