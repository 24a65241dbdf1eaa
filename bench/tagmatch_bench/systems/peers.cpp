// What a good C++ programmer writes in an afternoon, for ctypes: Arrow's strings in, keys out, on one thread.
//
// rarest_*    a hash table of tags; sets as sorted ranks, under the rarest tag of each; a query stamps its ranks in an
//             array, by which each set under one of its tags is tested: one query after the other, or in blocks, whose
//             cache misses overlap by prefetching
// tt_join     J. Yang, W. Zhang, S. Yang, Y. Zhang, X. Lin, "TT-Join: Efficient Set Containment Join", ICDE 2017
// limit_join  LIMIT+ of P. Bouros, N. Mamoulis, S. Ge, M. Terrovitis, "Set Containment Join Revisited", KAIS 49, 2016
// grid_*      a uniform grid of circles on the plane
//
// The joins are written anew from the papers. Sets are contained in queries; ranks are numbers of tags, the rarest first.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

using std::string_view, std::vector;
using u8 = uint8_t;
using u32 = uint32_t;
using u64 = uint64_t;

static const u32 NONE = ~0u;
static const int64_t PREFIX = 4;  // tags of a set that are in the tree of TT-Join

// -- what comes and what goes ----------------------------------------------------------------------------------------

struct ArrowArray {  // Arrow's C data interface
  int64_t length, null_count, offset, n_buffers, n_children;
  const void **buffers;
  ArrowArray **children, *dictionary;
  void (*release)(ArrowArray *);
  void *private_data;
  template <class T> const T *values(int buffer = 1) const { return static_cast<const T *>(buffers[buffer]) + offset; }
};

struct Given {  // by the caller, to be released
  ArrowArray *array;
  explicit Given(ArrowArray *array) : array(array) {}
  ~Given() { array->release(array); }
  const ArrowArray *operator->() const { return array; }
};

struct Strings {
  const int32_t *offsets;
  const char *data;
  explicit Strings(const ArrowArray *array) : offsets(array->values<int32_t>()), data(static_cast<const char *>(array->buffers[2])) {}
  string_view operator[](int64_t i) const { return {data + offsets[i], size_t(offsets[i + 1] - offsets[i])}; }
};

struct Sets {  // lists of ranks, each ascending
  int64_t count;
  const int32_t *offsets;
  const u32 *ranks;
  explicit Sets(const Given &lists)
      : count(lists->length), offsets(lists->values<int32_t>()), ranks(lists->children[0]->values<u32>()) {}
  const u32 *begin(int64_t i) const { return ranks + offsets[i]; }
  const u32 *end(int64_t i) const { return ranks + offsets[i + 1]; }
};

// The largest memory that was given back, where the next answer is written
static void *spare = nullptr;
static int64_t spare_bytes = 0;

template <class T> struct Answers {  // lists of numbers, whose memory comes back when Arrow releases them
  T *data = nullptr;
  int64_t size = 0, room = 0;
  vector<int32_t> ends;
  const void *buffers[2], *values[2];
  ArrowArray child, *children[1];

  explicit Answers(int64_t count) : ends(count + 1) {
    std::swap(*reinterpret_cast<void **>(&data), spare);
    std::swap(room, spare_bytes);
    room /= sizeof(T);
    reserve(1);  // is never null
  }
  void reserve(int64_t more) {
    if (size + more <= room) return;
    room = std::max(2 * room, size + more + 4096);
    data = static_cast<T *>(realloc(data, room * sizeof(T)));
    if (!data) throw std::bad_alloc();
  }
  void add(T value) {
    reserve(1);
    data[size++] = value;
  }
  void end(int64_t list) { ends[list + 1] = int32_t(size); }

  void give(ArrowArray *out) {
    buffers[0] = values[0] = nullptr, buffers[1] = ends.data(), values[1] = data, children[0] = &child;
    child = {size, 0, 0, 2, 0, values, nullptr, nullptr, [](ArrowArray *array) { array->release = nullptr; }, nullptr};
    *out = {int64_t(ends.size()) - 1, 0, 0, 2, 1, buffers, children, nullptr, [](ArrowArray *array) {
      Answers *own = static_cast<Answers *>(array->private_data);
      void *memory = own->data;
      int64_t bytes = own->room * int64_t(sizeof(T));
      if (bytes > spare_bytes) std::swap(memory, spare), spare_bytes = bytes;
      free(memory);
      delete own;
      array->release = nullptr;
    }, this};
  }
};
using Keys = Answers<u64>;

