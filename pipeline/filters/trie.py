"""Sets with constraints in a static trie: the tokens of each, least likely first, are a path.

What is at the end of a path is scanned by signature and then verified. Many messages, as tokens, go down at once: what
is fetched from far memory is fetched in their own loops, without branches, over the nodes of all messages, as the
processor then waits for many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, IntArray, Lists, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import inlined, kernel, with_room
from tagmatch.model.kernels.lists import sort_values
from tagmatch.pipeline.filters.asked import Requirements, Sets, TokenCells, cells_of, keep_verified, sets_of
from tagmatch.pipeline.filters.messages import MessageTable
from tagmatch.pipeline.segment import RowsFound

# Sets of a leaf, and how many times fewer children than sets a node must have
_LEAF, _LEAST = 32, 1

_U = np.uint64
#: At the end of a node's scanned rows: it has children
INNER = np.uint32(1 << 31)


class Trie(NamedTuple):
    """Node 0 is the root. The rows of a node from its begin to its end are scanned; kernels take it."""

    roots: IntArray  # the child of the root for each token, 0 without one
    nodes: U32Array  # [n, 2]: begin and end; the end's highest bit is `INNER`
    edges: U64Array  # an open hash table: a node and a token, `node << 32 | token`
    children: IntArray  # the node that the edge at the same place leads to, 0 if the place is free
    signatures: U64Array  # a bit for each token of a row
    fewest: U8Array  # of each node, how many more tokens a message must have for any of the rows there and below


@inlined
def home_of(node, token):
    """Where an edge is looked for first, before that is cut to the size of the table."""
    x = (_U(node) << _U(32)) | _U(token)
    x ^= x >> _U(29)
    x *= _U(0xBF58476D1CE4E5B9)
    return x ^ (x >> _U(32))


@inlined
def bit_of(token):
    """The bit of a token in signatures."""
    return _U(1) << ((_U(token) * _U(0x9E3779B97F4A7C15)) >> _U(58))


@inlined
def child_of(node, token, edges, children):
    """Where an edge leads; 0 without one."""
    mask = _U(len(edges) - 1)
    edge = (_U(node) << _U(32)) | _U(token)
    at = home_of(node, token) & mask
    while children[at] != 0 and edges[at] != edge:
        at = (at + _U(1)) & mask
    return np.int64(children[at])


@inlined
def rows_of_node(node, nodes):
    """Begin and end of the rows that are scanned, and whether the node has children."""
    end = nodes[node, 1]
    return np.int64(nodes[node, 0]), np.int64(end & ~INNER), end & INNER != 0


@kernel
def _nodes(paths, leaf, least):
    """Nodes over paths in order, and the edges between them."""
    rows, deepest = paths.shape
    room = 2 * rows + 2
    begins, ends, scanned = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    depths, inner = np.empty(room, np.int64), np.zeros(room, np.bool_)
    parents, tokens, children = np.empty(room, np.int64), np.empty(room, np.uint32), np.empty(room, np.int64)
    begins[0], ends[0], depths[0] = 0, rows, 0
    nodes, edges, at = 1, 0, 0
    while at < nodes:
        begin, end, depth = begins[at], ends[at], depths[at]
        split = depth < deepest and (at == 0 or end - begin > leaf)
        row = begin
        if split:
            while row < end and paths[row, depth] == 0:
                row += 1
            if at > 0:
                runs = 0
                for i in range(row, end):
                    runs += i == row or paths[i, depth] != paths[i - 1, depth]
                split = end - row >= least * runs
        scanned[at] = row if split else end
        inner[at] = split
        while split and row < end:
            token, first = paths[row, depth], row
            while row < end and paths[row, depth] == token:
                row += 1
            begins[nodes], ends[nodes], depths[nodes] = first, row, depth + 1
            parents[edges], tokens[edges], children[edges] = at, token, nodes
            nodes += 1
            edges += 1
        at += 1
    of_nodes = (begins[:nodes], scanned[:nodes], inner[:nodes], depths[:nodes])
    return of_nodes, (parents[:edges], tokens[:edges], children[:edges])


@kernel
def _add_edges(parents, tokens, children, edges, out):
    mask = _U(len(edges) - 1)
    for i in range(len(parents)):
        if parents[i] == 0:
            continue
        at = home_of(parents[i], tokens[i]) & mask
        while out[at] != 0:
            at = (at + _U(1)) & mask
        edges[at] = (_U(parents[i]) << _U(32)) | _U(tokens[i])
        out[at] = children[i]


@kernel
def _fewest(paths, begins, scanned, depths, parents, children, out):
    """Write how many more tokens the shortest path from each node on has."""
    for node in range(len(begins)):
        out[node] = paths.shape[1]
        for row in range(begins[node], scanned[node]):
            length = depths[node]
            while length < paths.shape[1] and paths[row, length] != 0:
                length += 1
            out[node] = min(out[node], length - depths[node])
    # Children come after their parents
    for edge in range(len(parents) - 1, -1, -1):
        out[parents[edge]] = min(out[parents[edge]], out[children[edge]] + 1)


@kernel
def _signatures(paths, out):
    for row in range(len(paths)):
        found = _U(0)
        for depth in range(paths.shape[1]):
            if paths[row, depth] == 0:
                break
            found |= bit_of(paths[row, depth])
        out[row] = found


def trie_of(paths: U32Array, tokens: int) -> tuple[Trie, I64Array]:
    """The trie of these paths, over tokens from 1 to `tokens`, and the order in which it has them."""
    order = np.lexsort(paths.T[::-1])
    paths = np.ascontiguousarray(paths[order])
    (begins, scanned, inner, depths), (parents, of_edge, children) = _nodes(paths, _LEAF, _LEAST)
    # The root's edges, nearly all where sets have a rare token each, are in `roots`
    room = 1 << max(4, int(np.ceil(np.log2(2 * np.count_nonzero(parents) + 1))))
    edges, leads = np.zeros(room, np.uint64), np.zeros(room, np.int32)
    _add_edges(parents, of_edge, children, edges, leads)
    roots = np.zeros(tokens + 1, np.int32)
    roots[of_edge[parents == 0]] = children[parents == 0]
    nodes = np.stack([begins, scanned | np.where(inner, np.int64(INNER), 0)], axis=1).astype(np.uint32)
    signatures = np.empty(len(paths), np.uint64)
    _signatures(paths, signatures)
    fewest = np.empty(len(nodes), np.uint8)
    _fewest(paths, begins, scanned, depths, parents, children, fewest)
    return Trie(roots, nodes, edges, leads, signatures, fewest), order


#: Tokens of a set at most by which it is reached, and so the depth of the trie
DEEPEST = 8


@dataclass(frozen=True, slots=True, eq=False)
class TrieIndex:
    """Sets with constraints, in a trie."""

    cells: TokenCells
    trie: Trie  # over the tokens of each set
    sets: Sets  # in the order of the trie

    def __len__(self) -> int:
        return len(self.sets.rows)

    @property
    def arrays(self) -> tuple[tuple[Any, ...], ...]:
        """As `match_in_trie` takes them, which finds the type of a named tuple later."""
        return tuple(self.cells), tuple(self.trie), tuple(self.sets)

    def match(self, messages: MessageTable, attributes: int) -> RowsFound:
        """Rows of the segment whose tags and constraints each message satisfies; `attributes` counts the attributes."""
        ends, first_codes = np.zeros(len(messages.offsets), np.int64), np.zeros(attributes, np.uint32)
        rows, rejected = match_in_trie(messages, *self.arrays, first_codes, ends)
        return RowsFound(Lists(ends, rows), int(rejected))


def trie_index(required: Requirements) -> TrieIndex:
    """The trie of some sets."""
    asked, likely = required.asked, required.likely
    cells, tokens, count = cells_of(required)
    trie, order = trie_of(_paths(tokens, asked.owners[likely.has_token], len(asked)), count)
    return TrieIndex(cells, trie, sets_of(asked, required.tests, likely.chances, order))


def _paths(tokens: U32Array, owners: I64Array, count: int) -> U32Array:
    """The tokens of each set, least likely first, each once, and zeros after them."""
    order = np.lexsort((tokens, owners))
    tokens, owners = tokens[order], owners[order]
    keep = np.ones(len(tokens), np.bool_)
    keep[1:] = (tokens[1:] != tokens[:-1]) | (owners[1:] != owners[:-1])
    tokens, owners = tokens[keep], owners[keep]
    starts = offsets_of(np.bincount(owners, minlength=count))
    place = np.arange(len(tokens)) - starts[owners]
    paths = np.zeros((count, DEEPEST), np.uint32)
    few = place < DEEPEST
    paths[owners[few], place[few]] = tokens[few]
    return paths


_U32 = np.uint32

# Edges that are looked up in one step, at least; few wait then, however many tokens messages have
_EDGES = 1 << 15


@kernel
def _at_root(tokens, ends, signatures, trie):
    """Candidates among the rows of the root, and the children of the root that each message reaches."""
    roots, nodes, _, _, row_signatures, fewest = trie
    count, rows = len(ends) - 1, np.int64(nodes[0, 1] & ~INNER)
    owners, found = np.empty(count * rows, np.int32), np.empty(count * rows, np.uint32)
    used = np.int64(0)
    for message in range(count):
        for row in range(rows):
            owners[used], found[used] = message, row
            used += np.int64(row_signatures[row] & ~signatures[message] == _U(0))
    waiting = np.int64(0)
    of, at, nexts = np.empty(len(tokens), np.int32), np.empty(len(tokens), np.uint32), np.empty(len(tokens), np.int32)
    for message in range(count):
        for place in range(ends[message], ends[message + 1]):
            child, left = roots[tokens[place]], ends[message + 1] - (place + 1)
            of[waiting], at[waiting], nexts[waiting] = message, child, place + 1
            waiting += np.int64((child != 0) & (fewest[child] <= left))
    return owners, found, used, of, at, nexts, waiting


@kernel
def descend(tokens, ends, signatures, trie):
    """Rows at the ends of all paths of each message's tokens, whose signature fits.

    It goes to no node from which all paths are longer than the tokens that the message has left.
    """
    _, nodes, edges, children, row_signatures, fewest = trie
    mask, last_row = _U(len(edges) - 1), len(row_signatures) - 1
    owners, rows, used, of, at, nexts, waiting = _at_root(tokens, ends, signatures, trie)
    begins, stops, inner = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    edge_of, edge_at, edge_next = np.empty(0, np.int32), np.empty(0, np.uint32), np.empty(0, np.int32)
    homes, leads = np.empty(0, np.uint64), np.empty(0, np.int32)
    touched = _U(0)
    while waiting > 0:
        # The last that came are taken first
        first, most = waiting, np.int64(0)
        while first > 0 and most < _EDGES:
            first -= 1
            most += 1 + ends[of[first] + 1] - nexts[first]
        count = waiting - first
        begins, stops, inner = with_room(begins, 0, count), with_room(stops, 0, count), with_room(inner, 0, count)
        for i in range(count):
            node = at[first + i]
            begins[i], stops[i] = nodes[node, 0], nodes[node, 1] & ~INNER
            inner[i] = nodes[node, 1] & INNER != _U32(0)
        scanned = 0
        for i in range(count):
            touched ^= row_signatures[min(begins[i], last_row)]
            scanned += stops[i] - begins[i]
        if used + scanned > len(rows):
            owners, rows = with_room(owners, used, scanned), with_room(rows, used, scanned)
        for i in range(count):
            owner = of[first + i]
            absent = ~signatures[owner]
            for row in range(begins[i], stops[i]):
                owners[used], rows[used] = owner, row
                used += np.int64(row_signatures[row] & absent == _U(0))

        edge_of, edge_at = with_room(edge_of, 0, most), with_room(edge_at, 0, most)
        edge_next, homes, leads = with_room(edge_next, 0, most), with_room(homes, 0, most), with_room(leads, 0, most)
        looked = 0
        for i in range(count):
            if inner[i]:
                owner, node = of[first + i], at[first + i]
                for place in range(nexts[first + i], ends[owner + 1]):
                    edge_of[looked], edge_at[looked], edge_next[looked] = owner, node, place + 1
                    homes[looked] = home_of(node, tokens[place]) & mask
                    looked += 1
        for i in range(looked):
            leads[i] = children[homes[i]]
        waiting = first
        if waiting + looked > len(at):
            of, at = with_room(of, waiting, looked), with_room(at, waiting, looked)
            nexts = with_room(nexts, waiting, looked)
        for i in range(looked):
            child, home = leads[i], homes[i]
            if child == 0:
                continue
            edge = (_U(edge_at[i]) << _U(32)) | _U(tokens[edge_next[i] - 1])
            while child != 0 and edges[home] != edge:
                home = (home + _U(1)) & mask
                child = children[home]
            if child != 0 and fewest[child] <= ends[edge_of[i] + 1] - edge_next[i]:
                of[waiting], at[waiting], nexts[waiting] = edge_of[i], child, edge_next[i]
                waiting += 1
    return owners, rows, used, touched


# Tokens of a value at most: its attribute's, and two for each level
_A_VALUE = 1 + 2 * 64


def most_tokens(cells: TokenCells) -> I64Array:
    """Of each attribute, how many tokens a value of it has at most: the attribute's, and two for each level."""
    return 1 + 2 * np.bitwise_count(cells.levels).astype(np.int64)


