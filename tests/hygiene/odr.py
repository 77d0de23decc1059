"""Two translation units with the same header link into one program only if all in it is inline: shows that this is noticed."""
import argparse
import pathlib
import sys
import tempfile

import compiler


def links(cc, header):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / 'header.hpp').write_text('#pragma once\n' + header)
        (root / 'a.cpp').write_text('#include "header.hpp"\nint other();\nint main() { return f() + other(); }\n')
        (root / 'b.cpp').write_text('#include "header.hpp"\nint other();\nint other() { return f(); }\n')
        return cc.run(root / 'a.cpp', root / 'b.cpp', '-o', root / 'program')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', required=True)
    parser.add_argument('--like', required=True, help='the source whose flags are used')
    options = parser.parse_args()
    cc = compiler.command(options.build, options.like)
    wrong = []
    fine, said = links(cc, 'inline int f() { return 0; }\n')
    if not fine:
        wrong.append(f'self-test: an inline function should link:\n{said}')
    fine, said = links(cc, 'int f() { return 0; }\n')
    if fine or 'multiple definition' not in said and 'duplicate symbol' not in said:
        wrong.append(f'self-test: a function that is not inline should not link:\n{said}')
    return compiler.verdict(wrong, 2, 'fixtures')


sys.exit(main())
