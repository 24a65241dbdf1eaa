"""Compiled kernels: kept by what they are, wherever the package is installed; compiled ahead by `warm_up`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.kernel_cache import copy_of_cache

import tagmatch
from tagmatch.model.kernels.kept import portable_environment

pytestmark = pytest.mark.nightly

# Prints each kernel that is compiled and could be kept
SHOWN = """
from numba.core import event

class Shown(event.Listener):
    def on_start(self, event):
        if hasattr(event.data["dispatcher"]._cache, "cache_path"):
            print(event.data["dispatcher"].py_func.__qualname__, event.data["args"], flush=True)

    def on_end(self, event):
        pass

event.register("numba:compile", Shown())
"""

# Kernels that have little to do are compiled, too
AT_ONCE = "from tagmatch.model.kernels.interpreted import compile_at_once\ncompile_at_once()\n"

# Does what a program would do, in shapes that `warm_up` does not have
PROGRAM = (
    SHOWN.replace("if hasattr", "if True or hasattr")
    + AT_ONCE
    + """
import random, sys, tempfile
from pathlib import Path
from typing import get_args
import pyarrow as pa
import tagmatch
from tagmatch import TagMatch
from tagmatch.model.options import Layout

assert Path(tagmatch.__file__).is_relative_to(sys.argv[1])
rng = random.Random(1)
tags = [f"t{number}" for number in range(50)]
sets = [rng.sample(tags, rng.randint(0, 5)) for _ in range(3000)]
arrays = [pa.array(sets), pa.array(sets, pa.large_list(pa.string()))]
arrays.append(pa.array(sets, pa.list_(pa.large_string())).slice(5))
arrays.append(pa.chunked_array([arrays[0].slice(5, 100), arrays[0]]))
for each in get_args(Layout):
    for exact, last_key, threads in ((True, 9, 1), (False, 2**64 - 1, 4), (True, 2**40, 3)):
        options = {"exact": exact, "threads": threads, "device": "cpu"}
        with tempfile.TemporaryDirectory() as folder:
            with TagMatch(folder + "/index", layout=each, **options) as tm:
                tm.match(tags)
                tm.add_sets(sets, [rng.choice((1, 2, last_key)) for _ in sets])
                for array in arrays:
                    tm.add_sets(array, range(len(array)))
                tm.consolidate()
                tm.remove_set(sets[0], 1)
                tm.consolidate()
            with TagMatch.open(folder + "/index", **options) as tm:
                for few_or_many in (1, 2):
                    tm.match(tags * few_or_many)
                    tm.match_unique(tags * few_or_many)
                tm.explain(tags)
                for array in arrays:
                    tm.match_many(array)
                    tm.match_many(array, unique=True)
                tm.match_many([])
                for future in [tm.submit(rng.sample(tags, 8), unique=rng.random() < 0.5) for _ in range(5000)]:
                    future.result()
                tm.match([]), tm.match_unique(tags), tm.explain(tags), tm.check()
with TagMatch(device="cpu") as tm:
    tm.add_set(["t1"], 1)
    tm.consolidate(), tm.match(["t1"]), tm.match_many([["t1"]])
with TagMatch(device="cpu") as tm:
    for low in range(600):
        tm.add_set([], low, where=f"price between {low} and {low + 600}")
    tm.add_set(["t1"], 1, where='name suffix "b" or price != 3 and not tags {"t2"}')
    tm.consolidate()
    assert all(tm.stats()["with_conditions"].values())
    tm.match_many(pa.table({"tags": [["t1"]], "price": [601], "name": ["ab"]}))
    tm.match(["t1"], {"price": [1, 2.5], "name": "b"}), tm.explain(["t1"], {"price": 5})
