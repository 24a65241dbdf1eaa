"""Every CUDA kernel compiles to PTX, for which no GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the tests of this process's other files may have chosen Numba's simulator, or a context
SCRIPT = """
import importlib, pathlib, pkgutil, sys, types
import numpy as np
from numba import cuda, types as t
from numba.np import numpy_support
import tagmatch.pipeline.cuda, tagmatch.workloads.systems

how_many, *capabilities = sys.argv[1:]
capabilities = [tuple(map(int, capability.split("."))) for capability in capabilities]
# Device functions are made LLVM's code for the current device, of which nothing but this is asked; the code is the same
# for all, and becomes PTX as part of a kernel
device = types.SimpleNamespace(compute_capability=capabilities[0])
importlib.import_module("numba.cuda.dispatcher").get_current_device = lambda: device

def array(dtype, dimensions=1):
    return t.Array(dtype, dimensions, "C")

u8, u32, u64, i32, i64, f32, f64 = map(
    array, (t.uint8, t.uint32, t.uint64, t.int32, t.int64, t.float32, t.float64)
)
words, n, yes = array(t.uint64, 2), t.int64, t.boolean
halves, flags = array(t.uint32, 2), array(t.boolean)

def kernels(offsets, keys, bounds):
    results = (u32, u32, i64)
    return {
        "preprocess": {
            "_look_up": (n, i32, n, u8, t.uint64, u64, offsets, u8, u32),
            "_spread": (n, n, u32, u32, u32),
            "_sort": (n, i32, n, u32, i32, i32, u32),
        },
        "values": {
            "_clear": (n, i32),
            "_encode": (
                n, n, i64, i64, i64, u32, u64, i64, n, u32, n, u64, n, array(t.uint16), u32, u32, i32,
            ),
            "_by_message": (n, u32, u32, u32, i64, i32, u32, u32),
        },
        "messages": {
            "_room": (n, n, i32, i64, u32, i64, i32),
            "_tokenize": (n, i32, i32, u32, i64, u32, u32, i64, i64, u64, u32, n, i64, i32, u32, u32, u64),
        },
        "trie": {
            "match_trie": (
                n, n, i64, i32, u32, u32, u64, i32, i32, u32, i64, u32, u32, n, n, i32, halves, u64, i32, u64,
                u32, i64, halves, i64, flags, i64, u32, u32, *results,
            ),
        },
        "lines": {
            "assign_buckets": (n, n, i64, u32, u32, i32, i64, u32, u8),
            "match_lines": (
                n, n, n, u8, i32, i32, u32, i64, u32, u32, n, i32, i64, u32, i64, halves, i64, halves, halves,
                u32, i64, halves, i64, flags, i64, u32, u32, *results,
            ),
        },
        "scan": {
            "_scan_tiles": (n, i32, i64, i64),
            "_scan_totals": (n, i64),
            "_add_totals": (n, i64, i64),
        },
        "pairs": {
            "_clear": (n, yes, i32, i64, u32, u32),
            "_count_keys": (*results, u8, offsets, i32),
            "_copy_keys": (*results, u8, offsets, i64, i32, *keys),
            "_count_sets": (*results, u8, i32),
            "_copy_sets": (*results, u8, i64, i32, u32),
        },
        "rarest": {
            "_query_bits": (n, i32, i32, u32, u64),
            "_match": (n, i32, i32, u32, u32, u64, offsets, u32, u32, offsets, words, t.uint64, *results),
        },
        "subclusters": {
            "_count": (offsets, u32, u32, offsets, i64),
            "_fill": (offsets, u32, u32, offsets, words, t.uint64),
        },
        "balanced": {
            "_signatures": (n, i32, i32, u32, u64, words, u64),
            "_check_rows": (n, offsets, u32, u8),
        },
        "routing": {
            "_clear": (n, i32, i32),
            "_count": (n, words, n, words, i32),
            "_queue": (n, words, n, words, i64, i32, u32),
            "_count_items": (n, i32, n, i32),
            "_make_items": (n, i64, i64, n, u32, i64, i32),
        },
        "area_search": {
            "spread_owners": (n, i64, u32),
            "find_areas": (
                n, u32, u32, f64, f64, f64, f64, f64, yes, yes, i64, f64, u32, bounds, i64,
                u32, u32, i64, i32, i32, i64,
            ),
            "clear_answers": (n, i32, i64),
            "order_answers": (n, u32, i64, i32, i64, i32, u32, u32),
        },
        "clients": {
            "mark_last": (n, u32, n, i64),
            "put_last": (n, u32, f64, f64, f64, n, i64, f64, f64, f64),
            "clear_counts": (n, i32),
            "count_cells": (n, u32, u32, f64, f64, f64, i64, f64, u8, i32, i32),
            "fill_chunks": (n, u32, f64, f64, f64, f64, i32, i64, i32, f64, u32),
            "bound_chunks": (n, n, n, f64, f64),
            "bound_records": (n, n, n, n, n, f64),
        },
        "items": {
            "match_items": (
                u32, i64, i32, u32, words, i64, i64, words, u64, u64, u64,
                yes, u8, offsets, u32, u64, i32, i32, u32, yes, u32, u32, u8, i64,
            ),
        },
    }