// -- a hash map of rarest tags ---------------------------------------------------------------------------------------

static u64 folded(u64 a, u64 b) {
  __uint128_t product = __uint128_t(a) * b;
  return u64(product) ^ u64(product >> 64);
}

static u64 read(const char *at, size_t bytes) {
  u64 word = 0;
  memcpy(&word, at, bytes);
  return word;
}

static u64 hash_of(string_view text) {
  const char *at = text.data();
  size_t left = text.size();
  u64 hash = 0x9E3779B97F4A7C15ull ^ left, first = 0, last = 0;
  for (; left > 16; at += 16, left -= 16) hash = folded(read(at, 8) ^ hash, read(at + 8, 8) ^ 0xE7037ED1A0B428DBull);
  if (left >= 8) first = read(at, 8), last = read(at + left - 8, 8);
  else if (left >= 4) first = read(at, 4), last = read(at + left - 4, 4);
  else if (left) first = u64(u8(at[0])) << 16 | u64(u8(at[left / 2])) << 8 | u8(at[left - 1]);
  return folded(first ^ hash, last ^ 0xA0761D6478BD642Full);
}

struct Tags {  // numbers of tags, by open addressing, at most half full; strings are kept elsewhere
  struct Slot {
    u64 hash = 0;
    const char *data = nullptr;
    u32 length = 0, number = NONE;
  };
  vector<Slot> slots = vector<Slot>(16);
  u64 mask = 15, used = 0;

  const Slot &look_up(u64 hash, string_view tag) const {
    u64 at = hash & mask;
    for (; slots[at].data; at = (at + 1) & mask) {
      const Slot &slot = slots[at];
      if (slot.hash == hash && slot.length == tag.size() && !memcmp(slot.data, tag.data(), tag.size())) break;
    }
    return slots[at];
  }
  u32 find(u64 hash, string_view tag) const { return look_up(hash, tag).number; }
  u32 find(string_view tag) const { return find(hash_of(tag), tag); }
  u32 add(string_view tag, u32 number) {
    if (2 * ++used > slots.size()) grow();
    u64 hash = hash_of(tag);
    Slot &slot = const_cast<Slot &>(look_up(hash, tag));
    if (slot.data) used--;
    else slot = {hash, tag.data(), u32(tag.size()), number};
    return slot.number;
  }
  void grow() {
    vector<Slot> before(2 * slots.size());
    before.swap(slots);
    mask = slots.size() - 1;
    for (const Slot &slot : before) {
      if (!slot.data) continue;
      u64 at = slot.hash & mask;
      while (slots[at].data) at = (at + 1) & mask;
      slots[at] = slot;
    }
  }
};

static u64 bit_of(u32 rank) { return 1ull << ((rank * 0x9E3779B1u) >> 26); }

struct Entry {  // a set, without its rarest tag
  u64 signature, key;
  u32 first, length;
};

struct Index {
  std::string heap;
  Tags tags;             // the rank of each
  vector<u32> firsts;    // entries of the sets whose rarest tag has rank `r`: `firsts[r]` to `firsts[r + 1]`
  vector<Entry> entries;
  vector<u32> ranks;
  vector<u64> always;    // keys of empty sets
  vector<u32> stamps;    // of each rank: the last query that had it
  u32 query = 0;

  u32 next_query() {
    if (++query == 0) std::fill(stamps.begin(), stamps.end(), 0), query = 1;
    return query;
  }
  bool has_all(const Entry &entry) const {
    const u32 *rank = &ranks[entry.first], *end = rank + entry.length;
    while (rank < end && stamps[*rank] == query) rank++;
    return rank == end;
  }
};

