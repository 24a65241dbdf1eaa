"""Which devices match, and how many queries a packet must have for a device to be sooner than the CPU."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from tagmatch.model.arrays import Lists, TagLists
from tagmatch.model.arrow import from_strings
from tagmatch.model.errors import DeviceError, DeviceMemoryError, DeviceWarning
from tagmatch.model.input.messages import rows_of_messages
from tagmatch.model.kernels.tag_table import constraints_among
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges
from tagmatch.model.tables import Deletions, Segment, Snapshot, TagsetTable
from tagmatch.pipeline.areas.chunks import Places
from tagmatch.pipeline.areas.finder import AreaFinder
from tagmatch.pipeline.areas.index import AreaIndex, Searchers, areas_of
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.combined import Beside, CpuUnion, Hybrid, RoundRobin, Split, Union
from tagmatch.pipeline.cuda import devices
from tagmatch.pipeline.filters.finder import ConstraintFinder
from tagmatch.pipeline.filters.index import FilterIndex, filters_of, filters_of_rows, likely_message
from tagmatch.pipeline.filters.parts import parts_of_sets
from tagmatch.pipeline.segment import CpuMatcher, DeviceMatcher, Finder, Matcher, SegmentMatcher, tag_finder

# What is tried at most; a packet of more queries goes to the device
_MOST_QUERIES = 1 << 12
_ROUNDS = 2
# Different messages among them, if sets have constraints: making these is no work of columns
_MESSAGES = 1 << 8


def break_even(device: Matcher, cpu: Matcher, segment: Segment) -> int:
    """Measure with stored sets as queries, or messages that they ask for: the first power of two for the device."""
    has_constraints = len(segment) > 0 and constraints_among(segment.vocabulary.tags).any()
    queries = _messages(segment) if has_constraints else _stored_sets(segment)

    def ask(matcher: Matcher, count: int) -> None:
        matcher.preprocess(queries, 0, count).subset_match().key_lookup()

    return _first_for(lambda count: ask(device, count), lambda count: ask(cpu, count), len(queries))


def break_even_of_areas(device: Searchers, index: AreaIndex) -> int:
    """As `break_even`, of areas: with messages in stored areas, or near clients, that have the contents of these."""
    fixed = len(index.fixed_rows) > 0
    assert fixed or index.followers is not None
    some = index.fixed.some if index.followers is None or fixed else index.followers.cells.some
    places, contents = some(_MOST_QUERIES)

    def ask(searchers: Searchers, count: int) -> None:
        asked = Places(places.lon[:count], places.lat[:count]), Lists(np.arange(count + 1), contents[:count])
        if fixed:
            searchers.areas.find(*asked)
        if searchers.clients is not None:
            searchers.clients.find(*asked)

    return _first_for(lambda count: ask(device, count), lambda count: ask(index.searchers, count), len(contents))


def _first_for(device: Callable[[int], None], cpu: Callable[[int], None], most: int) -> int:
    """The first power of two for which a device is sooner."""
    count = 1
    while count < most and _seconds(cpu, count) < _seconds(device, count):
        count *= 2
    return count


def _stored_sets(segment: Segment) -> TagLists:
    """Stored sets from all over the table, each as often as it takes to be enough."""
    rows = np.linspace(0, max(0, len(segment) - 1), _MOST_QUERIES).astype(np.uint64)
    return segment.sets(rows if len(segment) else rows[:0])


def _messages(segment: Segment) -> TagLists:
    """Messages for sets from all over the table."""
    some = segment.sets(np.linspace(0, len(segment) - 1, _MESSAGES).astype(np.uint64))
    tags = from_strings(some.tags).to_pylist()
    messages = [likely_message(tags[begin:end]) for begin, end in pairwise(some.offsets.tolist())]
    return rows_of_messages(messages * (_MOST_QUERIES // _MESSAGES))


def _seconds(ask: Callable[[int], None], count: int) -> float:
    """What a packet takes at best, through all stages."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        ask(count)
        best = min(best, time.perf_counter() - begin)
    return best


class Part(NamedTuple):
    """A segment, its matcher, and its sets that have constraints, and areas."""

    segment: Segment
    matcher: SegmentMatcher
    filters: FilterIndex | None
    areas: AreaIndex | None


def matcher_of(parts: Sequence[Part]) -> Matcher:
    """What answers queries about all of some segments."""
    matchers = [part.matcher for part in parts]
    if len(matchers) == 1:
        return matchers[0]
    on_cpu = [matcher for matcher in matchers if isinstance(matcher, CpuMatcher)]
    return CpuUnion(on_cpu) if len(on_cpu) == len(matchers) else Union(matchers)


