"""A process with PyTorch that does what its standard input says: one JSON line a request, one an answer. suite.py is the other side.

A process each, because some of PyTorch's calls keep the interpreter's lock while they wait.
"""
import ctypes
import datetime
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # never outlive the suite
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)  # what libraries print is no answer

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def seconds(n):
    return datetime.timedelta(seconds=n)


def names():
    return {'torch': torch, 'dist': dist, 'TCPStore': dist.TCPStore, 'PrefixStore': dist.PrefixStore, 'seconds': seconds, 'time': time}


def run(code, here):
    """An expression's value; of statements what they call `result`."""
    try:
        expression = compile(code, '<request>', 'eval')
    except SyntaxError:
        here.pop('result', None)
        exec(compile(code, '<request>', 'exec'), here)
        return here.pop('result', None)
    return eval(expression, here)


here = names()
for line in sys.stdin:
    code = json.loads(line)
    begun = time.monotonic()
    if code is None:  # as if it had just been started
        here.clear()
        here = names()
        answer = {'value': 'None'}
    else:
        try:
            answer = {'value': repr(run(code, here))}
        except Exception as e:
            answer = {'error': [k.__name__ for k in type(e).__mro__], 'text': str(e)}
    answer['took'] = time.monotonic() - begun
    print(json.dumps(answer), file=answers, flush=True)