for key_type, plane, keys in (("integer", False, [1, 2**50]), ("string", True, ["ana", "bo"])):
    with TagMatch(device="cpu", key_type=key_type, plane=plane) as tm:
        tm.add_sets([["t1"], ["t2"]], keys, area=tagmatch.Circle(9, 45, 10))
        tm.add_sets([["t1"], []], keys, area=tagmatch.Near(10), where="not within box(1, 1, 2, 2)")
        tm.consolidate()
        tm.move(keys, 9, 45)
        for within in (None, tagmatch.Box(8, 44, 10, 46)):
            assert len(tm.match(["t1", "t2"], location=(9, 45), within=within)) == 4
            tm.match_unique(["t1", "t2"], location=(9, 45), within=within)
            assert len(tm.explain(["t1", "t2"], location=(9, 45), within=within)) == 4
        tm.match(["t1", "t2"]), tm.match(["t1"], within=tagmatch.Circle(9, 45, 10))
"""
)


def copy_of_package(folder: Path) -> Path:
    """As a wheel installs it: without links."""
    source = Path(tagmatch.__file__).parent
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


ROOT = Path(tagmatch.__file__).parents[1]


def ended(code: str, cache: Path, root: Path = ROOT, **more: str) -> tuple[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    command, more = [sys.executable, "-c", code, str(root)], environment | more
    done = subprocess.run(command, env=more, capture_output=True, text=True, cwd=root, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def run(code: str, cache: Path, root: Path = ROOT, **more: str) -> str:
    return ended(code, cache, root, **more)[0]


def times_in(folder: Path) -> dict[Path, int]:
    found = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert found
    return found


@pytest.mark.timeout(1800)
def test_nothing_is_compiled_after_warm_up_also_by_a_copy_elsewhere(tmp_path):
    """In a cache with what `warmup` has compiled, now or before, and nothing else."""
    first, second = (copy_of_package(tmp_path / name) for name in ("first", "second"))
    cache = tmp_path / "cache"
    copy_of_cache(cache)
    warm_up = "from tagmatch.cli import main; import sys; sys.argv[1:] = ['warmup']; main()"
    told = run(warm_up, cache, first, NUMBA_DEBUG_CACHE="1")
    needed = set(re.findall(r"\[cache\] data (?:loaded from|saved to) '(.*)'", told))
    for machine_code in cache.rglob("*.nbc"):
        if str(machine_code) not in needed:
            machine_code.unlink()
    kept = times_in(cache)
    assert run(PROGRAM, cache, second) == ""
    assert times_in(cache) == kept


# One small kernel for two types, and the folder in which it is kept
ONE = f"""{AT_ONCE}
import sys, warnings
warnings.simplefilter("always")
import numpy as np
from tagmatch.model.kernels.kept import cache_folder
from tagmatch.model.kernels.lists import count_values

count_values(np.arange(3, dtype=np.uint32), 3)
count_values(np.arange(3, dtype=np.uint64), 3)
print(cache_folder())
"""


def test_what_is_exported_other_computers_take_from_a_folder_or_with_the_package(tmp_path):
    """Their own processor has another name than the one that it was compiled for; one without its features does not."""
    export, installed = tmp_path / "export", copy_of_package(tmp_path / "installed")
    environment = portable_environment(str(export))
    assert len(run(f"{SHOWN}{ONE}", export, **environment).splitlines()) == 2 + 1
    assert len(run(f"{SHOWN}{ONE}", export).splitlines()) == 0 + 1
    assert len(run(f"{SHOWN}{ONE}", tmp_path / "own", installed).splitlines()) == 2 + 1
    shutil.copytree(export / "tagmatch", installed / "tagmatch" / "compiled")
    shutil.rmtree(tmp_path / "own")
    assert len(run(f"{SHOWN}{ONE}", tmp_path / "own", installed).splitlines()) == 0 + 1
    old = "from llvmlite import binding\nfound = binding.get_host_cpu_features()\nfound['avx2'] = False\n"
    old += "binding.get_host_cpu_features = lambda: found\n"
    assert len(run(f"{old}{SHOWN}{ONE}", tmp_path / "own", installed).splitlines()) == 2 + 1


def test_processes_that_begin_at_once_compile_each_kernel_once(tmp_path):
    compiled = {}
    for processes in (1, 4):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", f'{SHOWN}print("ready", flush=True)\ninput()\n{ONE}'],
                env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / str(processes))},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            )
            for _ in range(processes)
        ]  # fmt: skip
        assert [process.stdout.readline() for process in started] == ["ready\n"] * processes
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=120)[0].splitlines() for process in started]
        assert [process.returncode for process in started] == [0] * processes
        compiled[processes] = sorted(line for lines in printed for line in lines[:-1])
    assert compiled[1] == compiled[4]
    assert len(compiled[1]) == 2


OWN = {
    "parts": "from typing import NamedTuple\nclass Pair(NamedTuple):\n    low: int\n    high: int\n\nLIMIT = 100\n",
    "helpers": "from tagmatch.model.kernels.jit import inlined\n\n@inlined\ndef one():\n    return 1\n",
    "generated": """
