"""Runs of many cases that may take only so long: what does not fit is named and counted as skipped."""

import random
import time


def add_options(parser):
    parser.add_argument("--within", type=float, metavar="SECONDS", help="start no case after these; in an order that --seed gives, so that all have their turn")
    parser.add_argument("--seed", default="", help="order of the cases with --within: any word")


def each(cases, options, suite, name_of=str):
    """The cases for which there is time; the suite counts the others."""
    if options.within is None:
        yield from cases
        return
    cases = list(cases)
    random.Random(options.seed).shuffle(cases)
    began = time.monotonic()
    for number, case in enumerate(cases):
        if time.monotonic() - began > options.within:
            print(f"skip what {options.within:.0f} s leave no room for: {' '.join(name_of(case) for case in cases[number:])}")
            suite.skipped += len(cases) - number
            return
        yield case
