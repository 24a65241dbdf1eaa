"""Mistakes that no wrong answer shows, as they only make more work."""

from mutants.mutant import Mutant

MORE_WORK = (
    Mutant(
        "Algorithm 2 without its mask check, on the CPU",
        "pipeline/cpu/partition_index.py",
        "            if contains(query, masks[m]):",
        "            if True:",
        "tests/pipeline/test_prefilters.py",
    ),
    Mutant(
        "Algorithm 2 without its mask check, on CUDA: counting",
        "pipeline/cuda/routing.py",
        "_U(0):\n                cuda.atomic.add(counts, run - first, 1)\n",
        "_U(0) or True:\n                cuda.atomic.add(counts, run - first, 1)\n",
        "tests/pipeline/cuda/test_gpu_batches.py -k routing",
        simulated=True,
    ),
    Mutant(
        "Algorithm 2 without its mask check, on CUDA: queueing",
        "pipeline/cuda/routing.py",
        "_U(0):\n                queued[",
        "_U(0) or True:\n                queued[",
        "tests/pipeline/cuda/test_gpu_batches.py -k routing",
        simulated=True,
    ),
    Mutant(
        "Algorithm 4 given the whole partition's rows",
        "pipeline/cuda/items.py",
        "        a, b, c = masks[block, 0], masks[block, 1], masks[block, 2]\n",
        "        a = b = c = ~_U(0)\n"
        "        for other in range(first_blocks[run], first_blocks[run + np.uint32(1)]):\n"
        "            a, b, c = a & masks[other, 0], b & masks[other, 1], c & masks[other, 2]\n",
        "tests/pipeline/cuda/test_gpu_batches.py -k prefilter",
        simulated=True,
    ),
    Mutant(
        "a block's mask whose first word is cleared",
        "pipeline/cpu/blocks.py",
        "                masks[block, 0] &= words[0][row]",
        "                masks[block, 0] = _U(0)",
        "tests/pipeline/test_prefilters.py",
    ),
    Mutant(
        "a row beyond the last, which has all bits",
        "pipeline/cuda/items.py",
        " and row + r * ITEM_THREADS < end:\n                            _stage(",
        ":\n                            _stage(",
        "tests/pipeline/cuda/test_gpu_batches.py -k all_bits",
        simulated=True,
    ),
    Mutant(
        "a backup copies files that are there already",
        "model/storage/copies.py",
        "            if place.has(own):",
        "            if False:",
        "tests/interface/test_safety_copies.py -k new",
    ),
    Mutant(
        "an outbox keeps the memory of the whole batch of its notifications",
        "broker/outbox.py",
        "        if self._held > 4 * self.nbytes + _SHARED_BYTES:",
        "        if False:",
        "tests/broker/test_outbox.py -k memory",
    ),
    Mutant(
        "names that no session follows any more are never forgotten",
        "broker/routes.py",
        "            if len(self._names) > 2 * self._count() + _SPARE_NAMES:",
        "            if False:",
        "tests/broker/test_sessions.py -k forgotten",
    ),
)
