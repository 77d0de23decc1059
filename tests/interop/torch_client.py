"""PyTorch's client, every method of it, against rollcall-server. PyTorch's own servers are asked the same where they can answer, so that
what is expected here is the reference's and not ours."""
import dataclasses
import pathlib
import textwrap
import time

from suite import Case, client, main

# Every method of torch.distributed.TCPStore and the tests that use it; a method that appears in a later PyTorch is missed by the first.
METHODS = {
    'add', 'append', 'barrier', 'check', 'clone', 'compare_set', 'delete_key', 'get', 'has_extended_api', 'host', 'libuvBackend', 'list_keys',
    'multi_get', 'multi_set', 'num_keys', 'port', 'queue_len', 'queue_pop', 'queue_push', 'set', 'set_timeout', 'timeout', 'wait',
}


@dataclasses.dataclass
class Raises:
    kind: str
    text: str
    at_least: float = 0.0  # s


SHORT = 'seconds(0.2)'
LARGEST = 8 << 20  # bytes of one value (protocol 6)

# What to call on a store `s`, in order, and what comes of it. What must fail is given a limit of 0.2 s.
# {p}: what a PrefixStore puts before its keys.
OPERATIONS = [
    ("s.set('k', 'v')", None),
    ("s.get('k')", b'v'),
    ("s.set('k', '')", None),
    ("s.get('k')", b''),
    (r"s.set('k', b'\x00\xff/\n')", None),
    ("s.get('k')", b'\x00\xff/\n'),
    ("s.set('', 'the empty key')", None),
    ("s.get('')", b'the empty key'),
    ("s.set('ключ', 'ü')", None),
    ("s.get('ключ')", 'ü'.encode()),
    # add: decimal text, as strtoll reads it (protocol 4.2)
    ("s.add('n', 5)", 5),
    ("s.add('n', -7)", -2),
    ("s.get('n')", b'-2'),
    ("s.add('zero', 0)", 0),
    ("s.get('zero')", b'0'),
    ("s.add('high', 9223372036854775807)", 9223372036854775807),
    ("s.add('high', -9223372036854775807)", 0),
    ("s.add('low', -9223372036854775808)", -9223372036854775808),
    ("s.set('t', ' 12xyz')", None),
    ("s.add('t', 1)", 13),
    ("s.get('t')", b'13'),
    # compare_set: all rows of protocol 4.1
    ("s.compare_set('cas', 'x', 'new')", b'x'),
    ("s.check(['cas'])", False),
    ("s.compare_set('cas', '', 'one')", b'one'),
    ("s.compare_set('cas', '', 'two')", b'one'),
    ("s.compare_set('cas', 'zero', 'two')", b'one'),
    ("s.compare_set('cas', 'one', 'two')", b'two'),
    ("s.compare_set('cas', 'two', '')", b''),
    ("s.compare_set('cas', '', 'three')", b'three'),
    # check and wait
    ("s.check([])", True),
    ("s.check(['k', 'n', 'k'])", True),
    ("s.check(['k', 'missing'])", False),
    ("s.wait(['k', 'n'])", None),
    (f"s.wait(['k'], {SHORT})", None),
    (f"s.wait([], {SHORT})", None),
    # deletion
    ("s.delete_key('k')", True),
    ("s.delete_key('k')", False),
    ("s.check(['k'])", False),
    # the extended ones
    ("s.has_extended_api()", True),
    ("s.append('log', 'a')", None),
    ("s.append('log', 'bc')", None),
    ("s.append('log', '')", None),
    ("s.get('log')", b'abc'),
    ("s.multi_set(['m1', 'm2', 'm1'], ['1', '22', 'last'])", None),
    ("s.multi_get(['m2', 'm1', 'm2'])", [b'22', b'last', b'22']),
    ("s.multi_get([])", []),
    ("s.multi_set([], [])", None),
    ("s.multi_set(['a'], [])", Raises('RuntimeError', '')),
    # time-outs: what, how long, and that the next reply is the right one
    ("s.get('missing')", Raises('DistStoreError', 'wait timeout after 200ms, keys: /{p}missing', 0.2)),
    ("s.add('n', 3)", 1),
    ("s.wait(['n', 'missing', 'm1'])", Raises('DistStoreError', 'wait timeout after 200ms, keys: /{p}n, /{p}missing, /{p}m1', 0.2)),
    ("s.get('n')", b'1'),
    ("s.wait(['missing'], seconds(0.3))", Raises('DistStoreError', 'wait timeout after 300ms, keys: /{p}missing', 0.3)),
    ("s.check(['missing'])", False),
    ("s.wait(['missing'], seconds(0))", Raises('DistStoreError', 'wait timeout after 0ms')),
    ("s.num_keys() > 0", True),
    ("s.multi_get(['n', 'missing'])", Raises('DistStoreError', 'wait timeout after 200ms, keys: /{p}n, /{p}missing', 0.2)),
    ("s.multi_get(['n', 'm1'])", [b'1', b'last']),
    # what is large
    (f"s.set('big', b'x' * {LARGEST})", None),
    (f"s.get('big') == b'x' * {LARGEST}", True),
    (f"s.append('big', b'y' * {LARGEST})", None),
    (f"s.get('big') == b'x' * {LARGEST} + b'y' * {LARGEST}", True),
    (f"s.compare_set('big2', '', b'z' * {LARGEST}) == b'z' * {LARGEST}", True),
    (f"s.multi_set(['big3', 'big4'], [b'a' * {LARGEST}, b'b' * {LARGEST}])", None),
    (f"s.multi_get(['big4', 'big3']) == [b'b' * {LARGEST}, b'a' * {LARGEST}]", True),
    ("[s.delete_key(k) for k in ('big', 'big2', 'big3', 'big4')]", [True] * 4),
    ("s.set('l' * 8000, 'long')", None),
    ("s.get('l' * 8000)", b'long'),
    ("s.multi_set([f'many/{i}' for i in range(20000)], [str(i) for i in range(20000)])", None),
    ("s.multi_get([f'many/{i}' for i in range(20000)]) == [str(i).encode() for i in range(20000)]", True),
    ("s.check([f'many/{i % 20000}' for i in range(100000)])", True),
    ("s.wait([f'many/{i % 20000}' for i in range(100000)])", None),
    ("sum(s.delete_key(f'many/{i}') for i in range(20000))", 20000),
]
QUEUES = [
    ("s.queue_len('q')", 0),
    ("s.queue_push('q', 'first')", None),
    (r"s.queue_push('q', b'\x00second')", None),
    ("s.queue_push('q', '')", None),
    ("s.queue_len('q')", 3),
    ("s.queue_pop('q')", b'first'),
    ("s.queue_pop('q', False)", b'\x00second'),
    ("s.check(['q'])", True),
    (f"s.wait(['q'], {SHORT})", None),
    ("s.delete_key('q')", False),  # a queue is no key
    ("s.queue_len('q')", 1),
    ("s.queue_pop('q')", b''),
    ("s.queue_len('q')", 0),
]
EMPTY_QUEUE = [
    ("s.queue_pop('none', False)", Raises('QueueEmptyError', 'queue is empty')),
    ("s.queue_pop('none')", Raises('DistStoreError', 'wait timeout after 200ms, keys: /{p}none', 0.2)),
    ("s.check(['none'])", False),
    (f"s.queue_push('none', b'x' * {LARGEST})", None),
    (f"s.queue_pop('none') == b'x' * {LARGEST}", True),
]