def systems(xs, operands):
    return {
        "gpu_scan": {
            "_scan": (n, u64, u64, u64, u64, n, n, n, i64, n, u8, u32),
        },
        "ccm": {
            "_evaluate": (
                n, xs, i64, i64, u32, u64, u8, operands, operands, u64, u32, u32,
                t.uint32, n, u32, u32, n, u8,
            ),
            "_clear": (n, u32, n, u8),
        },
        "clcb_cuda": {
            "_loc": (
                n, t.uint32, t.float32, t.float32, array(t.float32, 2), f32, u32, u32, t.uint32, u32, u32, u8, u32,
            ),
            "_cont": (u32, xs, i64, i64, u8, operands, operands, u32, u32, t.uint32, t.uint32, u32, u32, u8),
            "_zip": (n, u8, u32),
        },
        "ccm_2011": {
            "_evaluate": (u32, xs, i64, i64, array(structs(operands)), u32, u32, u32, u8, yes, u32, u8),
        },
    }

def structs(operands):
    kind = numpy_support.as_dtype(operands.dtype)
    fields = [("value", kind), ("upper", kind), ("filter", "u4"), ("operator", "u1")]
    return numpy_support.from_dtype(np.dtype(fields, align=True))

PIPELINE, SYSTEMS = tagmatch.pipeline.cuda.__name__ + ".", tagmatch.workloads.systems.__name__ + "."
# Once where the type of offsets does not matter
wanted = {
    (PIPELINE + module, name, signature)
    for offsets, keys, bounds in ((i32, (u32, u32), f32), (i32, (u32, u64), f64), (i64, (u64, u64), f64))
    for module, found in kernels(offsets, keys, bounds).items() for name, signature in found.items()
} | {
    (SYSTEMS + module, name, signature)
    for xs, operands in ((i64, i32), (i64, i64), (f64, f64))
    for module, found in systems(xs, operands).items() for name, signature in found.items()
}
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

modules = [PIPELINE + module.name for module in pkgutil.iter_modules(tagmatch.pipeline.cuda.__path__)]
for file in pathlib.Path(tagmatch.workloads.systems.__path__[0]).glob("*.py"):
    if "import numba.cuda" in file.read_text():
        modules.append(SYSTEMS + file.stem)
for module in modules:
    for name, member in vars(importlib.import_module(module)).items():
        if hasattr(member, "py_func") and member.py_func.__module__ == module:
            if not member.targetoptions.get("device"):
                assert (module, name) in compiled, f"{module}.{name} is not in this test"
print(len(compiled), "kernels")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signatures", "capabilities"),
    [("one", ["9.0"]), pytest.param("all", ["8.0", "9.0"], marks=pytest.mark.nightly)],
    ids=["once", "for all types and two architectures"],
)
def test_kernels_compile(signatures: str, capabilities: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"}
    command = [sys.executable, "-c", SCRIPT, signatures, *capabilities]
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
