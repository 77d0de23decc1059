"""Runs the commands of README.md that need nothing but a build, and compares what they say with what README says of them."""
import argparse
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile

LIMIT = 120  # seconds

# What each must end with and say: exit status, patterns that have to be found, and how often (at least).
EXPECTED = {
    'absent': (1, [(r'barrier: rank \d: barrier of key .*: 1 of 8 missing: 3$', 7)]),
    'legacy': (0, [(r'^\[0\] rank=0: serves the store at .* \(legacy\)$', 1), (r'^\[[0-7]\] rank=[0-7]: mean of 10 barriers', 8)]),
    'nodes': (0, [(r'^\[[0-7]\] rank=[0-7], world_size=8: store init in ', 8), (r'^\[[0-7]\] rank=[0-7]: mean of 10 barriers', 8)]),
    'file': (0, [(r'^rank=[0-3], world_size=4: store init in ', 4)]),
    'url': (0, [(r'^rank=[01], world_size=2: store init in ', 2), (r'^rank=[01]: mean of 10 barriers', 2)]),
}
# CI runs these itself: they install packages.
ELSEWHERE = {'try', 'test'}


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def problems_of(name, command, folder):
    status, patterns = EXPECTED[name]
    # README names PyTorch's usual port; here it may be taken.
    command = re.sub(r'\b29500\b', str(free_port()), command)
    with subprocess.Popen(['bash', '-c', command], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True) as shell:
        try:
            said, _ = shell.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)  # also what runs in the background
            said, _ = shell.communicate()
            return [f'{name}: not over after {LIMIT} s', said]
    problems = []
    if shell.returncode != status:
        problems.append(f'{name}: ends with {shell.returncode}, not {status}')
    for pattern, times in patterns:
        found = len(re.findall(pattern, said, re.M))
        if found < times:
            problems.append(f'{name}: says {pattern!r} {found} times, not {times}')
    return problems + [said] if problems else []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--root', type=pathlib.Path, required=True)
    parser.add_argument('--build', type=pathlib.Path, required=True)
    options = parser.parse_args()
    sys.path.insert(0, str(options.root / '.ci'))
    from readme_commands import commands

    found = commands((options.root / 'README.md').read_text())
    problems = [f'{name}: nobody knows what it has to say: tell {pathlib.Path(__file__).name}' for name in found.keys() - EXPECTED.keys() - ELSEWHERE]
    problems += [f'{name}: README.md has no such command' for name in EXPECTED.keys() - found.keys()]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / 'build').symlink_to(options.build)
        for name in sorted(found.keys() & EXPECTED.keys()):
            problems += problems_of(name, found[name], folder)
    print('\n'.join(problems) or f'{len(EXPECTED)} commands do what README.md says')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