extern "C" Index *rarest_build(ArrowArray *given, ArrowArray *given_keys) {
  Given sets(given), key_column(given_keys);
  Index *index = new Index;
  Strings strings(sets->children[0]);
  const u64 *keys = key_column->values<u64>();
  const int32_t *lists = sets->values<int32_t>();
  int64_t count = sets->length, first = lists[0], total = lists[count] - first;
  vector<u32> numbers(total), frequencies;
  vector<string_view> tags;
  Tags seen;
  size_t bytes = 0;
  for (int64_t i = 0; i < total; i++) {
    string_view tag = strings[first + i];
    u32 number = seen.add(tag, u32(tags.size()));
    if (number == tags.size()) tags.push_back(tag), frequencies.push_back(0), bytes += tag.size();
    numbers[i] = number;
    frequencies[number]++;
  }
  vector<u32> order(tags.size()), rank(tags.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](u32 a, u32 b) { return frequencies[a] < frequencies[b]; });
  for (u32 r = 0; r < order.size(); r++) rank[order[r]] = r;
  index->heap.reserve(bytes + 1);  // where strings stay, even empty ones
  for (u32 number = 0; number < tags.size(); number++) {
    size_t at = index->heap.size();
    index->heap.append(tags[number]);
    index->tags.add({index->heap.data() + at, tags[number].size()}, rank[number]);
  }
  vector<u32> lengths(count);
  index->firsts.assign(tags.size() + 1, 0);
  for (int64_t i = 0; i < count; i++) {
    u32 *begin = numbers.data() + lists[i] - first, *end = numbers.data() + lists[i + 1] - first;
    for (u32 *each = begin; each < end; each++) *each = rank[*each];
    std::sort(begin, end);
    lengths[i] = u32(std::unique(begin, end) - begin);
    if (lengths[i]) index->firsts[*begin + 1]++;
    else index->always.push_back(keys[i]);
  }
  std::partial_sum(index->firsts.begin(), index->firsts.end(), index->firsts.begin());
  vector<u32> places(index->firsts.begin(), index->firsts.end()), rows(count - index->always.size());
  for (int64_t i = 0; i < count; i++)
    if (lengths[i]) rows[places[numbers[lists[i] - first]]++] = u32(i);
  index->entries.reserve(rows.size());
  index->ranks.reserve(total + 1);
  for (u32 row : rows) {
    const u32 *begin = &numbers[lists[row] - first];
    Entry entry{0, keys[row], u32(index->ranks.size()), lengths[row] - 1};
    for (u32 i = 1; i < lengths[row]; i++) entry.signature |= bit_of(begin[i]), index->ranks.push_back(begin[i]);
    index->entries.push_back(entry);
  }
  index->stamps.assign(tags.size(), 0);
  return index;
}

extern "C" void rarest_free(Index *index) { delete index; }

extern "C" int64_t rarest_bytes(const Index *index) {
  return int64_t(index->heap.size() + index->tags.slots.size() * sizeof(Tags::Slot) + index->firsts.size() * 4 +
                 index->entries.size() * sizeof(Entry) + index->ranks.size() * 4 + index->stamps.size() * 4);
}

// Stamps a query's ranks, which become those that are known, each once; returns their signature
static u64 stamp(Index &index, vector<u32> &ranks) {
  u64 signature = 0;
  u32 query = index.next_query();
  size_t kept = 0;
  for (u32 rank : ranks) {
    if (rank == NONE || index.stamps[rank] == query) continue;
    index.stamps[rank] = query;
    signature |= bit_of(rank);
    ranks[kept++] = rank;
  }
  ranks.resize(kept);
  return signature;
}

static void match_ranks(Index &index, vector<u32> &ranks, Keys &keys) {
  u64 signature = stamp(index, ranks);
  for (u64 key : index.always) keys.add(key);
  for (u32 rank : ranks)
    for (u32 i = index.firsts[rank]; i < index.firsts[rank + 1]; i++) {
      const Entry &entry = index.entries[i];
      if (!(entry.signature & ~signature) && index.has_all(entry)) keys.add(entry.key);
    }
}

static const int64_t BLOCK = 256;

