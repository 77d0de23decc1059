"""Jobs that have ranks of both kinds: PyTorch's and ours meet in one store, whoever serves it."""
import socket

from suite import BUILD, Case, Failed, Process, client, for_ours, main

SERVERS = ('rollcall', 'libuv', 'legacy')


class Mixed(Case):
    def ranks(self, what, port, ranks, world, *more):
        """Our side: a program a rank."""
        return [self.program('rank', what, port, r, world, *more) for r in ranks]

    def torch_ranks(self, port, count):
        peers = [self.torch() for _ in range(count)]
        for peer in peers:
            peer(client(port))
        return peers

    def until_arrived(self, port, generation, count):
        """Watches a roll call as a torch client."""
        watcher, = self.torch_ranks(port, 1)
        watcher(f"while int(s.get('roll/{generation}/count')) < {count}: time.sleep(0.005)")

    def test_a_rendezvous_by_one_url_whoever_is_rank_0(self):
        for serving in (0, 1):  # whether PyTorch's process is rank 0, or ours
            with self.subTest(torch_rank=serving):
                with socket.socket() as s:
                    s.bind(('127.0.0.1', 0))
                    url = f'tcp://127.0.0.1:{s.getsockname()[1]}'
                theirs, ours = serving, 1 - serving
                peer = self.torch()
                peer.begin(f'result = next(dist.rendezvous({url!r}, {theirs}, 2)); s = result[0]; result = result[1:]; '
                           f's.set("addr/{theirs}", "torch")')
                program = self.watch(Process([BUILD / 'examples' / 'barrier', '--init-method', url, '--rank', str(ours), '--world-size', '2',
                                              '--kind', 'seed', '--runs', '0', '--timeout', '60'], for_ours()))
                self.assertEqual(tuple(peer.end()), (theirs, 2))
                if ours == 0:
                    peer(f's.wait(["addr/{ours}"]); s = None')  # ours leaves last
                self.assertIn('(neighbour at torch)', self.assertEnds(program))

    def test_a_store_based_barrier(self):
        for kind in SERVERS:
            with self.subTest(server=kind):
                port = self.server(kind).port
                ours = self.ranks('store_based_barrier', port, (1, 3), 4)
                theirs = self.torch_ranks(port, 2)
                for rank, peer in zip((0, 2), theirs):
                    peer.begin(f"dist.distributed_c10d._store_based_barrier({rank}, s, 'mixed', 4, seconds(30))")
                for peer in theirs:
                    peer.end()
                for program in ours:
                    self.assertEnds(program)
                self.assertEqual(theirs[0]("(s.get('store_based_barrier_key:mixed'), s.get('store_based_barrier_key:mixed:last_worker'))"),
                                 (b'4', b'1'))

    def test_a_store_based_barrier_that_misses_one(self):
        running = []
        for kind in SERVERS:
            port = self.server(kind).port
            theirs, = self.torch_ranks(port, 1)
            theirs.begin("dist.distributed_c10d._store_based_barrier(0, s, 'mixed', 4, seconds(8))")
            running.append((kind, theirs, self.ranks('store_based_barrier', port, (1, 3), 4, 8)))
        for kind, theirs, ours in running:
            with self.subTest(server=kind):
                for program in ours:
                    self.assertIn('num_workers_joined=3', self.assertEnds(program, status=1))
                with self.assertRaises(Failed) as caught:  # PyTorch's looks every 10 s only
                    theirs.end()
                self.assertIn('num_workers_joined=3', caught.exception.text)

    def test_the_server_s_barrier(self):
        for kind in SERVERS:
            with self.subTest(server=kind):
                port = self.server(kind).port
                ours = self.ranks('server_barrier', port, (0, 2), 4)
                theirs = self.torch_ranks(port, 2)
                for peer in theirs:
                    peer.begin("s.barrier('mixed', 4, seconds(30))")
                for peer in theirs:
                    peer.end()
                for program in ours:
                    self.assertEqual(self.assertEnds(program), 'ok \n')

    def test_an_all_gather(self):
        for kind in SERVERS:
            with self.subTest(server=kind):
                port = self.server(kind).port
                ours = self.ranks('all_gather', port, (0, 3), 4)
                theirs = self.torch_ranks(port, 2)
                for rank, peer in zip((1, 2), theirs):
                    peer.begin(f"s.set('gathered/{rank}', 'theirs {rank}')\n"
                               "result = [v.decode() for v in s.multi_get([f'gathered/{r}' for r in range(4)])]")
                all = ['ours 0', 'theirs 1', 'theirs 2', 'ours 3']
                for peer in theirs:
                    self.assertEqual(peer.end(), all)
                for program in ours:
                    self.assertEqual(self.assertEnds(program), f'ok {", ".join(all)}\n')

    def test_a_roll_call_on_any_server(self):
        for kind in SERVERS:
            with self.subTest(server=kind):
                port = self.server(kind).port
                for program in self.ranks('barrier', port, range(4), 4):
                    self.assertEqual(self.assertEnds(program), 'ok \n')
                # The next generation misses rank 2: the first limit decides for all.
                patient = self.ranks('barrier', port, (0, 1), 4)
                self.until_arrived(port, 1, 2)
                for program in [*patient, *self.ranks('barrier', port, (3,), 4, 1)]:
                    self.assertIn('1 of 4 missing: 2', self.assertEnds(program, status=1))
                for program in self.ranks('barrier', port, range(4), 4):  # and the one after it is whole
                    self.assertEqual(self.assertEnds(program), 'ok \n')

    def test_a_roll_call_in_which_an_earlier_attempt_lingers(self):
        for kind in SERVERS:
            with self.subTest(server=kind):
                port = self.server(kind).port
                old = self.ranks('barrier', port, (2,), 3, 60, 0)
                self.until_arrived(port, 0, 1)
                new = self.ranks('barrier', port, (0, 1, 2), 3, 60, 1)
                for program in new:
                    self.assertEqual(self.assertEnds(program), 'ok \n')
                self.assertIn('attempt 1', self.assertEnds(old[0], status=1))

    def test_our_workers_register_with_pytorch_s_owner(self):
        for kind in ('libuv', 'legacy'):
            with self.subTest(server=kind):
                owner, = [self.torch()]
                port = owner("import socket\nf = socket.socket(); f.bind(('127.0.0.1', 0))\nresult = f.getsockname()[1]")
                owner.begin(f"s = TCPStore('127.0.0.1', {port}, 4, True, seconds(60), use_libuv={kind == 'libuv'}, master_listen_fd=f.detach())\n"
                            "s.set('all here', 'said the owner')\n"
                            'result = s.num_keys()')
                ours = self.ranks('join', port, (1, 2), 4)
                worker = self.torch()
                worker(client(port, world_size=4))
                self.assertEqual(owner.end(), 2)  # init/ and its own: ours leave nothing that theirs would not
                for program in ours:
                    self.assertEqual(self.assertEnds(program), 'ok said the owner\n')

    def test_pytorch_s_workers_register_with_our_owner(self):
        ours = self.program('rank', 'own', 0, 0, 4)
        port = int(ours.line().split()[1])
        theirs = [self.torch() for _ in range(2)]
        for peer in theirs:
            peer(client(port, world_size=4))
            peer.begin("s.get('all here')")
        late, = self.ranks('join', port, (3,), 4)
        for peer in theirs:
            self.assertEqual(peer.end(), b'1')
            peer('s = None')
        self.assertEqual(self.assertEnds(late), 'ok 1\n')
        self.assertEqual(self.assertEnds(ours), 'ok 1 keys\n')  # it stays until the last has gone

    def test_an_owner_says_how_many_of_pytorch_s_workers_came(self):
        ours = self.program('rank', 'own', 0, 0, 4, 3)
        port = int(ours.line().split()[1])
        peer = self.torch()
        peer(client(port, world_size=4))
        self.assertIn('2 of 4 joined', self.assertEnds(ours, status=1))


if __name__ == '__main__':
    main()
