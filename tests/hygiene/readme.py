"""README shows examples/hello.cpp word for word, and links only to files that exist."""
import argparse
import pathlib
import re
import sys
import tempfile


def problems_of(root):
    readme = (root / 'README.md').read_text()
    hello = (root / 'examples/hello.cpp').read_text()
    shown = re.search(r'^```cpp\n(.*?)^```$', readme, re.M | re.S)
    code = ''.join(line for line in hello.splitlines(True) if not line.startswith('//'))
    if not shown or shown[1].strip() != code.strip():
        yield 'the program in README.md is not examples/hello.cpp'
    for target in re.findall(r'\]\(([^)#:]+)\)', readme):
        if not (root / target).exists():
            yield f'README.md links to {target}, which does not exist'


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / 'examples').mkdir()
        (root / 'examples/hello.cpp').write_text('// why\nint main() {}\n')
        good = '```cpp\nint main() {}\n```\n'
        for text, count in ((good, 0), (good + '[x](gone.md)\n', 1), ('```cpp\nint main() { }\n```\n', 1), ('', 1)):
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
