"""rollcall's client, every operation of it, against both of PyTorch's servers: the cases of client.cpp, and the commands of rollcall-cli.
And against ours, so that a case that fails everywhere is told from a difference."""
from suite import BUILD, Case, Process, main

# Words, exit status, output.
COMMANDS = [
    ('get k', 1, ''), ('set k v', 0, ''), ('get k', 0, 'v\n'), ('append k w', 0, ''), ('get --wait k', 0, 'vw\n'),
    ('add n', 0, '1\n'), ('add n 41', 0, '42\n'), ('add k', 4, ''),
    ('cas new a b', 1, ''), ('cas k vw x', 0, 'x\n'), ('cas k vw y', 1, 'x\n'),
    ('mset a 1 b 2', 0, ''), ('mget b a', 0, '2\n1\n'), ('mget a z b', 1, '1\n2\n'),
    ('check a b', 0, 'true\n'), ('check a z', 1, 'false\n'),
    ('wait a b', 0, ''), ('--timeout 0.5 wait a z', 3, ''), ('delete a z', 0, '1\n'), ('delete a', 1, '0\n'),
    ('keys', 0, 'b\nk\nn\n'), ('num-keys', 0, '3\n'),
    ('barrier --rank 0 --world 1', 0, '1\n'), ('--timeout 0.5 barrier --name b --rank 0 --world 2', 1, ''),
]
QUEUES = [('pop q', 1, ''), ('push q item', 0, ''), ('len q', 0, '1\n'), ('pop --wait q', 0, 'item\n'),
          ('--timeout 0.5 pop --wait q', 3, '')]
NO_QUEUES = [('push q item', 4, ''), ('len q', 4, ''), ('pop q', 4, ''), ('get k', 0, 'x\n')]


class Cases(Case):
    def run_against(self, kind, *arguments):
        server = self.server(kind)
        output = self.assertEnds(self.program('client', *arguments, environment={
            'ROLLCALL_INTEROP_PORT': str(server.port), 'ROLLCALL_INTEROP_PID': str(server.pid), 'ROLLCALL_INTEROP_SERVER': kind,
        }), limit=300)
        print(f'\n{output.strip().splitlines()[-1]}')
        self.assertNotIn('No test', output)
        return server

    def test_pytorch_libuv_server(self):
        self.run_against('libuv')

    def test_pytorch_legacy_server(self):
        self.run_against('legacy')

    def test_rollcall_server(self):
        self.run_against('rollcall')

    def test_rollcall_cli(self):
        for kind in ('libuv', 'legacy', 'rollcall'):
            port = self.server(kind).port
            for words, status, output in COMMANDS + (NO_QUEUES if kind == 'legacy' else QUEUES):
                with self.subTest(server=kind, command=words):
                    program = [BUILD / 'examples' / 'rollcall-cli', '--url', f'tcp://127.0.0.1:{port}', *words.split()]
                    self.assertEqual(self.assertEnds(self.watch(Process(program)), status=status), output)

    def test_servers_that_die(self):
        for kind in ('libuv', 'legacy', 'rollcall'):
            with self.subTest(server=kind):
                self.run_against(kind, '[.end]').kill()


if __name__ == '__main__':
    main()
