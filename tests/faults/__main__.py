"""`python -m faults`, in `tests`, is `make torture`: it prints, as JSON, what each program has tried.

`python -m faults damage --rounds 100 --seed 7` is one of them; `--only "flip 12"` repeats a case that it has named.
"""

import argparse
import itertools
import json
import secrets
import signal
import sys
import time

from faults.driver import figures_of, program_of
from support.runs import record

PROGRAMS = (
    "machine", "sweep", "kills", "at_once", "power_loss", "damage", "crafted", "commands",
    "fuzz_ipc", "fuzz_flight", "fuzz_files", "fuzz_gateways", "gateways",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m faults")
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, help="of each program, instead of those in `make nightly`")
    parser.add_argument(
        "--minutes", type=float, default=0, help="of all programs, which begin again until they are over"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--only", default="", help="cases whose kind and name begin so")
    parser.add_argument("--record", action="store_true", help="write counts of cases for the page How we test")
    arguments = parser.parse_args()
    # Where this runs in the background, Ctrl-C is ignored, and would be by the commands
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    names = arguments.programs or PROGRAMS
    cases = problems = 0
    for name in names:
        rounds = arguments.rounds or program_of(name).rounds.nightly
        ends = time.monotonic() + 60 * arguments.minutes / len(names)
        for seed in itertools.count(arguments.seed):
            figures = figures_of(name, rounds, seed, arguments.only)
            print(json.dumps(figures), flush=True)
            cases, problems = cases + figures["cases"], problems + len(figures["problems"])
            if time.monotonic() >= ends:
                break
    if arguments.record:
        record("torture", tried=cases, skipped=0, failed=problems)
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