// Ranks of strings `first` to `last`, whose slots come from memory together
static void look_up(const Tags &tags, const Strings &strings, int64_t first, int64_t last, u32 *ranks) {
  static vector<u64> hashes;
  hashes.resize(last - first);
  for (int64_t i = first; i < last; i++) {
    hashes[i - first] = hash_of(strings[i]);
    __builtin_prefetch(&tags.slots[hashes[i - first] & tags.mask]);
  }
  for (int64_t i = first; i < last; i++)
    if (const char *data = tags.slots[hashes[i - first] & tags.mask].data) __builtin_prefetch(data);
  for (int64_t i = first; i < last; i++) ranks[i - first] = tags.find(hashes[i - first], strings[i]);
}

// Queries `first` to `last`, of whose ranks are those from `ranks` on
static void match_block(Index &index, const int32_t *lists, int64_t first, int64_t last, const u32 *ranks, Keys &keys) {
  static vector<u32> own, candidates;
  int32_t begin = lists[first], total = lists[last] - begin;
  for (int32_t i = 0; i < total; i++) if (ranks[i] != NONE) __builtin_prefetch(&index.firsts[ranks[i]]);
  for (int32_t i = 0; i < total; i++)
    if (ranks[i] != NONE && index.firsts[ranks[i]] < index.firsts[ranks[i] + 1]) __builtin_prefetch(&index.entries[index.firsts[ranks[i]]]);
  candidates.clear();
  vector<size_t> last_of;
  for (int64_t query = first; query < last; query++) {
    own.assign(ranks + lists[query] - begin, ranks + lists[query + 1] - begin);
    u64 signature = stamp(index, own);
    for (u32 rank : own)
      for (u32 i = index.firsts[rank]; i < index.firsts[rank + 1]; i++)
        if (!(index.entries[i].signature & ~signature)) {
          candidates.push_back(i);
          __builtin_prefetch(&index.ranks[index.entries[i].first]);
        }
    last_of.push_back(candidates.size());
  }
  size_t at = 0;
  for (int64_t query = first; query < last; query++) {
    for (u64 key : index.always) keys.add(key);
    if (size_t end = last_of[query - first]; at < end) {
      u32 now = index.next_query();
      for (int32_t i = lists[query] - begin; i < lists[query + 1] - begin; i++) if (ranks[i] != NONE) index.stamps[ranks[i]] = now;
      for (; at < end; at++) {
        const Entry &entry = index.entries[candidates[at]];
        if (index.has_all(entry)) keys.add(entry.key);
      }
    }
    keys.end(query);
  }
}

extern "C" void rarest_match(Index *index, int in_blocks, ArrowArray *given, ArrowArray *out) {
  Given queries(given);
  const ArrowArray *column = queries->children[0];
  const int32_t *lists = queries->values<int32_t>(), *codes = column->dictionary ? column->values<int32_t>() : nullptr;
  Strings strings(codes ? column->dictionary : column);
  Keys &keys = *new Keys(queries->length);
  vector<u32> ranks, known(codes ? column->dictionary->length : 0);  // of a dictionary's strings
  int64_t step = in_blocks ? BLOCK : 1, size = int64_t(known.size());
  for (int64_t first = 0; first < size; first += step) {
    if (in_blocks) look_up(index->tags, strings, first, std::min(first + step, size), &known[first]);
    else known[first] = index->tags.find(strings[first]);
  }
  for (int64_t first = 0; first < queries->length; first += step) {
    int64_t last = std::min(first + step, queries->length);
    int32_t begin = lists[first], end = lists[last];
    ranks.resize(end - begin);
    if (in_blocks && !codes) look_up(index->tags, strings, begin, end, ranks.data());
    else for (int32_t i = begin; i < end; i++) ranks[i - begin] = codes ? known[codes[i]] : index->tags.find(strings[i]);
    if (in_blocks) match_block(*index, lists, first, last, ranks.data(), keys);
    else match_ranks(*index, ranks, keys), keys.end(first);
  }
  keys.give(out);
}

