"""The paper's *prefix tree*."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tagmatch_bench.systems.signatures import SignatureMatcher, signature_table
from tagmatch_bench.systems.trees import LEAF_ROWS, build_tree

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.model.arrays import Lists, U64Array


class PrefixTree(SignatureMatcher):
    """A Patricia tree over signatures that each query navigates. Inexact: some sets only seem to match.

    The *prefix tree* that the TagMatch paper compares with (§4.1), like the trie of PTSJ in Y. Luo, G. Fletcher,
    J. Hidders, P. De Bra, "Efficient and Scalable Trie-Based Algorithms for Computing Set Containment Relations",
    ICDE 2015. The paper's own code is not used; nodes, leaves and the order of navigation are this module's
    (`tagmatch_bench.systems.trees`). Simplified: the tree is built once, from all sets, and then never changed.

    Parameters
    ----------
    leaf_rows : int
        Signatures of a leaf at most, which are scanned.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1, leaf_rows: int = LEAF_ROWS) -> None:
        table = signature_table(sets, threads=threads)
        super().__init__(table.keys, threads=threads)
        self._tree = build_tree(table.signatures, leaf_rows=leaf_rows)

    def match_rows(self, queries: U64Array) -> Lists:
        """Find the rows whose signature is contained in each query's."""
        return self._tree.contained_rows(queries)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        return self._keys.nbytes + self._tree.nbytes