from numba.core import types
from numba.extending import intrinsic
def _ten(typing):
    return types.int64(), lambda context, builder, signature, arguments: context.get_constant(types.int64, 10)
ten = intrinsic(_ten)
""",
    "kernels": """
from own.generated import ten
from own.helpers import one
from own.parts import LIMIT
from tagmatch.model.kernels.jit import kernel

@kernel
def total(pair):
    \"\"\"Some number.\"\"\"
    return LIMIT * pair.high + ten() + one()
@kernel
def other(): return 5
""",
}
# New text, old text, module, and then the result, and the compiled kernels
EDITS = [
    ("parts", "", "", 210 + 1, ["one", "other", "total"]),
    ("parts", "LIMIT = 100", "LIMIT = 200", 410 + 1, ["one", "total"]),
    ("helpers", "return 1", "return 2", 210 + 2, ["one", "total"]),
    ("generated", "int64, 10", "int64, 20", 220 + 1, ["one", "total"]),
    ("parts", "low: int\n    high: int", "high: int\n    low: int", 110 + 1, ["one", "total"]),
    ("kernels", "* pair", "+ pair", 112 + 1, ["one", "total"]),
    ("kernels", "Some number", "Another text", 210 + 1, []),
    ("kernels", "return 5", "return 6", 210 + 1, ["other"]),
]


def test_a_kernel_is_compiled_anew_if_what_it_is_made_from_changes_and_no_other(tmp_path):
    """In another module, too: a helper, a constant, what generates code, and the class of an argument."""
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").touch()
    program = f"{SHOWN}{AT_ONCE}from own.kernels import other, total\nfrom own.parts import Pair\n"
    program += "other(); print(total(Pair(1, 2)))"
    again = ["one", "total"]
    moved = [
        ("parts", "", "", 211, []),
        ("parts", "Pair", "Two", 211, again),
        ("kernels", "helpers", "moved", 211, again),
    ]
    for module, old, new, result, compiled in [*EDITS, *moved]:
        for name, text in OWN.items():
            (package / f"{name}.py").write_text(text.replace(old, new) if old and name == module else text)
        if new == "moved":
            (package / "helpers.py").rename(package / "moved.py")
        code = program.replace("import Pair", "import Two as Pair") if new == "Two" else program
        printed = run(code, tmp_path / "cache", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}").splitlines()
        assert printed[-1] == str(result), (module, new)
        assert sorted({line.partition(" ")[0] for line in printed[:-1]}) == compiled, (module, new)


def test_kernels_of_one_name_stay_apart_though_other_processes_compiled_them(tmp_path):
    """Numba calls the constants of kept code by the name of its function, and by which one of this name it is there."""
    (tmp_path / "made.py").write_text(
        "import numpy as np\nfrom tagmatch.model.kernels.jit import kernel\n\ndef of(dtype):\n    @kernel\n"
        "    def zeros(count): return np.zeros(count, dtype)\n    return zeros\n"
    )
    code, path = f"{AT_ONCE}from made import of; import numpy as np; ", f"{ROOT}{os.pathsep}{tmp_path}"
    for types in (["uint8"], ["float64"], ["float64", "uint8"], ["uint8", "float64"]):
        asked = "; ".join(f"print(of(np.{each})(2).dtype)" for each in types)
        assert run(code + asked, tmp_path / "cache", PYTHONPATH=path).split() == types


APART = """import numpy as np
from tagmatch.model.kernels.jit import apart, kernel

