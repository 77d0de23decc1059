"""Mistakes that the compiler must catch.

A snippet names what the compiler has to say, `// expect: regular expression`, may add flags, `// flags: ...`, and ends each line that is
the mistake with `// mistake`. It must fail with that text, and compile once those lines are gone.
"""
import argparse
import pathlib
import re
import sys

import compiler

MISTAKE = re.compile(r'//\s*mistake\s*$')


def problem_of(cc, name, text):
    """What is wrong with one snippet; empty when it behaves."""
    expected = re.findall(r'^// expect: (.+)$', text, re.M)
    flags = ' '.join(re.findall(r'^// flags: (.+)$', text, re.M)).split()
    lines = text.splitlines(keepends=True)
    right = ''.join(line for line in lines if not MISTAKE.search(line.rstrip('\n')))
    if len(expected) != 1 or right == text:
        return f'{name}: needs one "// expect: ..." and a line that ends with "// mistake"'
    fine, said = cc.check(right, *flags)
    if not fine:
        return f'{name}: does not compile without its mistake:\n{said}'
    fine, said = cc.check(text, *flags)
    if fine:
        return f'{name}: compiles, and must not'
    if not re.search(expected[0].strip(), said):
        return f'{name}: the compiler does not say /{expected[0].strip()}/:\n{said}'
    return ''


def self_test(cc):
    """A snippet that compiles, that fails for another reason, or whose control fails, is found."""
    cases = {
        'good': ('// expect: invalid conversion|cannot initialize\nint* f() {\n  return 1;  // mistake\n  return nullptr;\n}\n', ''),
        'compiles': ('// expect: x\nint f() {\n  return 1;  // mistake\n  return 2;\n}\n', 'compiles, and must not'),
        'other_reason': ('// expect: something else entirely\nint f() {\n  return x;  // mistake\n  return 2;\n}\n', 'does not say'),
        'bad_control': ('// expect: x\nint f() {\n  return 1;  // mistake\n  return x;\n}\n', 'does not compile without'),
        'no_mistake': ('// expect: x\nint f() { return 1; }\n', 'needs one'),
        'flagged': ('// expect: unused-result\n// flags: -Werror=unused-result\n[[nodiscard]] int f();\nvoid g() {\n  f();  // mistake\n}\n', ''),
    }
    wrong = []
    for name, (text, expected) in cases.items():
        found = problem_of(cc, name, text)
        if (expected not in found) if expected else found:
            wrong.append(f'self-test: {name} should give "{expected}", gave "{found}"')
    return compiler.verdict(wrong, len(cases), 'fixtures')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', required=True)
    parser.add_argument('--like', required=True, help='the source whose flags are used')
    parser.add_argument('--snippets', type=pathlib.Path)
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    cc = compiler.command(options.build, options.like)
    if options.self_test:
        return self_test(cc)
    files = sorted(options.snippets.glob('*.cpp'))
    found = compiler.each(lambda p: problem_of(cc, p.name, p.read_text()), files)
    return compiler.verdict([p for p in found if p], len(files), 'snippets')


sys.exit(main())
