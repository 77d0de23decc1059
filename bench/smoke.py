"""Every subcommand of rollcall-bench at small sizes: it ends well, and what it counts is right. No time is judged."""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

BENCH = sys.argv[1]
LIMIT = 120  # s, for each run
problems = []


def run(name, *arguments, status=0):
    """The JSON of one run, or an empty object where it went wrong."""
    try:
        p = subprocess.run([BENCH, '--json', *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        problems.append(f'{name}: not over after {LIMIT} s')
        return {}
    if p.returncode != status:
        problems.append(f'{name}: ends with {p.returncode}: {p.stderr.strip()[-500:]} {p.stdout.strip()[-1500:]}')
    try:
        return json.loads(p.stdout)
    except ValueError:
        problems.append(f'{name}: prints no JSON: {p.stdout[-500:]}')
        return {}


def check(name, condition):
    if not condition:
        problems.append(name)


def main():
    both = 2
    out = run('init', 'init', '--clients', 40, '--procs', 2)
    check('init: two servers, nobody failed', [r['server'] for r in out.get('rows', [])] == ['rollcall', 'floor'] and out['failed'] == 0)
    check('init: it says on which machine', {'processor', 'compiler', 'flags', 'commit'} <= set(out.get('machine', {})))

    out = run('storm', 'storm', '--clients', 60, '--runs', 1)
    check('storm: all were accepted once', [r.get('accepted') for r in out.get('rows', [])] == [60] * both)
    check('storm: compared with the floor', math.isfinite(out.get('p99.9_to_floor', math.nan)))

    for kind, servers, requests in (('store-based', 2, 3), ('seed', 2, 3), ('roll', 1, 5)):
        out = run(f'barrier {kind}', 'barrier', '--kind', kind, '--clients', 20, '--rounds', 2)
        rows = out.get('rows', [])
        check(f'barrier {kind}: {servers} servers', len(rows) == servers and out['failed'] == 0)
        check(f'barrier {kind}: at least {requests} requests a rank', all(r['requests_per_client'] >= requests for r in rows))

    out = run('ops', 'ops', '--clients', 60, '--each', 2000, '--keys', 3000, '--awaited', 500)
    rows = out.get('rows', [])
    check('ops: every operation, shape and server', len(rows) == both * (5 + 4 + 5))
    ours = [r for r in rows if r['server'] == 'rollcall']
    check('ops: the server allocates nothing', out.get('server_allocations') == 0 and all(r['server_allocations_per_op'] == 0 for r in ours))
    check('ops: one read and one write for one operation at a time', all(r['server_reads_per_op'] <= 1 and r['server_writes_per_op'] <= 1 for r in ours if r['depth'] == 1))
    check('ops: batches at depth 16', all(r['server_writes_per_op'] < 0.5 for r in ours if r['depth'] == 16))
    check('ops: all keys were deleted', out.get('keys_left') == 0)

    out = run('fanout', 'fanout', '--clients', 30, '--rounds', 2)
    check('fanout: all were woken', out.get('failed') == 0 and all(r['woken']['samples'] == 60 for r in out['rows']))
    check('fanout: the witness was answered', all(r['witness']['samples'] > 0 and r['witness_connects']['samples'] > 0 for r in out.get('rows', [])))

    out = run('idle', 'idle', '--clients', 100, '--servers', 'rollcall')
    row = (out.get('rows') or [{}])[0]
    check(f'idle: within the budget: {row}', row.get('idle_bytes', 1e9) <= 512 and row.get('waiting_bytes', 1e9) <= 768)
    check(f'idle: back to the start: {row}', row.get('left_blocks_total', 99) <= 4)

    out = leave()
    check('leave: a ratio for sockets and for memory', set(out.get('doubling_ratio', {})) == {'rollcall', 'in memory'})

    out = run('client', 'client', '--clients', 100, '--each', 500)
    allocations = {r['op']: r['allocations'] for r in out.get('operations', [])}
    nothing = ('add', 'set, 64 bytes', 'set, 4096 bytes', 'check', 'wait, existing', 'get_into, 64 bytes', 'append')
    check(f'client: operations allocate no more than what they return: {allocations}',
          all(allocations.get(op) == 0 for op in nothing) and all(allocations.get(op) == 1 for op in ('get, 64 bytes', 'compare_set, 64 bytes')))
    check('client: 16 operations at once are one write and one read', out.get('sixteen_at_once', {}).get('writes') == 1 and out['sixteen_at_once']['reads'] == 1)
    check('client: an arrival is one write', out.get('arrival', {}).get('writes') == 1)
    check('client: a descriptor a store', 100 <= out.get('stores', {}).get('descriptors', 0) <= 104 and out['stores']['connections_left_at_server'] == 0)

    for kind in ('roll', 'store-based'):
        out = run(f'scale {kind}', 'scale', '--kind', kind, '--clients', 256, '--from', 16, '--compare', 256)
        rows = out.get('rows', [])
        check(f'scale {kind}: three worlds, all compared with sockets', [r['ranks'] for r in rows] == [16, 64, 256] and all('sockets' in r for r in rows))
        check(f'scale {kind}: messages and bytes as over sockets', all(r['sockets']['messages_and_bytes_equal'] for r in rows))
        check(f'scale {kind}: allocations as over sockets', all(r['sockets']['allocations_within_2_percent'] for r in rows))
        fit = out.get('fit', {}).get('barrier', {})
        check(f'scale {kind}: requests are linear', fit.get('requests', {}).get('worst_relative_error', 1) < 0.01)

    check('a server that does not exist is refused', subprocess.run([BENCH, 'idle', '--servers', 'nobody'], capture_output=True).returncode == 2)
    figures()
    print('\n'.join(problems) or 'rollcall-bench counts what it should')
    return 1 if problems else 0


def leave():
    """Its status judges times, which mean nothing at this size."""
    p = subprocess.run([BENCH, '--json', 'leave', '--clients', '64', '--from', '32', '--runs', '1'], capture_output=True, text=True, timeout=LIMIT)
    check('leave: it ends', p.returncode in (0, 1))
    return json.loads(p.stdout)


def figures():
    """README's command for the plots, at sizes that take a moment."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        p = subprocess.run([pathlib.Path(__file__).parent / 'figures', '--build', pathlib.Path(BENCH).parent.parent, '--out', out, '--sizes', '20,40',
                            '--projected', '80', '--servers', 'rollcall,legacy,floor', '--runs', '1', '--rounds', '2'],
                           capture_output=True, text=True, timeout=LIMIT)
        check(f'figures: ends with {p.returncode}: {p.stderr[-500:]}', p.returncode == 0)
        if p.returncode != 0:
            return
        for name in ('init.svg', 'barrier.svg'):
            drawing = (out / name).read_text()
            check(f'figures: {name} has every server', all(f'>{s}<' in drawing for s in ('rollcall', 'rollcall, legacy', 'floor (bare epoll)')))
        check('figures: keeps what it drew', json.loads((out / 'raw.json').read_text()))


if __name__ == '__main__':
    sys.exit(main())