@inlined
def most_room(ranks, values):
    """The most tokens of a message with these numbers of ranks and values, before repeated ones are dropped."""
    return ranks + _A_VALUE * values


@inlined
def tokens_of(message, cells, tokens, begin):
    """Write the tokens of a message from `begin` on, ascending and each once; returns their end and their signature.

    The message is as `verified` takes it. There must be room for one token for each rank, and for `most_tokens` of each
    attribute. The CPU and CUDA have this rule.
    """
    attributes, codes, values_begin, values_end, ranks, ranks_begin, ranks_end = message
    first_cells, bits, levels, known, first_tag = cells
    used = begin
    for place in range(ranks_begin, ranks_end):
        token = known[first_tag + ranks[place]]
        tokens[used] = token
        used += np.int64(token != 0)
    for place in range(values_begin, values_end):
        attribute, code = attributes[place], np.int64(codes[place])
        token = known[attribute]
        tokens[used] = token
        used += np.int64(token != 0)
        left, level = levels[attribute], np.int64(0)
        while left != _U(0):
            if left & _U(1):
                # A set's cell is at least as wide as its interval and holds the lower end of that
                cell = code >> (bits[attribute] - level)
                for back in range(1 if level == bits[attribute] else 2):
                    if cell >= back:
                        token = known[first_cells[attribute] + (np.int64(1) << level) + cell - back]
                        tokens[used] = token
                        used += np.int64(token != 0)
            left >>= _U(1)
            level += 1
    sort_values(tokens, begin, used)
    different, signature = begin, _U(0)
    for place in range(begin, used):
        token = tokens[place]
        signature |= bit_of(token)
        tokens[different] = token
        different += np.int64(place + 1 == used or token != tokens[place + 1])
    return different, signature