def parts_for(
    snapshot: Snapshot, options: MatchOptions, earlier: Sequence[Part] = (), clients: Clients | None = None
) -> list[Part]:
    """What answers queries about each segment of a snapshot."""
    if clients is None:
        clients = Clients(has_strings=snapshot.key_type == "string")
    return [_of_segment(segment, options, clients, earlier) for segment in snapshot.segments]


def _of_segment(segment: Segment, options: MatchOptions, clients: Clients, earlier: Sequence[Part]) -> Part:
    known = _known(segment, earlier)
    if known is not None:
        return known
    filters = filters_of(segment, [part.filters for part in earlier])
    areas = areas_of(segment, clients, plane=options.plane, before=[part.areas for part in earlier])
    return Part(segment, _matcher_of(segment, filters, areas, options, earlier), filters, areas)


def _known(segment: Segment, earlier: Sequence[Part]) -> Part | None:
    """What answered about the same tables before, perhaps with other rows deleted."""
    for part in earlier:
        if part.segment.tagsets is segment.tagsets:
            if part.segment.deletions is segment.deletions:
                return part
            # None may have become fewer: keys that had expired are there again where the clock was set back
            deletions = segment.deletions or Deletions.of(np.zeros(0, np.uint32), len(segment))
            return part._replace(segment=segment, matcher=part.matcher.without(deletions))
    return None


def _matcher_of(
    segment: Segment,
    filters: FilterIndex | None,
    areas: AreaIndex | None,
    options: MatchOptions,
    earlier: Sequence[Part],
) -> SegmentMatcher:
    parts = parts_of_sets(segment)
    device, notes = _device_of(segment, filters, options, earlier)
    if device is None:
        others: list[Finder] = [] if areas is None else [AreaFinder(areas)]
        others += [] if parts is None else [parts]
        return CpuMatcher(segment, [*_finders(segment, filters, options, others), *others], notes=notes)
    if areas is None and parts is None:
        return device
    finder = None if areas is None else _area_finder(areas, device, options, earlier)
    return Beside(segment, device, finder, parts)


def _finders(
    segment: Segment, filters: FilterIndex | None, options: MatchOptions, others: Sequence[Finder] = ()
) -> list[Finder]:
    """The CPU's finders of sets that are not among those of other finders."""
    found: list[Finder] = [] if filters is None else [ConstraintFinder(filters)]
    if sum(map(len, [*found, *others])) < len(segment) or not (found or others):
        found.insert(0, tag_finder(segment, options))
    return found


def _device_of(
    segment: Segment, filters: FilterIndex | None, options: MatchOptions, earlier: Sequence[Part]
) -> tuple[Hybrid | None, tuple[str, ...]]:
    """The matcher of CUDA devices, if some match; else notes that say why the CPU does."""
    if options.device == "cpu":
        return None, ()
    try:
        device = _on_cuda(segment, filters, options, _chosen(options))
        cpu = cache(lambda: CpuMatcher(segment, _finders(segment, filters, options)))
        matchers = (part.matcher.others if isinstance(part.matcher, Beside) else part.matcher for part in earlier)
        known = ((len(each), each.fewest_queries) for each in matchers if isinstance(each, Hybrid))
        fewest = _fewest(options, known, len(segment), lambda: break_even(device, cpu(), segment))
        return Hybrid(device, cpu, fewest), ()
    except DeviceMemoryError as error:
        warnings.warn(f"{error}; the CPU matches", DeviceWarning, stacklevel=4)
        return None, (str(error),)
    except DeviceError as error:
        if options.device == "cuda":
            raise
        return None, (str(error),)


