"""Mistakes made on purpose, one by one, in a copy of the code: each has to fail a test that `make test` runs."""

from mutants.matching import MATCHING
from mutants.more_work import MORE_WORK
from mutants.service import SERVICE
from mutants.storage import STORAGE

MUTANTS = (*MATCHING, *STORAGE, *SERVICE, *MORE_WORK)
