#!/usr/bin/env python3
"""Adds up what `meson test` recorded: prints "passed failed skipped" for one testlog.json. No record at all is one failure."""
import json
import pathlib
import sys

PASSED = {'OK', 'EXPECTEDFAIL'}
SKIPPED = {'SKIP'}


def count(text):
    results = [json.loads(line)['result'] for line in text.splitlines() if line.strip()]
    passed = sum(r in PASSED for r in results)
    skipped = sum(r in SKIPPED for r in results)
    failed = len(results) - passed - skipped
    return passed, failed if results else 1, skipped


def main():
    path = pathlib.Path(sys.argv[1])
    print(*count(path.read_text() if path.exists() else ''))
    return 0


if __name__ == '__main__':
    sys.exit(main())