class Operations(Case):
    def apply(self, peer, table, prefix=''):
        for code, expected in table:
            if isinstance(expected, Raises):
                peer('s.set_timeout(seconds(0.2))')
                took = self.assertFails(expected.kind, expected.text.replace('{p}', prefix), peer, code)
                peer('s.set_timeout(seconds(30))')
                self.assertGreaterEqual(took, expected.at_least, code)
                self.assertLess(took, expected.at_least + 5, code)
            else:
                self.assertEqual(peer(code), expected, code)

    def test_no_method_is_forgotten(self):
        there = set(self.torch()("[n for n in dir(TCPStore) if not n.startswith('_')]"))
        self.assertEqual(there - METHODS, set(), 'a method that no test here uses')
        source = pathlib.Path(__file__).read_text().split('METHODS = ', 1)[1].split('}', 1)[1]
        self.assertEqual({m for m in METHODS if f'.{m}' not in source}, set(), 'methods that no test here uses')

    def test_every_operation_of_a_plain_store(self):
        for kind in ('rollcall', 'libuv', 'legacy'):
            with self.subTest(server=kind):
                peer = self.torch()
                peer(client(self.server(kind).port))
                self.apply(peer, OPERATIONS)

    def test_every_operation_of_a_prefix_store(self):
        for kind in ('rollcall', 'libuv'):
            with self.subTest(server=kind):
                peer = self.torch()
                peer(client(self.server(kind).port, name='plain'))
                peer("s = PrefixStore('outer', PrefixStore('in/ner', plain))")
                self.apply(peer, OPERATIONS + QUEUES + EMPTY_QUEUE, prefix='in/ner/outer/')
                self.assertEqual(peer("plain.get('in/ner/outer/n')"), b'1')
                self.assertFalse(peer("plain.check(['n'])"))
                self.assertIn('in/ner/outer/n', peer('plain.list_keys()'))

    def test_every_operation_of_a_clone(self):
        server = self.rollcall_server()
        peer = self.torch()
        peer(client(server.port, name='first'))
        peer('s = first.clone()')
        self.apply(peer, OPERATIONS + QUEUES + EMPTY_QUEUE)
        self.assertEqual(peer("first.get('n')"), b'1')
        peer('first = None')  # a clone lives by itself
        self.assertEqual(peer("s.get('n')"), b'1')

    def test_queues(self):
        for kind in ('rollcall', 'libuv'):
            with self.subTest(server=kind):
                peer = self.torch()
                peer(client(self.server(kind).port))
                self.apply(peer, QUEUES + EMPTY_QUEUE)

    def test_what_a_store_tells_of_itself(self):
        server = self.rollcall_server()
        peer = self.torch()
        peer(client(server.port, limit=7))
        self.assertEqual(peer('(s.host, s.port, s.timeout.total_seconds(), s.libuvBackend)'), ('127.0.0.1', server.port, 7, True))
        peer('s.set_timeout(seconds(0.1))')
        self.assertEqual(peer('s.timeout.total_seconds()'), 0.1)
        self.assertFails('DistStoreError', 'wait timeout after 100ms', peer, "s.get('x')")
        self.assertEqual(peer('c = s.clone()\nresult = (c.host, c.port, c.timeout.total_seconds())'), ('127.0.0.1', server.port, 0.1))

    def test_list_keys_shows_what_users_wrote_and_num_keys_counts_all(self):
        for kind in ('rollcall', 'libuv', 'legacy'):
            with self.subTest(server=kind):
                peer = self.torch()
                peer(client(self.server(kind).port, world_size=3))  # which registers: init/ is a key, and not a user's
                self.assertEqual(peer('(s.list_keys(), s.num_keys())'), ([], 1))
                peer("s.set('b', '1'); s.add('a', 1); s.set('gone', ''); s.append('/', 'x'); s.delete_key('gone')")
                if kind != 'legacy':
                    peer("s.queue_push('q', 'x')")  # no key
                self.assertEqual(peer('(sorted(s.list_keys()), s.num_keys())'), (['/', 'a', 'b'], 4))

    def test_registration_counts_every_worker_and_nobody_else(self):
        server = self.rollcall_server()
        peers = [self.torch() for _ in range(3)]
        for peer in peers[:2]:
            peer(client(server.port, world_size=2))
        peers[2](client(server.port))
        peers[2](client(server.port, name='t', world_size=2, wait_for_workers=False))
        self.assertEqual(peers[2]('s.num_keys()'), 1)


