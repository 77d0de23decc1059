"""What the interop tests share: processes with PyTorch, rollcall's programs, torch servers, and the rules by which they end.

The tests themselves need no PyTorch: it is imported by the processes they start, with the interpreter that the environment variable
ROLLCALL_TORCH_PYTHON names (python3 where it is not set). Every process is bounded in time and ended by its id.
"""
import ast
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get('ROLLCALL_BUILD', 'build'))
PYTHON = os.environ.get('ROLLCALL_TORCH_PYTHON') or 'python3'
USE_LIBUV = os.environ.get('ROLLCALL_TEST_USE_LIBUV', '1')  # 0: rollcall's servers are of its blocking back end
NEEDED = (2, 13)  # the first release with every operation: BARRIER and LIST_KEYS
LIMIT = 60.0  # s, of whatever is not given another; ten times what a busy machine takes


class Failed(Exception):
    """A call inside a process with PyTorch raised: the names of the exception's classes, and its text."""

    def __init__(self, kinds, text, took):
        super().__init__(f'{kinds[0]}: {text}')
        self.kinds, self.text, self.took = kinds, text, took


class Process:
    """A child that is killed at the end, whatever happened. What it complains about is shown when a test fails."""

    all = []

    def __init__(self, command, environment=None, pipe_input=False):
        Process.all.append(self)
        self.command = [str(c) for c in command]
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE if pipe_input else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.complaints,
            env=dict(os.environ, TORCH_CPP_LOG_LEVEL='ERROR', OMP_NUM_THREADS='1', **(environment or {})))
        self.pid = self.process.pid
        self.unread = b''

    def signal(self, number):
        self.process.send_signal(number)

    def line(self, limit=LIMIT):
        """The next line of its output; an error where it ends or the limit passes before."""
        until = time.monotonic() + limit
        while b'\n' not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 1 << 16) if ready else None
            if not piece:
                said = self.said()
                self.kill()
                raise AssertionError(f'{self.command} {"is silent" if piece is None else "ended"}: {said}')
            self.unread += piece
        line, self.unread = self.unread.split(b'\n', 1)
        return line.decode()

    def finish(self, limit=LIMIT):
        """Its exit status and the rest of its output."""
        try:
            rest, _ = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            said = self.said()
            self.kill()
            raise AssertionError(f'{self.command} does not end within {limit} s: {said}') from None
        return self.process.returncode, (self.unread + rest).decode(errors='replace')

    def said(self):
        """What it wrote to its standard error, the end of it."""
        if self.complaints.closed:
            return ''
        self.complaints.seek(0)
        return self.complaints.read()[-4000:].decode(errors='replace')

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self.process.stdin, self.process.stdout, self.complaints):
            if end:
                end.close()


class Torch(Process):
    """A process with PyTorch: call it with an expression or statements of Python; `begin` and `end` for calls that overlap."""

    def __init__(self):
        super().__init__([PYTHON, HERE / 'peer.py'], pipe_input=True)
        self.running = None
        self.took = 0.0

    def begin(self, code):
        assert self.running is None, f'{self.running} is running'
        self.running = code
        self.process.stdin.write(json.dumps(code).encode() + b'\n')
        self.process.stdin.flush()

    def end(self, limit=LIMIT):
        answer = json.loads(self.line(limit))
        self.running, self.took = None, answer['took']
        if 'error' in answer:
            raise Failed(answer['error'], answer['text'], self.took)
        return ast.literal_eval(answer['value'])

    def __call__(self, code, limit=LIMIT):
        self.begin(code)
        return self.end(limit)


class Server(Process):
    """rollcall-server; ends with the suite."""

    def __init__(self):
        super().__init__([BUILD / 'examples' / 'rollcall-server', '--port', '0', '--until-eof'], for_ours(), pipe_input=True)
        _, address, back_end = self.line().split()
        assert back_end == ('libuv' if USE_LIBUV == '1' else 'legacy'), back_end
        self.port = int(address.rsplit(':', 1)[1])


