#!/usr/bin/env python3
"""Checks the tracked Markdown files: links, headings, paths in backticks, and that docs/SUMMARY.md lists each page."""

import glob
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
files = subprocess.run(["git", "ls-files"], stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")
tracked = {name for name in files if os.path.exists(name)}
pages = sorted(name for name in tracked if name.endswith(".md"))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
PATH = re.compile(r"(?:docs|crates|bench|scripts|tests)/[\w.{},*/<>…-]+")


def prose(name):
    """The lines outside of fenced blocks, with their numbers."""
    fenced = False
    for number, line in enumerate(open(name, encoding="utf-8"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line.rstrip("\n")


def anchors(name):
    """The anchors of a page's headings, as GitHub and mdBook make them."""
    found = set()
    for _, line in prose(name):
        if re.match(r"#{1,6} ", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip().lower())
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def alternatives(path):
    """The paths that braces stand for."""
    brace = re.search(r"\{([^{}]*)\}", path)
    if not brace:
        return [path]
    return [p for part in brace[1].split(",") for p in alternatives(path[: brace.start()] + part + path[brace.end() :])]


def exists(path):
    path = path.rstrip("/.,")
    if re.search(r"[<>…]|[A-Z]{3,}(?![A-Z.]*md)|\.\.\.", path):  # a placeholder: NAME, <name>, a…
        return True
    return bool(glob.glob(path)) if "*" in path else os.path.exists(path)


problems = []
for page in pages:
    for number, line in prose(page):
        for target in LINK.findall(CODE.sub("", line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, heading = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
            if not os.path.exists(file):
                problems.append(f"{page}:{number}: there is no {file}")
            elif heading and file.endswith(".md") and heading not in anchors(file):
                problems.append(f"{page}:{number}: {file} has no heading #{heading}")
        for code in CODE.findall(line):
            for word in code.split():
                path = PATH.fullmatch(re.sub(r":\d+$", "", word))
                for one in alternatives(path[0]) if path else []:
                    if not exists(one):
                        problems.append(f"{page}:{number}: there is no {one}")

summary = "docs/SUMMARY.md"
listed = {os.path.normpath(os.path.join("docs", t)) for _, line in prose(summary) for t in LINK.findall(line)}
for page in pages:
    if page.startswith("docs/") and not page.startswith("docs/man/") and page != summary and page not in listed:
        problems.append(f"{summary}:1: {page} is not listed")

print("\n".join(problems), end="\n" if problems else "")
sys.exit(bool(problems))
