"""Every CUDA kernel compiles to PTX, for which no GPU is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

#: Named tuples, by which kernels take arrays: a word for each, its module, its name, and its types
TABLES = """
queries cuda.pairs QueryArrays i32 i32 u32 u32
pairs cuda.pairs PairArrays u32 u32 i64
keytable cuda.pairs KeyArrays offsets keys
tags cuda.pairs _Tags u64 offsets u8
given cuda.filters _Given i64 i64 i64 u32 u64
constants cuda.filters _Constants i64 n u32 n u64 n u16
attributes cuda.filters ValueArrays i64 u32 u32
cells filters.asked TokenCells i64 i64 u64 u32 n
tokens cuda.filters TokenArrays i64 i32 u32 u32 u64
message cuda.filters MessageArrays queries attributes
sets filters.asked Sets constraints u32 i64 halves
trie filters.trie Trie i32 halves u64 i32 u64 u8
cut filters.lines Buckets i32 i64 u32
blocks filters.lines LineBlocks i64 halves i64 halves halves
clusters clusters Clusters offsets u32 u32 offsets
items cuda.balanced Items u32 i64 i32 u32
signed cuda.balanced _Asked queries words u64
runs cuda.balanced _Runs yes i64 i64 words three u8 offsets u32
askings cuda.areas AskingArrays u32 u32 f64 f64 f64 f64 f64
segments cuda.areas SegmentArrays u32 u32 i64 i32 i32 i64
tree cuda.areas AreaTree i64 f64 u32 bounds i64
moved areas.clients Points u32 f64 f64 f64
cuts areas.cells CellTree i64 f64 u8
entries cuda.areas _Entries u32 u32 f64
at cuda.areas PointArrays f64 f64 f64
scanned systems.gpu_scan Stored n u64 u64 u64
found systems.gpu_scan _Pairs u8 u32
back systems.hybrid _Results u32 u8
out systems.ccm _Out u32 u32 n u8
stored systems.ccm _Stored u8 operands operands u64 u32 u32
stored2011 systems.ccm _Stored2011 i64 i64 u32
circles systems.clcb_cuda _Areas f32x2 f32 u32 u32
asked systems.clcb_cuda _Constraints i64 i64 u8 operands operands u32 u32
marks systems.clcb_cuda _Marks u32 u8
"""

#: The module of each kernel, its name, and its types: arrays, and numbers, `n`, or flags, `yes`
KERNELS = """
cuda.pairs _clear n yes i32 pairs
cuda.pairs _count_keys pairs u8 keytable i32
cuda.pairs _copy_keys pairs u8 keytable i64 i32 values
cuda.pairs _order_keys n i64 keys i32 i64 keys
cuda.pairs _copy_once n i64 keys i64 values
cuda.pairs _count_sets pairs u8 i32
cuda.pairs _copy_sets pairs u8 i64 i32 u32
cuda.pairs _look_up n i32 n u8 uint64 tags u32
cuda.pairs _spread n n u32 u32 u32
cuda.pairs _sort n i32 n queries
cuda.filters _encode n n given constants u32 u32 i32
cuda.filters _by_message n u32 u32 u32 i64 i32 u32 u32
cuda.filters _room n n queries attributes i64 i32
cuda.filters _tokenize n message cells tokens
cuda.filters match_trie n n n tokens message trie sets pairs
cuda.filters assign_buckets n n attributes cut u8
cuda.filters match_lines n n u8 message cut blocks sets pairs
cuda.device _clear n i32
cuda.device _scan_tiles n i32 i64 i64
cuda.device _scan_totals n i64
cuda.device _add_totals n i64 i64
cuda.rarest _query_bits n queries u64
cuda.rarest _match n queries u64 clusters words uint64 pairs
cuda.rarest _count clusters i64
cuda.rarest _fill clusters words uint64
cuda.balanced _sign n signed u64
cuda.balanced _check_rows n offsets u32 u8
cuda.balanced _count n words n words i32
cuda.balanced _queue n words n words i64 i32 u32
cuda.balanced _count_items n i32 n i32
cuda.balanced _make_items n i64 i64 n items
cuda.balanced match_items items signed runs pairs
cuda.areas spread_owners n i64 u32
cuda.areas find_areas n askings tree yes yes segments
cuda.areas clear_answers n segments
cuda.areas order_answers n segments i64 u32
cuda.areas mark_last n u32 n i64
cuda.areas put_last n moved n i64 at
cuda.areas count_cells n entries at cuts i32 i32
cuda.areas fill_chunks n entries at i32 i64 i32 tree
cuda.areas bound_chunks n n n f64 f64
cuda.areas bound_records n n n n n f64
systems.gpu_scan _scan scanned u64 n n n i64 n found
systems.hybrid _match scanned uint32 uint32 u64 uint32 uint32 back u32
systems.ccm _evaluate xs i64 i64 u32 u64 numbers stored out
systems.ccm _clear n u32 n u8
systems.clcb_cuda _loc n uint32 place circles uint32 u32 marks u32
systems.clcb_cuda _cont u32 xs asked uint32 uint32 u32 marks
systems.clcb_cuda _zip n u8 u32
systems.ccm _evaluate_2011 u32 xs structs stored2011 out how u32 u8
"""

# In a separate process: the tests of this process's other files may have chosen Numba's simulator, or a context
SCRIPT = """
import importlib, pathlib, pkgutil, sys, types
import numpy as np
from numba import cuda, types as t
from numba.np import numpy_support
import tagmatch.pipeline.cuda, tagmatch_bench.systems

how_many, *capabilities = sys.argv[1:]
capabilities = [tuple(map(int, capability.split("."))) for capability in capabilities]
# Device functions become LLVM's code for the current device, which has no other use; the code is the same
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
scalars |= {"words": t.uint64[:, ::1], "halves": t.uint32[:, ::1], "three": t.UniTuple(t.uint64[::1], 3)}
scalars |= {"numbers": t.UniTuple(t.int64, 2), "place": t.UniTuple(t.float32, 2), "how": t.UniTuple(t.boolean, 2)}
scalars["constraints"] = t.Tuple([t.int64[::1], t.boolean[::1], t.int64[::1], t.uint32[::1], t.uint32[::1]])
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
wanted, tables = set(), {}
lines = list(map(str.split, sys.stdin))
for word, module, name, *words in lines[: lines.index([])]:
    package = "tagmatch_bench" if module.startswith("systems.") else "tagmatch.pipeline"
    tables[word] = getattr(importlib.import_module(f"{package}.{module}"), name), words

def typed(word, types):
    if word in tables:
        kind, words = tables[word]
        assert len(words) == len(kind._fields), word
        return t.NamedTuple([typed(each, types) for each in words], kind)
    return types.get(word) or known(word)

for module, name, *words in lines[lines.index([]) + 1 :]:
    folder, _, file = module.partition(".")
    for types in several[folder]:
        signature = tuple(typed(word, types) for word in words)
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
            of_device = type(getattr(member, "dispatcher", member)).__module__.startswith("numba.cuda")
            if of_device and not member.targetoptions.get("device"):
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
        input=re.sub(r"\n  +", " ", f"{TABLES.strip()}\n\n{KERNELS.strip()}"), cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
