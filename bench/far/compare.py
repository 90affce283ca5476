#!/usr/bin/env python3
"""Compares two results of `hiroma bench far --json`, figure by figure: compare.py BEFORE.json AFTER.json"""

import json
import sys


def load(path):
    with open(path, encoding="utf-8") as file:
        return {result["name"]: result for result in json.load(file)["results"]}


def shown(result):
    value = result.get("value") if result else None
    if value is None:
        return "–"
    sign = {"at-least": "> ", "at-most": "< "}.get(result.get("bound"), "")
    return f"{sign}{value:.3g}"


def verdict(before, after):
    """Better or worse only where the repetitions of both do not overlap."""
    if not before or not after or None in (before.get("value"), after.get("value")):
        return ""
    higher = after["better"] == "higher"
    if after["min"] > before["max"]:
        return "better" if higher else "WORSE"
    if after["max"] < before["min"]:
        return "WORSE" if higher else "better"
    return "within the spread"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    before, after = load(sys.argv[1]), load(sys.argv[2])
    rows = [("measure", "before", "after", "", "met")]
    for name in list(before) + [name for name in after if name not in before]:
        one, other = before.get(name), after.get(name)
        met = (other or {}).get("met")
        rows.append((name, shown(one), shown(other), verdict(one, other), {True: "yes", False: "NO"}.get(met, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    main()