// What Python has of its own, for one query: a list of `str` in, a list of `int` out
extern "C" {
const char *PyUnicode_AsUTF8AndSize(void *text, ssize_t *size);
ssize_t PyList_Size(void *list);
void *PyList_GetItem(void *list, ssize_t place);
void *PyList_New(ssize_t size);
int PyList_SetItem(void *list, ssize_t place, void *value);
void *PyLong_FromUnsignedLongLong(unsigned long long value);
}

extern "C" void *rarest_match_one(Index *index, void *query) {
  static vector<u32> ranks;
  static Keys keys(0);
  ranks.clear();
  for (ssize_t i = 0, count = PyList_Size(query); i < count; i++) {
    ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(PyList_GetItem(query, i), &size);
    if (!data) return nullptr;
    ranks.push_back(index->tags.find({data, size_t(size)}));
  }
  keys.size = 0;
  match_ranks(*index, ranks, keys);
  void *found = PyList_New(keys.size);
  for (int64_t i = 0; i < keys.size; i++) PyList_SetItem(found, i, PyLong_FromUnsignedLongLong(keys.data[i]));
  return found;
}

// -- joins -----------------------------------------------------------------------------------------------------------

static vector<u32> sorted_rows(int64_t count, auto before) {
  vector<u32> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), before);
  return order;
}

// Sets go into a tree by their four rarest tags, and queries, by their most frequent tags first, into a prefix tree, which
// is only walked: at each of its nodes, those sets are found whose rarest tag is the node's, as all others are above it
extern "C" void tt_join(int64_t universe, ArrowArray *stored, ArrowArray *given_keys, ArrowArray *asked, ArrowArray *out) {
  struct Node {
    u32 rank, child = NONE, sibling = NONE, row = NONE;
  };
  Given sets(stored), key_column(given_keys), given(asked);
  Sets r(sets), s(given);
  const u64 *keys = key_column->values<u64>();
  auto prefix = [&](u32 row) { return std::min(PREFIX, r.end(row) - r.begin(row)); };
  vector<u32> order = sorted_rows(r.count, [&](u32 a, u32 b) {
    return std::lexicographical_compare(r.begin(a), r.begin(a) + prefix(a), r.begin(b), r.begin(b) + prefix(b));
  });
  vector<Node> tree;
  vector<u32> roots(universe, NONE), next(r.count, NONE), path, found;
  for (u32 row : order) {
    const u32 *ranks = r.begin(row);
    size_t length = prefix(row), same = 0;
    if (!length) {
      found.push_back(row);  // is in each query
      continue;
    }
    while (same < path.size() && same < length && tree[path[same]].rank == ranks[same]) same++;
    u32 before = same < path.size() ? path[same] : NONE;  // the node's last child so far
    path.resize(same);
    for (size_t depth = same; depth < length; depth++) {
      u32 node = u32(tree.size());
      tree.push_back(Node{ranks[depth]});
      if (!depth) roots[ranks[0]] = node;
      else if (depth == same && before != NONE) tree[before].sibling = node;
      else tree[path.back()].child = node;
      path.push_back(node);
    }
    next[row] = tree[path.back()].row;
    tree[path.back()].row = row;
  }
  vector<u32> queries = sorted_rows(s.count, [&](u32 a, u32 b) {
    std::reverse_iterator<const u32 *> x(s.end(a)), x_end(s.begin(a)), y(s.end(b)), y_end(s.begin(b));
    return std::lexicographical_compare(x, x_end, y, y_end, std::greater<u32>());
  });
  vector<u8> has(universe, 0);
  vector<u32> above, waiting;         // ranks on the way from the root
  vector<size_t> found_before;        // and how many sets had been found above each
  vector<int64_t> begins(s.count);
  vector<int32_t> lengths(s.count);
  vector<u64> written;
  for (u32 query : queries) {
    const u32 *first = s.begin(query), *last = s.end(query);
    size_t length = last - first, same = 0;
    while (same < above.size() && same < length && above[same] == last[-1 - int64_t(same)]) same++;
    for (; above.size() > same; above.pop_back(), found_before.pop_back()) {
      has[above.back()] = 0;
      found.resize(found_before.back());
    }
    for (const u32 *rank = last - same; rank-- > first;) {
      above.push_back(*rank);
      found_before.push_back(found.size());
      has[*rank] = 1;
      if (roots[*rank] == NONE) continue;
      waiting.assign(1, roots[*rank]);
      while (!waiting.empty()) {
        Node node = tree[waiting.back()];
        waiting.pop_back();
        if (node.sibling != NONE) waiting.push_back(node.sibling);
        if (!has[node.rank]) continue;
        if (node.child != NONE) waiting.push_back(node.child);
        for (u32 row = node.row; row != NONE; row = next[row]) {
          const u32 *rest = r.begin(row) + prefix(row);
          while (rest < r.end(row) && has[*rest]) rest++;
          if (rest == r.end(row)) found.push_back(row);
        }
      }
    }
    begins[query] = int64_t(written.size());
    lengths[query] = int32_t(found.size());
    for (u32 row : found) written.push_back(keys[row]);
  }
  Keys &answers = *new Keys(s.count);
  answers.reserve(int64_t(written.size()));
  for (int64_t query = 0; query < s.count; query++) {
    std::copy_n(written.begin() + begins[query], lengths[query], answers.data + answers.size);
    answers.size += lengths[query];
    answers.end(query);
  }
  answers.give(out);
}

