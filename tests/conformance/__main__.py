"""`python -m tests.conformance [--class NAME] FILE...`

Prints passed/failed per class and every failure; exits with 1 on any.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.conformance import args, compaction, history, loop, parse, provider_error, response, tool_result

ADAPTERS = {
    "args": args.judge,
    "compaction": compaction.judge,
    "history": history.judge,
    "loop": loop.judge,
    "parse": parse.judge,
    "provider_error": provider_error.judge,
    "response": response.judge,
    "tool_result": tool_result.judge,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--class", dest="only", action="append", metavar="NAME", help="only cases of this class")
    options = parser.parse_args(arguments)
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for path in options.files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            case = json.loads(line)
            kind = case["class"]
            if options.only and kind not in options.only:
                continue
            for problem in problems_of(case):
                print(f"{path}:{number}: {case['id']} ({case.get('pattern', kind)}): {problem}")
                failed[kind] += 1
                break
            else:
                passed[kind] += 1
    for kind in sorted(passed | failed):
        print(f"{kind}: {passed[kind]} passed, {failed[kind]} failed")
    if not passed and not failed:
        print("no case of the chosen classes", file=sys.stderr)
        return 1
    return 1 if failed else 0


def problems_of(case: dict) -> list[str]:
    adapter = ADAPTERS.get(case["class"])
    if adapter is None:
        return ["no adapter for this class yet"]
    try:
        return adapter(case)
    except Exception as error:  # noqa: BLE001 - a crash is a failed case, not the end of the list
        return [f"{type(error).__name__}: {error}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
