"""The sets of a segment that have constraints, made ready for messages."""

from __future__ import annotations

from dataclasses import dataclass

from tagmatch.model.tables import Segment
from tagmatch.pipeline.filters.asked import asked_in, tests_of
from tagmatch.pipeline.filters.attributes import Attributes, Constraints, attributes_of
from tagmatch.pipeline.filters.parsing import constraint_ranks, parsed
from tagmatch.pipeline.filters.tokens import likelihoods, presence_among
from tagmatch.pipeline.filters.trie_index import TrieIndex, trie_index


@dataclass(frozen=True, slots=True, eq=False)
class FilterIndex:
    """The sets of a segment that have constraints.

    Attributes
    ----------
    attributes : Attributes
    constraints : Constraints
        Those that are more than an interval.
    trie : TrieIndex
    """

    attributes: Attributes
    constraints: Constraints
    trie: TrieIndex

    def __len__(self) -> int:
        return len(self.trie)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return (
            sum(array.nbytes for array in self.constraints.arrays)
            + self.attributes.constants.nbytes
            + self.attributes.patterns.nbytes
            + self.trie.nbytes
        )


def has_constraints(segment: Segment) -> bool:
    """Whether a segment has sets with constraints."""
    return bool(constraint_ranks(segment.vocabulary.tags).any())


def filter_index(segment: Segment) -> FilterIndex:
    """Index the sets of a segment that have constraints."""
    tags = segment.vocabulary.tags
    found = parsed(tags)
    attributes, constraints = attributes_of(tags, found)
    is_constraint = constraint_ranks(tags)
    asked = asked_in(segment, found, is_constraint)
    tests = tests_of(constraints, attributes.constants.last_codes)
    # Nothing is known of messages yet: they are taken to be as sets are
    presence = presence_among(asked, constraints, attributes.count)
    likely = likelihoods(asked, constraints, attributes, presence, segment.vocabulary.frequencies)
    trie = trie_index(asked, attributes, constraints, tests, likely, len(tags))
    return FilterIndex(attributes, tests.complexes, trie)