// Sets go into a prefix tree, the rarest tag first, which is only walked: lists of the queries that have each tag are
// intersected on the way down, as long as that costs less than it is to verify those that are left, by merging
extern "C" void limit_join(int64_t universe, ArrowArray *stored, ArrowArray *given_keys, ArrowArray *asked, ArrowArray *out) {
  Given sets(stored), key_column(given_keys), given(asked);
  Sets r(sets), s(given);
  const u64 *keys = key_column->values<u64>();
  vector<vector<u32>> lists(universe);
  for (int64_t query = 0; query < s.count; query++)
    for (const u32 *rank = s.begin(query); rank < s.end(query); rank++) lists[*rank].push_back(u32(query));
  double length = double(s.offsets[s.count] - s.offsets[0]) / double(std::max<int64_t>(s.count, 1));
  vector<u32> order = sorted_rows(r.count, [&](u32 a, u32 b) {
    return std::lexicographical_compare(r.begin(a), r.end(a), r.begin(b), r.end(b));
  });
  vector<u32> all(s.count), path;
  std::iota(all.begin(), all.end(), 0u);
  vector<vector<u32>> left{all};  // queries that have the tags of `path`, by depth
  vector<std::pair<u32, u64>> found;
  for (u32 row : order) {
    const u32 *ranks = r.begin(row);
    size_t size = r.end(row) - ranks, depth = 0;
    while (depth < path.size() && depth < size && path[depth] == ranks[depth]) depth++;
    path.resize(depth);
    left.resize(depth + 1);
    for (; depth < size; depth++) {
      const vector<u32> &some = left[depth], &others = lists[ranks[depth]];
      if (depth && double(some.size()) * length < double(some.size() + others.size())) break;
      path.push_back(ranks[depth]);
      vector<u32> both;
      if (!depth) both = others;
      else std::set_intersection(some.begin(), some.end(), others.begin(), others.end(), std::back_inserter(both));
      left.push_back(std::move(both));
    }
    for (u32 query : left[depth])
      if (std::includes(s.begin(query), s.end(query), ranks + depth, r.end(row))) found.push_back({query, keys[row]});
  }
  Keys &answers = *new Keys(s.count);
  answers.reserve(answers.size = int64_t(found.size()));
  for (auto &[query, key] : found) answers.ends[query + 1]++;
  std::partial_sum(answers.ends.begin(), answers.ends.end(), answers.ends.begin());
  vector<int32_t> places = answers.ends;
  for (auto &[query, key] : found) answers.data[places[query]++] = key;
  answers.give(out);
}

// -- a grid of circles -----------------------------------------------------------------------------------------------

struct Circle {
  double x, y, square;
  u32 number;
};

struct Grid {
  int side = 1;  // cells in a row
  double x = 0, y = 0, per_unit = 0;
  vector<u32> firsts;  // circles of each cell
  vector<Circle> circles;
  int cell(double value, double origin) const { return int(std::clamp((value - origin) * per_unit, 0.0, side - 1.0)); }
};

