"""README's session with the programs goes as it is written: the ```console block after `<!-- session: NAME -->`.

A line that begins with `$ ` is typed into one shell, in which the programs of --programs are found; the lines after it are what it must
say, on standard output or standard error. There `...` stands for anything. The port 29500 becomes one that is free.
"""
import argparse
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

BLOCK = re.compile(r'^<!-- session: [\w-]+ -->\n+```console\n(.*?)^```$', re.M | re.S)
LIMIT = 30  # s, for each command
MARK = '--- that was all ---'
NOTHING = '(and then nothing)'


def steps_of(block):
    """Pairs of a command and the lines that must follow."""
    steps = []
    for line in block.splitlines():
        if line.startswith('$ '):
            steps.append((line[2:], []))
        elif not steps:
            raise ValueError(f'{line!r} comes before the first command')
        else:
            steps[-1][1].append(line)
    return steps


def matches(expected, got):
    return re.fullmatch('.*'.join(re.escape(part) for part in expected.split('...')), got) is not None


class Shell:
    def __init__(self, programs):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(('MASTER_', 'ROLLCALL_'))}
        environment['PATH'] = f'{programs}:{environment["PATH"]}'
        self.process = subprocess.Popen(['bash', '--norc'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                        start_new_session=True)
        self.unread = b''

    def line(self, until):
        while b'\n' not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b''
            if not piece:
                return None
            self.unread += piece
        line, self.unread = self.unread.split(b'\n', 1)
        return line.decode(errors='replace')

    def type(self, command, expected):
        """What the command says. What runs in the background is waited for as long as less came than expected."""
        self.process.stdin.write(f'{command}\necho "{MARK}"\n'.encode())
        self.process.stdin.flush()
        until, said, over = time.monotonic() + LIMIT, [], False
        while not over or (command.endswith('&') and len(said) < len(expected)):
            line = self.line(until)
            if line is None:
                return said + [NOTHING]
            if line == MARK:
                over = True
            else:
                said.append(line)
        return said

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)  # its own session: the shell and what it has started
        self.process.communicate()


def problems_of(text, programs):
    blocks = BLOCK.findall(text)
    if not blocks or len(blocks) != len(re.findall(r'^<!-- session:', text, re.M)):
        yield 'there is no session, or a mark that is not followed by a ```console block'
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = str(s.getsockname()[1])
    for block in blocks:
        shell = Shell(programs)
        try:
            for command, expected in steps_of(block.replace('29500', port)):
                said = shell.type(command, expected)
                if len(said) != len(expected) or not all(map(matches, expected, said)):
                    yield f'$ {command}\n' + ''.join(f'  expected: {e}\n' for e in expected) + ''.join(f'       got: {s}\n' for s in said)
                if NOTHING in said:  # the shell hangs, or has ended
                    break
        finally:
            shell.end()


def self_test():
    good = '<!-- session: s -->\n```console\n$ x=29500\n$ echo a$x; echo b >&2\na29500\nb\n$ (sleep 0.1; echo late) &\nlate\n$ echo 12 ms\n... ms\n```\n'
    cases = [
        (good, 0), ('', 1), (good.replace('late\n$ echo 12', 'early\n$ echo 12'), 1), (good.replace('... ms', '... s'), 1),
        (good.replace('a29500\n', ''), 1), (good.replace('b\n$', 'b\nc\n$'), 1), (good.replace('```console', '```sh'), 1),
    ]
    with tempfile.TemporaryDirectory() as empty:
        for text, count in cases:
            problems = list(problems_of(text, empty))
            if len(problems) != count:
                raise SystemExit(f'{text}should have {count} problems, not {problems}')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--readme', type=pathlib.Path)
    parser.add_argument('--programs', type=pathlib.Path, help='the folder they are in')
    parser.add_argument('--self-test', action='store_true')
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Meson's way to say that the time is over: what was started ends, too
    problems = list(problems_of(options.readme.read_text(), options.programs))
    print('\n'.join(problems))
    return 1 if problems else 0


sys.exit(main())
