"""What `tagmatch-bench ccm` measures on: the default scenario of CCM's Table 1, and that of each figure of its §5."""

from __future__ import annotations

from tagmatch.workloads.content import SCENARIOS
from tagmatch_bench.figures.content_scenarios import (
    Figure,
    dense,
    exactly,
    filters_of_an_interface,
    of_paper,
)
from tagmatch_bench.figures.content_scenarios import figures as pcm_figures
from tagmatch_bench.figures.published_content import DEFAULT, ZIPF
from tagmatch_bench.harness.content import Scenario

INTERFACES = SCENARIOS["ccm"].interfaces

#: With which half of all constraints have the most frequent of 100 names, as §5, Distribution of Names, says
_EXPONENT = 1.7
_FEW_NAMES = 10
_OF_A_DENSE_FILTER = 10
_FILTERS_OF_AN_INTERFACE = 25_000

#: Places of Table 2's panel that are not of the paper
TEN_NAMES, DENSE = f"{_FEW_NAMES} names", "dense"


def default(constraints: int, messages: int, seed: int) -> Scenario:
    """CCM's default scenario, with about this number of constraints."""
    return of_paper("CCM", constraints, messages, seed)


def table2(constraints: int, messages: int, seed: int) -> dict[str | float, Scenario]:
    """Return the scenarios of Table 2, and two that match much."""
    sizes = constraints, messages, seed
    return {
        DEFAULT: default(*sizes),
        ZIPF: of_paper("CCM", *sizes, f"CCM, {ZIPF}", zipf=_EXPONENT),
        TEN_NAMES: of_paper("CCM", *sizes, f"CCM, {TEN_NAMES}", names=_FEW_NAMES),
        DENSE: dense(max(1, constraints // _OF_A_DENSE_FILTER), messages, seed),
    }


def figures(constraints: int) -> list[Figure]:
    """Return Figures 6 to 11, from this number of constraints in the default one (of which CCM has a million).

    In Figure 7 the number of filters is fixed, in PCM's that of constraints.
    """
    of_one = filters_of_an_interface(constraints)
    longer = {float(each): exactly("constraints", each) | exactly("filters", of_one) for each in (1, 2, 3, 4, 5, 7, 9)}
    filters = [
        max(1, of_one * each // _FILTERS_OF_AN_INTERFACE) for each in (100, 1_000, 10_000, 25_000, 100_000, 250_000)
    ]
    as_in_pcm = {figure.number: figure._replace(paper="CCM") for figure in pcm_figures(constraints)}
    return [
        as_in_pcm[6],
        Figure(7, "constraints a filter", longer, "CCM"),
        Figure(8, "filters an interface", {float(each): exactly("filters", each) for each in filters}, "CCM"),
        as_in_pcm[9],
        Figure(10, "names", {float(each): {"names": each} for each in (10, 30, 100, 300, 1_000)}, "CCM"),
        Figure(
            11,
            "% of constraints on numbers",
            {float(each): {"strings": 1 - each / 100} for each in (0, 25, 50, 75, 100)},
            "CCM",
        ),
    ]