@apart
def long(values, most):
    return np.append(values, values[:most] + 1), len(values)

@kernel
def first(values): return long(values, 1)[0].sum()

@kernel
def second(values): return long(values, 2)[0].sum() + long(values, 0)[1]
"""


def test_a_kernel_that_others_call_apart_is_compiled_once_and_kept_once(tmp_path):
    """What calls it is loaded with it, or has it compiled, if it is lost; a change in it reaches them."""
    path, cache = f"{ROOT}{os.pathsep}{tmp_path}", tmp_path / "cache"
    code = f"{SHOWN}{AT_ONCE}import numpy as np; from made import first, second\nvalues = np.arange(4)\n"
    code += "print(first(values), second(values))"
    for text, is_lost, compiled, result in (
        (APART, False, ["first", "long", "second"], "7 13"),
        (APART, False, [], "7 13"),
        (APART, True, ["long"], "7 13"),
        (APART.replace("+ 1", "+ 2"), False, ["first", "long", "second"], "8 15"),
    ):
        (tmp_path / "made.py").write_text(text)
        for kept in cache.rglob("*long*") if is_lost else ():
            kept.unlink()
        *printed, last = run(code, cache, PYTHONPATH=path).splitlines()
        names = [line.partition(" ")[0] for line in printed]
        own = sorted(name for name in names if name in ("first", "long", "second"))
        assert (own, last) == (compiled, result)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_files_that_cannot_be_read_are_made_anew(tmp_path, ending):
    """As a computer leaves them that loses its power: without the bytes that were to be in them."""
    cache = tmp_path / "cache"
    for compiled in (2, 0):
        assert len(run(f"{SHOWN}{ONE}", cache).splitlines()) == compiled + 1
    (damaged, *_) = sorted(cache.rglob(f"*count_values*.{ending}"))
    damaged.write_bytes(b"")
    assert 1 <= len(run(f"{SHOWN}{ONE}", cache).splitlines()) - 1 <= 2
    assert len(run(f"{SHOWN}{ONE}", cache).splitlines()) == 1


def test_a_folder_of_another_user_or_that_others_may_write_is_not_trusted(tmp_path):
    folder = Path(run(ONE, tmp_path / "cache").strip())
    for mode in (0o775, 0o757):
        folder.chmod(mode)
        assert run(ONE, tmp_path / "cache") == "None\n"
    folder.chmod(0o755)
    assert run(ONE, tmp_path / "cache") == f"{folder}\n"
    if os.getuid() == 0:  # only root can make files for another user
        os.chown(folder, 12345, 12345)
        assert run(ONE, tmp_path / "cache") == "None\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_users_have_what_root_has_compiled(tmp_path):
    """As in an image of a container, which is made as root and runs as any user; nothing is compiled or written."""
    folder = Path(run(ONE, tmp_path / "cache").strip())
    kept = times_in(folder)
    for path in (folder, *kept):
        assert path.stat().st_mode & 0o044 == 0o044, f"other users cannot read {path}"
    # Only the real user is another: root's rights stay, as other users may not be able to read the interpreter
    assert run(f"{SHOWN}import os; os.setresuid(12345, 0, 0)\n{ONE}", tmp_path / "cache") == f"{folder}\n"
    assert times_in(folder) == kept


def test_a_cache_that_cannot_be_written_or_is_full(tmp_path):
    """Matching works, and one warning says what to do. Of a full one, the kernels that are there are used."""
    (tmp_path / "file").touch()
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n" + ONE
    for code, cache, says in (
        (ONE, tmp_path / "file", (str(tmp_path / "file"), "XDG_CACHE_HOME")),
        (ONE, Path("/proc/nowhere"), ("/proc/nowhere", "XDG_CACHE_HOME")),
        (limited, tmp_path / "full", ("File too large",)),
    ):
        told, complaints = ended(code, cache)
        assert (told == "None\n") == (code is ONE)
        assert complaints.count("RuntimeWarning: compiled kernels cannot be kept") == 1
        assert all(word in complaints for word in says)
