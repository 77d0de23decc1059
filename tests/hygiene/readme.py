"""README shows examples/hello.cpp and hello_blocking.cpp word for word, and links only to files that exist."""
import argparse
import pathlib
import re
import sys
import tempfile

PROGRAMS = ['hello.cpp', 'hello_blocking.cpp']  # in README's order


def problems_of(root):
    readme = (root / 'README.md').read_text()
    shown = re.findall(r'^```cpp\n(.*?)^```$', readme, re.M | re.S)
    if len(shown) != len(PROGRAMS):
        yield f'README.md shows {len(shown)} programs, not {len(PROGRAMS)}'
    for name, text in zip(PROGRAMS, shown):
        code = ''.join(line for line in (root / 'examples' / name).read_text().splitlines(True) if not line.startswith('//'))
        if text.strip() != code.strip():
            yield f'a program in README.md is not examples/{name}'
    for target in re.findall(r'\]\(([^)#:]+)\)', readme):
        if not (root / target).exists():
            yield f'README.md links to {target}, which does not exist'


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / 'examples').mkdir()
        (root / 'examples/hello.cpp').write_text('// why\nint main() {}\n')
        (root / 'examples/hello_blocking.cpp').write_text('int main() { return 0; }\n')
        first, second = '```cpp\nint main() {}\n```\n', '```cpp\nint main() { return 0; }\n```\n'
        for text, count in ((first + second, 0), (first + second + '[x](gone.md)\n', 1), (second + first, 2), (first + first, 1), (first, 1), ('', 1)):
            (root / 'README.md').write_text(text)
            if len(list(problems_of(root))) != count:
                raise SystemExit(f'{text!r} should have {count} problems')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=pathlib.Path)
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    problems = list(problems_of(options.root))
    print('\n'.join(problems))
    return 1 if problems else 0


sys.exit(main())