def _area_finder(areas: AreaIndex, others: Hybrid, options: MatchOptions, earlier: Sequence[Part]) -> AreaFinder:
    """What finds areas: the CPU, and with it the first of the devices that match the other sets, if some do."""
    kind, _, number = others.about().devices[0].partition(":")
    if kind != "cuda" or not (len(areas.fixed_rows) or areas.followers is not None):
        return AreaFinder(areas)
    # Importing this needs CUDA
    from tagmatch.pipeline.cuda.areas import CudaClients, CudaFixedAreas

    try:
        clients = None if areas.followers is None else CudaClients(areas.followers.cells, int(number))
        device = Searchers(CudaFixedAreas(areas.fixed, int(number), options.cuda.streams), clients)
        finders = (part.matcher.finder for part in earlier if isinstance(part.matcher, Beside))
        known = ((len(each), each.fewest_messages) for each in finders if each and each.device)
        fewest = _fewest(options, known, len(areas), lambda: break_even_of_areas(device, areas))
        return AreaFinder(areas, device, fewest)
    except DeviceError as error:
        is_small = isinstance(error, DeviceMemoryError)
        if options.device == "cuda" and not is_small:
            raise
        reason = f"{error}; the CPU matches areas"
        if is_small:
            warnings.warn(reason, DeviceWarning, stacklevel=5)
        return AreaFinder(areas, notes=(reason,))


def _fewest(options: MatchOptions, known: Iterable[tuple[int, int]], count: int, measure: Callable[[], int]) -> int:
    """From how many queries on the device of `count` sets is asked: as is wanted, or known of more sets, or measured.

    Of fewer sets, another measurement is not worth its time.
    """
    if options.cuda.fewest_queries is not None:
        return options.cuda.fewest_queries
    fewest = next((fewest for sets, fewest in known if sets > count), None)
    return measure() if fewest is None else fewest


def _chosen(options: MatchOptions) -> Sequence[int]:
    found = devices()
    chosen = range(found) if options.cuda.devices is None else options.cuda.devices
    for number in chosen:
        if number >= found:
            raise DeviceError(f"there is no CUDA device {number}; there are {found}, numbered from 0")
    return chosen


#: Gets a segment, options, and the number of a device
MakeMatcher: TypeAlias = Callable[[Segment, MatchOptions, int], DeviceMatcher]


def _on_cuda(
    segment: Segment, filters: FilterIndex | None, options: MatchOptions, chosen: Sequence[int]
) -> DeviceMatcher:
    # Importing this needs CUDA
    from tagmatch.pipeline.cuda.matcher import CudaMatcher

    def make(rows: Segment, options: MatchOptions, device: int) -> CudaMatcher:
        of_rows = filters if filters is None or rows is segment else filters_of_rows(filters, rows)
        return CudaMatcher(rows, options, device, of_rows)

    placement = options.cuda.placement
    if len(chosen) == 1:
        return make(segment, options, chosen[0])
    if placement == "split":
        return split(segment, options, chosen, make)
    try:
        return replicated(segment, options, chosen, make)
    except DeviceMemoryError as error:
        if placement == "replicate":
            raise
        reason = f"{error}; each device has some of the sets"
        warnings.warn(reason, DeviceWarning, stacklevel=5)
    return split(segment, options, chosen, make, notes=(reason,))


def replicated(segment: Segment, options: MatchOptions, devices: Sequence[int], make: MakeMatcher) -> RoundRobin:
    """Devices with the same tables, which take packets in turn (§3.3)."""
    return RoundRobin([make(segment, options, device) for device in devices])


def split(
    segment: Segment,
    options: MatchOptions,
    devices: Sequence[int],
    make: MakeMatcher,
    *,
    notes: tuple[str, ...] = (),
) -> Split:
    """Devices with about as many sets each; every packet goes to all of them (§3.3)."""
    rows = even_ranges(len(segment), len(devices)) or [(0, 0)]
    parts = zip(rows, devices, strict=False)
    first_rows = segment.partitions.first_rows
    return Split(
        [make(rows_of(segment, *part), options, device) for part, device in parts],
        [np.flatnonzero(np.diff(np.clip(first_rows, *part))) for part in rows],
        notes,
    )


def rows_of(segment: Segment, first: int, last: int) -> Segment:
    """The segment with only the sets of some rows; its tables share the memory of the whole."""
    signatures, partitions = segment.tagsets.signatures, segment.partitions
    edges = np.clip(partitions.first_rows, first, last) - first
    return replace(
        segment,
        tagsets=TagsetTable(
            None if signatures is None else signatures[first:last], _some(segment.tagsets.ranks, first, last)
        ),
        # Which of them expire, and when, no matcher asks
        keys=replace(segment.keys, keys=_some(segment.keys.keys, first, last), expires=None),
        partitions=rules_of(segment.options).of_rows(partitions, edges),
        deletions=None if segment.deletions is None else segment.deletions.part(first, last),
    )


def _some(lists: Lists, first: int, last: int) -> Lists:
    offsets = lists.offsets[first : last + 1]
    return Lists(offsets - offsets[0], lists.values[offsets[0] : offsets[-1]])