class Together(Case):
    """Several torch clients, each in its process."""

    def two(self):
        server = self.rollcall_server()
        a, b = self.torch(), self.torch()
        a(client(server.port))
        b(client(server.port))
        return a, b

    def test_a_wait_is_woken_by_whatever_makes_the_key(self):
        a, b = self.two()
        for n, change in enumerate(("s.set('{k}', '1')", "s.add('{k}', 1)", "s.append('{k}', '1')", "s.multi_set(['{k}'], ['1'])",
                                    "s.compare_set('{k}', '', '1')", "s.queue_push('{k}', '1')", "s.barrier('{k}', 1)")):
            a.begin(f"s.wait(['key{n}'])")
            time.sleep(0.02)
            b(change.replace('{k}', f'key{n}'))
            a.end(20)

    def test_get_waits_for_the_key(self):
        a, b = self.two()
        a.begin("s.get('late')")
        b("time.sleep(0.1); s.set('late', 'here')")
        self.assertEqual(a.end(), b'here')
        self.assertGreaterEqual(a.took, 0.05)
        a.begin("s.multi_get(['x', 'late', 'y'])")
        b("s.set('y', '2'); time.sleep(0.1); s.set('x', '1')")
        self.assertEqual(a.end(), [b'1', b'here', b'2'])

    def test_a_blocking_pop_waits_for_an_item(self):
        a, b = self.two()
        a.begin("s.queue_pop('q')")
        b("time.sleep(0.1); s.queue_push('q', 'item')")
        self.assertEqual(a.end(), b'item')
        self.assertEqual(b("s.queue_len('q')"), 0)

    def test_a_barrier_lets_all_go_once_all_are_there(self):
        for kind in ('rollcall', 'libuv', 'legacy'):
            with self.subTest(server=kind):
                port = self.server(kind).port
                peers = [self.torch() for _ in range(3)]
                for peer in peers:
                    peer(client(port))
                for round in range(5):
                    for peer in peers:
                        peer.begin(f"s.barrier('b{round}', 3)")
                    for peer in peers:
                        peer.end(20)
                for peer in peers[:2]:
                    self.assertFails('DistStoreError', 'barrier timeout after 100ms, key: late', peer, "s.barrier('late', 3, seconds(0.1))")
                self.assertEqual(peers[0]("s.get('late')"), b'2')  # those who gave up stay counted
                peers[2]("s.barrier('late', 3)")
                peers[0]("s.barrier('late', 3)")  # and once complete it stays so: one use a key
                # A PrefixStore's barrier is another one: made of add, set and wait (rendezvous 1).
                self.assertFails('DistStoreError', 'wait timeout after 100ms, keys: /p/b/last_member', peers[0],
                                 "PrefixStore('p', s).barrier('b', 2, seconds(0.1))")
                peers[1].begin("PrefixStore('p', s).barrier('b2', 2)")
                peers[0]("PrefixStore('p', s).barrier('b2', 2)")
                peers[1].end(20)

    def test_time_outs_that_race_with_completions_leave_the_stream_in_step(self):
        a, b = self.two()
        rounds = 150
        a.begin(textwrap.dedent(f'''
            woken = 0
            for i in range({rounds}):
                s.set(f'ask{{i}}', '')
                try:
                    s.wait([f'race{{i}}'], seconds(0.004))  # the other side answers at about that time
                    woken += 1
                except dist.DistStoreError:
                    pass
                assert s.add('n', 1) == i + 1
                assert s.get('n') == str(i + 1).encode()
            result = woken
        '''))
        b(textwrap.dedent(f'''
            for i in range({rounds}):
                s.wait([f'ask{{i}}'])
                time.sleep(0.003 + 0.002 * (i % 10) / 10)
                s.set(f'race{{i}}', '')
        '''))
        woken = a.end()
        self.assertGreater(woken, 0)
        self.assertLess(woken, rounds)

    def test_eight_threads_with_clones(self):
        server = self.rollcall_server()
        a, b = self.torch(), self.torch()
        work = textwrap.dedent('''
            import threading
            wrong = []
            def work(t, store):
                try:
                    for i in range(200):
                        store.add('sum', t)
                        store.set(f'{me}/{t}/{i}', str(i * t))
                        assert store.get(f'{me}/{t}/{i}') == str(i * t).encode()
                        store.append(f'log/{t}', 'x')
                        assert store.check([f'{me}/{t}/{i}'])
                        store.queue_push('work', f'{me}/{t}/{i}')
                    store.wait([f'{other}/{t}/{i}' for i in range(0, 200, 17)])
                except Exception as e:
                    wrong.append(f'{t}: {e!r}')
            threads = [threading.Thread(target=work, args=(t, s.clone())) for t in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
            result = wrong
        ''')
        for peer, me, other in ((a, 'a', 'b'), (b, 'b', 'a')):
            peer(client(server.port))
            peer(f'me, other = {me!r}, {other!r}')
            peer.begin(work)
        self.assertEqual([a.end(), b.end()], [[], []])
        self.assertEqual(a("s.get('sum')"), str(2 * 200 * sum(range(8))).encode())
        self.assertEqual([len(v) for v in a("[s.get(f'log/{t}') for t in range(8)]")], [400] * 8)
        self.assertEqual(a("sorted(s.queue_pop('work').decode() for _ in range(s.queue_len('work')))"),
                         sorted(f'{m}/{t}/{i}' for m in 'ab' for t in range(8) for i in range(200)))
        self.assertEqual(a("s.queue_len('work')"), 0)

    def test_each_item_of_a_queue_goes_to_one_consumer(self):
        server = self.rollcall_server()
        consumers, producers = [self.torch() for _ in range(3)], [self.torch() for _ in range(2)]
        for peer in consumers + producers:
            peer(client(server.port))
        for peer in consumers:
            peer.begin(textwrap.dedent('''
                result = []
                while True:
                    try:
                        item = s.queue_pop('q')
                    except dist.QueueEmptyError:
                        continue  # PyTorch's client: another one popped between its WAIT and its POP (protocol 5)
                    if item == b'end': break
                    result.append(item.decode())
            '''))
        for p, peer in enumerate(producers):
            peer.begin(f"for i in range(300): s.queue_push('q', f'{p}/{{i}}')")
        for peer in producers:
            peer.end()
        for _ in consumers:
            producers[0]("s.queue_push('q', 'end')")
        got = [peer.end() for peer in consumers]
        self.assertEqual(sorted(sum(got, [])), sorted(f'{p}/{i}' for p in range(2) for i in range(300)))
        for items in got:  # first in, first out: each sees each producer's in order
            for p in '01':
                own = [int(i.split('/')[1]) for i in items if i[0] == p]
                self.assertEqual(own, sorted(own))

    def test_a_client_that_is_killed_while_it_waits_is_forgotten(self):
        a, b = self.two()
        a.begin("s.wait(['k', 'never'])")
        time.sleep(0.1)
        a.kill()
        b("s.set('k', '1')")
        self.assertEqual(b("s.add('n', 1)"), 1)

    def test_a_server_that_ends_is_an_error_at_once(self):
        server = self.rollcall_server()
        peer = self.torch()
        peer(client(server.port))
        peer.begin("s.wait(['never'])")
        time.sleep(0.05)
        server.kill()
        with self.assertRaises(Exception) as caught:
            peer.end(20)
        self.assertIn('DistNetworkError', caught.exception.kinds)
        self.assertFails('DistNetworkError', '', peer, client(server.port, limit=1), limit=30)

    def test_violations_close_that_connection_and_nobody_else_notices(self):
        server = self.rollcall_server()
        witness = self.torch()
        witness(client(server.port))
        witness("s.set('text', 'no number'); s.set('empty', '')")
        for code in ("s.add('text', 1)", "s.add('empty', 1)", "s.barrier('text', 2)",
                     f"s.set('k', b'x' * ({LARGEST} + 1)); s.get('k')",
                     "s.set('k' * 8192, ''); s.get('k')"):
            peer = self.torch()
            peer(client(server.port, limit=5))
            self.assertFails('DistNetworkError', '', peer, f'result = None\n{code}')
        self.assertEqual(witness("(s.get('text'), s.check(['k']), s.add('n', 1))"), (b'no number', False, 1))


if __name__ == '__main__':
    main()
