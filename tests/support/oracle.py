"""The names of the oracle where they were before."""

from oracle import Oracle as Oracle
from oracle import holds_for as holds_for
from oracle import is_condition as is_condition
