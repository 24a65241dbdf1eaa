"""Every CUDA kernel compiles to PTX, for which no GPU is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: The module of each kernel, its name, and its types: arrays, and numbers, `n`, or flags, `yes`
KERNELS = """
cuda.preprocess _look_up n i32 n u8 uint64 u64 offsets u8 u32
cuda.preprocess _spread n n u32 u32 u32
cuda.preprocess _sort n i32 n u32 i32 i32 u32
cuda.values _clear n i32
cuda.values _encode n n i64 i64 i64 u32 u64 i64 n u32 n u64 n u16 u32 u32 i32
cuda.values _by_message n u32 u32 u32 i64 i32 u32 u32
cuda.messages _room n n i32 i64 u32 i64 i32
cuda.messages _tokenize n i32 i32 u32 i64 u32 u32 i64 i64 u64 u32 n i64 i32 u32 u32 u64
cuda.trie match_trie n n i64 i32 u32 u32 u64 i32 i32 u32 i64 u32 u32 n n i32 halves u64 i32 u64 u32 i64 halves i64
  flags i64 u32 u32 u32 u32 i64
cuda.lines assign_buckets n n i64 u32 u32 i32 i64 u32 u8
cuda.lines match_lines n n n u8 i32 i32 u32 i64 u32 u32 n i32 i64 u32 i64 halves i64 halves halves u32 i64 halves i64
  flags i64 u32 u32 u32 u32 i64
cuda.scan _scan_tiles n i32 i64 i64
cuda.scan _scan_totals n i64
cuda.scan _add_totals n i64 i64
cuda.pairs _clear n yes i32 i64 u32 u32
cuda.pairs _count_keys u32 u32 i64 u8 offsets i32
cuda.pairs _copy_keys u32 u32 i64 u8 offsets i64 i32 keys values
cuda.pairs _count_sets u32 u32 i64 u8 i32
cuda.pairs _copy_sets u32 u32 i64 u8 i64 i32 u32
cuda.rarest _query_bits n i32 i32 u32 u64
cuda.rarest _match n i32 i32 u32 u32 u64 offsets u32 u32 offsets words uint64 u32 u32 i64
cuda.subclusters _count offsets u32 u32 offsets i64
cuda.subclusters _fill offsets u32 u32 offsets words uint64
cuda.balanced _signatures n i32 i32 u32 u64 words u64
cuda.balanced _check_rows n offsets u32 u8
cuda.routing _clear n i32 i32
cuda.routing _count n words n words i32
cuda.routing _queue n words n words i64 i32 u32
cuda.routing _count_items n i32 n i32
cuda.routing _make_items n i64 i64 n u32 i64 i32
cuda.area_search spread_owners n i64 u32
cuda.area_search find_areas n u32 u32 f64 f64 f64 f64 f64 yes yes i64 f64 u32 bounds i64 u32 u32 i64 i32 i32 i64
cuda.area_search clear_answers n i32 i64
cuda.area_search order_answers n u32 i64 i32 i64 i32 u32 u32
cuda.clients mark_last n u32 n i64
cuda.clients put_last n u32 f64 f64 f64 n i64 f64 f64 f64
cuda.clients clear_counts n i32
cuda.clients count_cells n u32 u32 f64 f64 f64 i64 f64 u8 i32 i32
cuda.clients fill_chunks n u32 f64 f64 f64 f64 i32 i64 i32 f64 u32
cuda.clients bound_chunks n n n f64 f64
cuda.clients bound_records n n n n n f64
cuda.items match_items u32 i64 i32 u32 words i64 i64 words u64 u64 u64 yes u8 offsets u32 u64 i32 i32 u32 yes u32 u32
  u8 i64
