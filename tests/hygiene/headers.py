"""Every public header compiles alone, and twice in one translation unit."""
import argparse
import pathlib
import sys
import tempfile

import compiler


def unit(include):
    return f'#include {include}\n#include {include}\n'


def problems_of(cc, includes, *arguments):
    """One text per header that does not compile alone and twice."""
    def one(include):
        fine, said = cc.check(unit(include), *arguments)
        return '' if fine else f'{include} does not compile alone and twice:\n{said}'
    return [p for p in compiler.each(one, includes) if p]


def self_test(cc):
    """Headers that are not self-contained, or not guarded, are found; a good one passes."""
    cases = {
        'good.hpp': ('#pragma once\n#include <string>\ninline std::string good() { return "x"; }\n', True),
        'needs_string.hpp': ('#pragma once\ninline std::string bad() { return "x"; }\n', False),
        'unguarded.hpp': ('#include <string>\ninline std::string bad() { return "x"; }\n', False),
    }
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (text, _) in cases.items():
            (pathlib.Path(folder) / name).write_text(text)
        for name, (_, fine) in cases.items():
            if bool(problems_of(cc, [f'"{name}"'], f'-I{folder}')) == fine:
                wrong.append(f'self-test: {name} should ' + ('pass' if fine else 'fail'))
    return compiler.verdict(wrong, len(cases), 'fixtures')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', required=True)
    parser.add_argument('--like', required=True, help='the source whose flags are used')
    parser.add_argument('--includes', help='file with one #include line for each public header')
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    cc = compiler.command(options.build, options.like)
    if options.self_test:
        return self_test(cc)
    lines = pathlib.Path(options.includes).read_text().splitlines()
    includes = [line.split(None, 1)[1] for line in lines if line.startswith('#include')]
    return compiler.verdict(problems_of(cc, includes), len(includes), 'headers')


sys.exit(main())
