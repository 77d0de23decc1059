"""What may include what, and other rules on the text of our headers."""
import argparse
import pathlib
import re
import sys
import tempfile

import compiler

# A header includes downward, or within its own layer and name. What is not named here is an error: give it a place.
FOLDERS = {'core': 0, 'wire': 1, 'engine': 2, 'posix': 2, 'rt': 3, 'legacy': 3, 'net': 4, 'stores': 6, 'test': 8}
FILES = {
    'version.hpp': -1, 'fwd.hpp': 0,
    'client': 5, 'server': 5,
    'url': 7, 'environment': 7, 'rendezvous': 7, 'barrier': 7, 'all_gather': 7, 'broadcast': 7, 'assign_ranks': 7, 'election': 7,
    'collectives': 7,
    'legacy': 3,
    'rollcall.hpp': 9,
}
# Nobody below may see these, not even through another header.
FORBIDDEN = {
    **dict.fromkeys(['core', 'wire', 'engine', 'posix'], ['uv.h', 'coroutine', 'thread', 'iostream', 'mutex']),
    'legacy': ['uv.h', 'coroutine'],
}
CLOSES_HANDLES = 'rt/detail/handle.hpp'
MAX_LINES = 400

NOT_A_TYPE = {'return', 'co_return', 'co_await', 'co_yield', 'case', 'new', 'delete', 'throw', 'else', 'do', 'goto', 'typename',
              'struct', 'class', 'enum', 'union', 'and', 'or', 'not'}


def code_of(text):
    """The text without comments and the insides of literals; line breaks stay."""
    token = re.compile(r'''//[^\n]*|/\*.*?\*/|R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*\'''', re.S)

    def blank(match):
        before = text[text.rfind('\n', 0, match.start()) + 1:match.start()]
        if re.fullmatch(r'[ \t]*#[ \t]*include[ \t]*', before):
            return match[0]
        return '""' + '\n' * match[0].count('\n') if match[0][0] in '"\'R' else ' ' + '\n' * match[0].count('\n')
    return token.sub(blank, text)


class Header:
    def __init__(self, root, path):
        self.name = path.relative_to(root).as_posix()
        text = path.read_text()
        self.lines = text.count('\n')
        self.code = code_of(text)
        self.ours, self.foreign = [], []
        for line, quoted, angled in re.findall(r'^[ \t]*(#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>))', self.code, re.M):
            if quoted:
                self.ours.append((path.parent / quoted).resolve().relative_to(root.resolve()).as_posix())
            elif angled.startswith('rollcall/'):
                self.ours.append(angled.removeprefix('rollcall/'))
            else:
                self.foreign.append(angled)
        parts = self.name.split('/')
        if len(parts) == 1:
            stem = re.sub(r'\.[hi]pp$', '', self.name)
            self.group = self.name if self.name in FILES else stem
            self.layer = FILES.get(self.group)
        elif parts[0] == 'detail':
            # detail/client.ipp belongs to client.hpp.
            self.group = re.sub(r'\.[hi]pp$', '', parts[1])
            self.layer = FILES.get(self.group)
        else:
            self.group = parts[0]
            self.layer = FOLDERS.get(self.group, FILES.get(self.group))


def reached(headers, name, seen):
    for other in headers[name].ours:
        if other in headers and other not in seen:
            seen.add(other)
            reached(headers, other, seen)
    return seen


def cycle_from(headers, name, path, done):
    """The first include cycle reachable from `name`, as a list of names."""
    if name in path:
        return path[path.index(name):] + [name]
    if name in done or name not in headers:
        return []
    done.add(name)
    for other in headers[name].ours:
        # The second half of a header may name the first.
        if name.endswith('.ipp') and other in headers and name in headers[other].ours:
            continue
        if found := cycle_from(headers, other, path + [name], done):
            return found
    return []


def problems_of(root):
    """All problems in include/rollcall, and the number of headers."""
    headers = {h.name: h for p in sorted(root.rglob('*')) if p.suffix in ('.hpp', '.ipp') for h in [Header(root, p)]}
    problems = []
    for h in headers.values():
        if h.layer is None:
            problems.append(f'{h.name}: no layer; give it one in layers.py and in the design')
        if h.lines > MAX_LINES:
            problems.append(f'{h.name}: {h.lines} lines, more than {MAX_LINES}')
        for other in h.ours:
            if other not in headers:
                problems.append(f'{h.name}: includes {other}, which does not exist')
            elif h.layer is not None and headers[other].layer is not None:
                below = headers[other].layer
                # Below layer 5 neighbours do not know each other.
                if below > h.layer or (below == h.layer and headers[other].group != h.group and h.layer < 5):
                    problems.append(f'{h.name} (layer {h.layer}) includes {other} (layer {below}): an upward edge')
        seen = {h.name} | reached(headers, h.name, set())
        for foreign in FORBIDDEN.get(h.group, []):
            for other in sorted(seen):
                if foreign in headers[other].foreign:
                    problems.append(f'{h.name}: must not see <{foreign}>' + ('' if other == h.name else f' (through {other})'))
        if h.name != CLOSES_HANDLES and re.search(r'\buv_close\s*\(', h.code):
            problems.append(f'{h.name}: calls uv_close; only {CLOSES_HANDLES} does')
        for macro in re.findall(r'^[ \t]*#[ \t]*define[ \t]+(\w+)', h.code, re.M):
            if not macro.startswith('ROLLCALL_'):
                problems.append(f'{h.name}: defines the macro {macro}; ours begin with ROLLCALL_')
        for name in re.findall(r'\b(?:struct|class|enum|union|using|namespace|concept)\s+((?:uv|UV)_\w+)\s*[{:=]', h.code):
            problems.append(f'{h.name}: defines {name}; that prefix is libuv\'s')
        for word, name in re.findall(r'\b([A-Za-z_]\w*>?)[*&]*\s+((?:uv|UV)_\w+)\s*[({=;\[,]', h.code):
            if word not in NOT_A_TYPE:
                problems.append(f'{h.name}: defines {name}; that prefix is libuv\'s')
    done = set()
    for name in headers:
        if found := cycle_from(headers, name, [], done):
            problems.append('cycle of includes: ' + ' -> '.join(found))
    return problems, len(headers)