@kernel
def write_tokens(first, last, messages, cells, tokens, ends, signatures):
    """Write the tokens of messages `first` to `last`: of each ascending and each once, with their signature.

    Those of message `first + i` end at `ends[i + 1]`. Returns `tokens`, or a larger array.
    """
    rank_offsets, ranks, offsets, attributes, codes = messages
    used = np.int64(0)
    for number in range(first, last):
        ranks_begin, ranks_end = rank_offsets[number], rank_offsets[number + 1]
        begin, end = offsets[number], offsets[number + 1]
        more = most_room(ranks_end - ranks_begin, end - begin)
        if used + more > len(tokens):
            tokens = with_room(tokens, used, more)
        message = (attributes, codes, begin, end, ranks, ranks_begin, ranks_end)
        used, signatures[number - first] = tokens_of(message, cells, tokens, used)
        ends[number + 1 - first] = used
    return tokens


# Messages that go down the trie together: fewer at first, and also if they have many candidates
_FEWEST, _MOST, _MANY = 16, 512, 1 << 18


@kernel
def match_in_trie(messages, cells, trie, sets, first_codes, ends):
    """Rows that each message satisfies, and where each message's end; how many candidates were turned away."""
    tokens, out = np.empty(0, np.uint32), np.empty(16 * len(ends), np.uint32)
    at_most = min(_MOST, len(ends) - 1)
    token_ends, signatures = np.zeros(at_most + 1, np.int64), np.empty(at_most, np.uint64)
    first, at_once, total, candidates = 0, _FEWEST, 0, 0
    while first < len(ends) - 1:
        last = min(first + at_once, len(ends) - 1)
        tokens = write_tokens(first, last, messages, cells, tokens, token_ends, signatures)
        owners, found, used, _ = descend(tokens, token_ends[: last - first + 1], signatures, trie)
        out = with_room(out, total, used)
        total, _ = keep_verified(first, last, (owners, found, used), messages, sets, first_codes, (out, total, ends))
        candidates += used
        first, at_once = last, min(2 * at_once, _MOST) if used < _MANY else max(at_once // 2, 1)
    return out[:total], candidates - total
