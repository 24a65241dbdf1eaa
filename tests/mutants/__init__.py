"""Mistakes made on purpose, one by one, in a copy of the code: each has to fail a test that `make test` runs."""

from mutants import matching, more_work, service, storage
from mutants.mutant import mutants_in

MUTANTS = tuple(mutants_in(matching.MATCHING + storage.STORAGE + service.SERVICE + more_work.MORE_WORK))
