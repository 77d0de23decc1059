"""Whole PyTorch jobs, four processes over gloo, whose ranks find each other through rollcall's servers."""
from suite import BUILD, HERE, PYTHON, Case, Process, client, main

WORLD = 4
LIMIT = 150  # s: four interpreters that load PyTorch, on a machine that has other things to do


class Jobs(Case):
    def start(self, port, attempt, *arguments):
        return [self.watch(Process([PYTHON, HERE / 'job.py', *arguments], {
            'RANK': str(r), 'WORLD_SIZE': str(WORLD), 'LOCAL_RANK': str(r), 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port),
            'TORCHELASTIC_USE_AGENT_STORE': 'True', 'TORCHELASTIC_RESTART_COUNT': str(attempt),
        })) for r in range(WORLD)]

    def launch(self, *arguments, options=()):
        return self.watch(Process([BUILD / 'examples' / 'rollcall-run', '-n', WORLD, *options, PYTHON, HERE / 'job.py', *arguments]))

    def test_a_job_finds_the_sums_with_our_server_as_the_agent_s_store(self):
        for rank, process in enumerate(self.start(self.rollcall_server().port, 0)):
            self.assertEqual(self.assertEnds(process, limit=LIMIT), f'rank {rank} of 4: sum 10\n')

    def test_an_elastic_restart_on_the_same_server_while_a_rank_of_the_first_attempt_lingers(self):
        server = self.rollcall_server()
        watcher = self.torch()
        watcher(client(server.port))
        first = self.start(server.port, 0, 'prefix', 'restarts')
        for rank, process in enumerate(first):
            self.assertEqual(process.line(LIMIT), f'rank {rank} of 4: sum 10')
        self.assertEnds(first[1], status=7)
        for process in (first[0], first[3]):  # these notice, as their agents would make them
            process.kill()
        for rank, process in enumerate(self.start(server.port, 1, 'prefix', 'restarts')):
            self.assertEqual(self.assertEnds(process, limit=LIMIT), f'rank {rank} of 4: sum 10\n')
        watcher("s.add('attempt/1/arrivals', 4)")
        watcher("s.set('the others are through', '')")
        self.assertEqual(self.assertEnds(first[2]), 'late: 1\n')
        self.assertEqual(watcher("s.get('attempt/1/arrivals')"), b'4')

    def test_a_job_under_rollcall_run_finds_the_sums(self):
        output = self.assertEnds(self.launch(options=('--host-store',)), limit=LIMIT)
        self.assertEqual(sorted(output.splitlines()), [f'[{r}] rank {r} of 4: sum 10' for r in range(WORLD)])

    def test_rollcall_run_starts_a_job_again_that_has_a_rank_slow_to_notice(self):
        job = self.launch('restarts', options=('--host-store', '--max-restarts', '1', '--grace', '0.1'))
        output = self.assertEnds(job, limit=LIMIT)
        self.assertEqual(sorted(output.splitlines()), sorted(2 * [f'[{r}] rank {r} of 4: sum 10' for r in range(WORLD)]))


if __name__ == '__main__':
    main()