extern "C" Grid *grid_build(ArrowArray *xs, ArrowArray *ys, ArrowArray *radii) {
  Given x_column(xs), y_column(ys), radius_column(radii);
  int64_t count = x_column->length;
  const double *x = x_column->values<double>(), *y = y_column->values<double>(), *radius = radius_column->values<double>();
  Grid *grid = new Grid;
  double x_end = 0, y_end = 0, sum = 0;
  auto reach = [&](int64_t i) { return radius[i] + (std::abs(x[i]) + std::abs(y[i]) + radius[i]) * 1e-12; };  // rounded up
  for (int64_t i = 0; i < count; i++) {
    grid->x = i ? std::min(grid->x, x[i] - reach(i)) : x[i] - reach(i);
    grid->y = i ? std::min(grid->y, y[i] - reach(i)) : y[i] - reach(i);
    x_end = i ? std::max(x_end, x[i] + reach(i)) : x[i] + reach(i);
    y_end = i ? std::max(y_end, y[i] + reach(i)) : y[i] + reach(i);
    sum += radius[i];
  }
  // Cells are as wide as a radius, but there are not many more of them than circles
  double extent = std::max(x_end - grid->x, y_end - grid->y), most = 1 + 2 * std::sqrt(double(count));
  grid->side = int(sum > 0 ? std::clamp(extent * double(count) / sum, 1.0, most) : most);
  grid->per_unit = extent > 0 ? grid->side / extent : 0;
  vector<u32> &firsts = grid->firsts;
  firsts.assign(size_t(grid->side) * grid->side + 1, 0);
  double width = extent / grid->side, slack = extent * 1e-9;
  auto off = [&](double value, double origin, int cell) {  // from a cell, along one axis
    return std::max({origin + cell * width - value, 0.0, value - (origin + (cell + 1) * width)});
  };
  auto each_cell = [&](auto work) {
    for (int64_t i = 0; i < count; i++) {
      int left = grid->cell(x[i] - reach(i), grid->x), right = grid->cell(x[i] + reach(i), grid->x);
      int low = grid->cell(y[i] - reach(i), grid->y), high = grid->cell(y[i] + reach(i), grid->y);
      for (int a = left; a <= right; a++)
        for (int b = low; b <= high; b++)
          if (std::hypot(off(x[i], grid->x, a), off(y[i], grid->y, b)) <= reach(i) + slack) work(i, size_t(a) * grid->side + b);
    }
  };
  each_cell([&](int64_t, size_t cell) { firsts[cell + 1]++; });
  std::partial_sum(firsts.begin(), firsts.end(), firsts.begin());
  vector<u32> places(firsts.begin(), firsts.end());
  grid->circles.resize(firsts.back());
  each_cell([&](int64_t i, size_t cell) { grid->circles[places[cell]++] = {x[i], y[i], radius[i] * radius[i], u32(i)}; });
  return grid;
}

extern "C" void grid_free(Grid *grid) { delete grid; }

extern "C" int64_t grid_bytes(const Grid *grid) {
  return int64_t(grid->firsts.size() * 4 + grid->circles.size() * sizeof(Circle));
}

extern "C" void grid_stab(const Grid *grid, ArrowArray *xs, ArrowArray *ys, ArrowArray *out) {
  Given x_column(xs), y_column(ys);
  const double *x = x_column->values<double>(), *y = y_column->values<double>();
  Answers<u32> &found = *new Answers<u32>(x_column->length);
  for (int64_t i = 0; i < x_column->length; i++) {
    size_t cell = size_t(grid->cell(x[i], grid->x)) * grid->side + grid->cell(y[i], grid->y);
    found.reserve(grid->firsts[cell + 1] - grid->firsts[cell]);
    for (u32 j = grid->firsts[cell]; j < grid->firsts[cell + 1]; j++) {  // without branches
      const Circle &circle = grid->circles[j];
      double across = x[i] - circle.x, up = y[i] - circle.y;
      found.data[found.size] = circle.number;
      found.size += across * across + up * up <= circle.square;
    }
    found.end(i);
  }
  found.give(out);
}
