"""Every header, test, example and benchmark is named in its meson.build: what is not would never be installed or run."""
import argparse
import pathlib
import re
import sys
import tempfile

import compiler

# Folder with the list, what must be in it.
LISTS = [
    ('include', ['rollcall/**/*.hpp', 'rollcall/**/*.ipp']),
    ('tests', ['*.cpp', 'unit/*.cpp', 'rt/*.cpp', 'net/*.cpp', 'sim/*.cpp']),
    ('tests/interop', ['*.cpp', '*.py']),
    ('examples', ['*.cpp']),
    ('bench', ['*.cpp']),
]


def names_in(meson):
    """All that a meson.build may mean by its quoted words: a path, or a program whose file has underscores."""
    words = re.findall(r"'([^'\n]+)'", re.sub(r'^\s*#.*$', '', meson, flags=re.M))
    return set(words) | {w.replace('-', '_') + '.cpp' for w in words} | {w + '_main.cpp' for w in words} | {w + '.py' for w in words}


def problems_of(root):
    problems, count = [], 0
    for folder, patterns in LISTS:
        meson = root / folder / 'meson.build'
        known = names_in(meson.read_text()) if meson.exists() else set()
        for path in sorted(p for pattern in patterns for p in (root / folder).glob(pattern)):
            count += 1
            name = path.relative_to(root / folder).as_posix()
            if name not in known:
                problems.append(f'{folder}/{name} is not in {folder}/meson.build')
    return problems, count


def self_test():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        tree = {
            'include/meson.build': "files(\n  'rollcall/a.hpp',\n  # 'rollcall/core/b.hpp',\n)",
            'include/rollcall/a.hpp': '', 'include/rollcall/core/b.hpp': '',
            'tests/meson.build': "['unit/a.cpp']", 'tests/unit/a.cpp': '', 'tests/unit/b.cpp': '',
            'tests/interop/meson.build': "drivers = ['c']", 'tests/interop/c.py': '', 'tests/interop/d.py': '',
            'examples/meson.build': "['two-words']", 'examples/two_words.cpp': '', 'examples/other.cpp': '',
        }
        for name, text in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found, _ = problems_of(root)
        missing = {'include/rollcall/core/b.hpp', 'tests/unit/b.cpp', 'tests/interop/d.py', 'examples/other.cpp'}
        if {p.split()[0] for p in found} != missing:
            wrong.append(f'self-test: should find {missing}, found {found}')
    return compiler.verdict(wrong, 1, 'fixtures')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=pathlib.Path, help='the source tree')
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    problems, count = problems_of(options.root)
    return compiler.verdict(problems, count, 'files')


sys.exit(main())