systems.gpu_scan _scan n u64 u64 u64 u64 n n n i64 n u8 u32
systems.ccm _evaluate n xs i64 i64 u32 u64 u8 operands operands u64 u32 u32 uint32 n u32 u32 n u8
systems.ccm _clear n u32 n u8
systems.clcb_cuda _loc n uint32 float32 float32 f32x2 f32 u32 u32 uint32 u32 u32 u8 u32
systems.clcb_cuda _cont u32 xs i64 i64 u8 operands operands u32 u32 uint32 uint32 u32 u32 u8
systems.clcb_cuda _zip n u8 u32
systems.ccm _evaluate_2011 u32 xs i64 i64 structs u32 u32 u32 u8 yes u32 u8
"""

# In a process of its own: the tests of this process's other files may have chosen Numba's simulator, or a context
SCRIPT = """
import importlib, pathlib, pkgutil, sys, types
import numpy as np
from numba import cuda, types as t
from numba.np import numpy_support
import tagmatch.pipeline.cuda, tagmatch_bench.systems

how_many, *capabilities = sys.argv[1:]
capabilities = [tuple(map(int, capability.split("."))) for capability in capabilities]
# Device functions are made LLVM's code for the current device, of which nothing but this is asked; the code is the same
# for all, and becomes PTX as part of a kernel
device = types.SimpleNamespace(compute_capability=capabilities[0])
importlib.import_module("numba.cuda.dispatcher").get_current_device = lambda: device

def structs(operands):
    fields = [("value", operands), ("upper", operands), ("filter", "u4"), ("operator", "u1")]
    return numpy_support.from_dtype(np.dtype(fields, align=True))[::1]

def known(word):
    kind, size = {"u": "uint", "i": "int", "f": "float"}.get(word[0]), word[1:]
    return getattr(t, f"{kind}{size}")[::1] if size.isdigit() else scalars.get(word) or getattr(t, word)

scalars = {"n": t.int64, "yes": t.boolean, "flags": t.boolean[::1], "f32x2": t.float32[:, ::1]}
scalars |= {"words": t.uint64[:, ::1], "halves": t.uint32[:, ::1]}
# What may be of several types
offsets = [("i32", "u32", "u32", "f32"), ("i32", "u32", "u64", "f64"), ("i64", "u64", "u64", "f64")]
several = {
    "cuda": [dict(zip(("offsets", "keys", "values", "bounds"), map(known, each))) for each in offsets],
    "systems": [
        {"xs": known(x), "operands": known(operand), "structs": structs(operand[0] + str(int(operand[1:]) // 8))}
        for x, operand in (("i64", "i32"), ("i64", "i64"), ("f64", "f64"))
    ],
}
folders = {"cuda": tagmatch.pipeline.cuda, "systems": tagmatch_bench.systems}
wanted = set()
for module, name, *words in map(str.split, sys.stdin):
    folder, _, file = module.partition(".")
    for types in several[folder]:
        signature = tuple(types.get(word) or known(word) for word in words)
        wanted.add((f"{folders[folder].__name__}.{file}", name, signature))
if how_many == "one":
    wanted = {each[:2]: each for each in sorted(wanted, key=str)}.values()
for module, name, signature in wanted:
    function = getattr(importlib.import_module(module), name).py_func
    for major, minor in capabilities:
        ptx, _ = cuda.compile_ptx(function, signature, cc=(major, minor))
        assert f".target sm_{major}{minor}" in ptx, ptx[:1000]
        # What decides must round as the CPU does
        assert name != "find_areas" or "fma.rn" not in ptx, ptx
compiled = {(module, name) for module, name, _ in wanted}

modules = [f"{folders['cuda'].__name__}.{module.name}" for module in pkgutil.iter_modules(folders["cuda"].__path__)]
for file in pathlib.Path(folders["systems"].__path__[0]).glob("*.py"):
    if "import numba.cuda" in file.read_text():
        modules.append(f"{folders['systems'].__name__}.{file.stem}")
for module in modules:
    for name, member in vars(importlib.import_module(module)).items():
        if hasattr(member, "py_func") and member.py_func.__module__ == module:
            if not member.targetoptions.get("device"):
                assert (module, name) in compiled, f"{module}.{name} is not in this test"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signatures", "capabilities"),
    [("one", ["9.0"]), pytest.param("all", ["8.0", "9.0"], marks=pytest.mark.nightly)],
    ids=["once", "for all types and two architectures"],
)
def test_kernels_compile(signatures: str, capabilities: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, signatures, *capabilities],
        input=re.sub(r"\n  +", " ", KERNELS.strip()), cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
