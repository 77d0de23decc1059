#!/usr/bin/env python3
"""Prints a command that README.md states, so that CI runs what it says: the ```sh block after `<!-- command: NAME -->`.

Such a block is one command, on one line or with lines that end in a backslash.
"""
import pathlib
import re
import sys

BLOCK = re.compile(r'^<!-- command: ([\w-]+) -->\n+```sh\n(.*?)^```$', re.M | re.S)


def commands(text):
    """All marked commands by name; what is not one command raises ValueError."""
    if len(re.findall(r'^<!-- command:', text, re.M)) != len(BLOCK.findall(text)):
        raise ValueError('a mark is not followed by a ```sh block')
    found = {}
    for name, block in BLOCK.findall(text):
        if name in found:
            raise ValueError(f'two commands are called {name}')
        lines = block.strip().split('\n')
        if not block.strip() or any(not line.endswith('\\') for line in lines[:-1]) or lines[-1].endswith('\\'):
            raise ValueError(f'the command {name} is not one command')
        found[name] = block.strip()
    return found


def main():
    if len(sys.argv) != 3:
        print(f'usage: {sys.argv[0]} README.md NAME', file=sys.stderr)
        return 2
    try:
        found = commands(pathlib.Path(sys.argv[1]).read_text())
    except ValueError as problem:
        print(f'{sys.argv[1]}: {problem}', file=sys.stderr)
        return 1
    if sys.argv[2] not in found:
        print(f'{sys.argv[1]}: no command is called {sys.argv[2]}; there are: {", ".join(found)}', file=sys.stderr)
        return 1
    print(found[sys.argv[2]])
    return 0


if __name__ == '__main__':
    sys.exit(main())