GOOD = {
    'version.hpp': '#define ROLLCALL_VERSION_MAJOR 0\n',
    'core/a.hpp': '#include "../version.hpp"\n#include <string>\n// #include <uv.h>, uv_close(h)\n',
    'rt/detail/handle.hpp': '#include <uv.h>\n#include "../../core/a.hpp"\ninline void f(uv_handle_t* h) { uv_close(h, nullptr); }\n',
    'rt/loop.hpp': '#include <rollcall/rt/detail/handle.hpp>\n#include <mutex>\nstruct uv_loop_s;\nclass l { uv_loop_t* uv_; };\n'
                   'inline int g() { return uv_hrtime(); }\n'
                   'inline bool h(uv_loop_t* l) { return uv_loop_alive(l) == 0 && uv_backend_timeout(l) == 0; }\ninline char const* t = "#define X uv_close(";\n',
    'client.hpp': '#include "rt/loop.hpp"\n#include "detail/client.ipp"\n',
    'detail/client.ipp': '#include "../client.hpp"\n#include "../rt/loop.hpp"\n',
}
BAD = [
    ({'core/b.hpp': '#include "../rt/loop.hpp"\n'}, 'an upward edge'),
    ({'core/b.hpp': '#include <rollcall/client.hpp>\n'}, 'an upward edge'),
    ({'engine/b.hpp': '#include "../posix/c.hpp"\n', 'posix/c.hpp': '\n'}, 'an upward edge'),
    ({'net/b.hpp': '#include "../rollcall.hpp"\n', 'rollcall.hpp': '\n'}, 'an upward edge'),
    ({'core/b.hpp': '#  include <uv.h>\n'}, 'core/b.hpp: must not see <uv.h>'),
    ({'wire/b.hpp': '#include "../core/b.hpp"\n', 'core/b.hpp': '#include <mutex>\n'}, 'wire/b.hpp: must not see <mutex> (through core/b.hpp)'),
    ({'posix/b.hpp': '#include <thread>\n'}, 'must not see <thread>'),
    ({'engine/b.hpp': '#include <iostream>\n'}, 'must not see <iostream>'),
    ({'legacy/b.hpp': '#include <coroutine>\n'}, 'must not see <coroutine>'),
    ({'net/b.hpp': 'inline void f(uv_handle_t* h) { ::uv_close(h, 0); }\n'}, 'calls uv_close'),
    ({'net/b.hpp': '#include "c.hpp"\n', 'net/c.hpp': '#include "b.hpp"\n'}, 'cycle of includes'),
    ({'net/b.hpp': '//\n' * 401}, '401 lines'),
    ({'net/b.hpp': '#define CHECK(x) x\n'}, 'defines the macro CHECK'),
    ({'net/b.hpp': 'struct uv_extra { int x; };\n'}, 'defines uv_extra'),
    ({'net/b.hpp': 'inline int uv_more(int x) { return x; }\n'}, 'defines uv_more'),
    ({'net/b.hpp': '#include "gone.hpp"\n'}, 'does not exist'),
    ({'elsewhere/b.hpp': '\n'}, 'no layer'),
]


def self_test():
    wrong = []
    for extra, expected in [({}, None), *BAD]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**GOOD, **extra}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found, _ = problems_of(root)
        if expected is None and found:
            wrong.append(f'self-test: a clean tree has problems: {found}')
        elif expected and not any(expected in p for p in found):
            wrong.append(f'self-test: {extra} should give "{expected}", gave {found}')
        elif expected and any(p.split(':')[0].split(' ')[0] not in extra and 'cycle' not in p for p in found):
            wrong.append(f'self-test: {extra} blames others: {found}')
    return compiler.verdict(wrong, len(BAD) + 1, 'fixtures')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=pathlib.Path, help='the folder include/rollcall')
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    problems, count = problems_of(options.root)
    return compiler.verdict(problems, count, 'headers')


sys.exit(main())
