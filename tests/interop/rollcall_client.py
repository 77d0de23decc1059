"""rollcall's client, every operation of it, against both of PyTorch's servers: the cases of client.cpp. And against ours, so that a case
that fails everywhere is told from a difference."""
from suite import Case, main


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

    def test_servers_that_die(self):
        for kind in ('libuv', 'legacy', 'rollcall'):
            with self.subTest(server=kind):
                self.run_against(kind, '[.end]').kill()


if __name__ == '__main__':
    main()