def for_ours(environment=None):
    """The environment of rollcall's programs. Not of PyTorch's, which know USE_LIBUV as well."""
    return {'USE_LIBUV': USE_LIBUV, **(environment or {})}


def client(port, limit=30, name='s', host='127.0.0.1', **more):
    """The statement that makes a torch client."""
    rest = ''.join(f', {k}={v!r}' for k, v in more.items())
    return f'{name} = TCPStore({host!r}, {port}, timeout=seconds({limit}){rest})'


class Case(unittest.TestCase):
    """Processes with PyTorch are lent to one test after the other, each time as if started anew; all others end with their test."""

    idle = []  # of all cases

    def torch(self):
        peer = Case.idle.pop() if Case.idle else Torch()
        self.addCleanup(self.give_back, peer)
        return peer

    @staticmethod
    def give_back(peer):
        if peer.running is None and peer.process.poll() is None:
            try:
                peer(None, limit=10)
                Case.idle.append(peer)
                return
            except AssertionError:
                pass
        peer.kill()

    def watch(self, process):
        """Ends it with the test, and shows its complaints where that has failed."""
        self.addCleanup(process.kill)
        return process

    def rollcall_server(self):
        return self.watch(Server())

    def torch_server(self, backend):
        """A server of PyTorch's with that back end, in a process of its own; has a port like ours."""
        peer = self.torch()
        peer.port = peer(f"server = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv={backend == 'libuv'})\n"
                         'result = server.port')
        return peer

    def server(self, kind):
        return self.rollcall_server() if kind == 'rollcall' else self.torch_server(kind)

    def program(self, name, *arguments, environment=None):
        """A program of this suite, built from NAME.cpp."""
        return self.watch(Process([BUILD / 'tests' / 'interop' / f'interop_{name}', *arguments], for_ours(environment)))

    def assertFails(self, kind, text, peer, code, limit=LIMIT):
        """That the call raises an exception of that class, with that text in it; gives how long it took."""
        with self.assertRaises(Failed) as caught:
            peer(code, limit)
        self.assertIn(kind, caught.exception.kinds, caught.exception)
        self.assertIn(text, caught.exception.text)
        return caught.exception.took

    def assertEnds(self, process, status=0, limit=LIMIT):
        got, output = process.finish(limit)
        self.assertEqual(got, status, f'{process.command}: {output}{process.said()}')
        return output


def why_not():
    """Why PyTorch cannot be tested here, or nothing."""
    try:
        asked = subprocess.run([PYTHON, '-c', 'import torch, torch.distributed as d; print(torch.__version__, d.is_available(), d.is_gloo_available())'],
                               capture_output=True, text=True, timeout=300)
    except OSError as e:
        return f'{PYTHON} cannot be started: {e.strerror}'
    if asked.returncode != 0:
        return f'{PYTHON} cannot import torch: {(asked.stderr.strip().splitlines() or ["?"])[-1]}'
    version, *there = asked.stdout.split()
    print(f'PyTorch {version}, by {PYTHON}; rollcall with {"libuv" if USE_LIBUV == "1" else "its blocking back end"}', flush=True)
    if there != ['True', 'True']:
        return 'this PyTorch has no torch.distributed with gloo'
    if tuple(int(n) for n in version.split('+')[0].split('.')[:2]) < NEEDED:
        return f'PyTorch {version} is older than {".".join(map(str, NEEDED))}'
    return None


def main():
    """Runs the tests of the calling module. 77 and a reason where PyTorch is missing, unless --required says that it must not be."""
    required = '--required' in sys.argv
    if required:
        sys.argv.remove('--required')
    if reason := why_not():
        print(f'{"failed" if required else "skipped"}: {reason} (ROLLCALL_TORCH_PYTHON names the interpreter to use)')
        sys.exit(1 if required else 77)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Meson's way to say that the time is over
    try:
        unittest.main(module='__main__', verbosity=2)
    finally:
        for process in Process.all:
            process.kill()
