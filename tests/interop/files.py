"""One file for PyTorch's FileStores and our file_stores: format, locks, counts of members, removal; in both directions."""
import pathlib
import tempfile

from suite import BUILD, Case, Process, main


def store(path, world=-1, name='s'):
    """The statement that opens PyTorch's FileStore."""
    return f'{name} = dist.FileStore({str(path)!r}, {world})\n{name}.set_timeout(seconds(30))'


class Files(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='rollcall-interop-')
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / 'store'

    def ours(self, world, *commands):
        return self.watch(Process([BUILD / 'tests' / 'file_member', self.path, world, *commands], pipe_input=True))

    def theirs(self, world=-1):
        peer = self.torch()
        peer(store(self.path, world))
        return peer

    def test_values_in_both_directions(self):
        theirs = self.theirs()
        theirs("s.set('theirs', 'v'); s.set('empty', ''); s.add('n', 5); s.set('gone', 'x'); s.delete_key('gone')")
        ours = self.ours(-1, 'get', 'theirs', 'get', 'empty', 'add', 'n', '-7', '1', 'find', 'gone', 'set', 'ours', 'w', 'get', 'answer')
        self.assertEqual([ours.line() for _ in range(5)], ['got v', 'got ', 'sum -2', 'none', 'set'])
        self.assertEqual(theirs("(s.get('ours'), s.get('n'), s.add('n', 1), s.check(['gone']), s.compare_set('ours', 'w', 'x'))"),
                         (b'w', b'-2', -1, False, b'x'))
        theirs("s.set('answer', b'\\x00\\xff')")
        self.assertEqual(self.assertEnds(ours), 'got \x00\ufffd\n')

    def test_theirs_has_keys_of_any_length(self):
        theirs = self.theirs()
        theirs("s.set('x' * 20_000, 'v'); s.set('k', 'w')")
        ours = self.ours(-1, 'get', 'k', 'keys', 'set', 'ours', 'v')
        self.assertEqual(self.assertEnds(ours), 'got w\nkeys 2\nset\n')
        self.assertEqual(theirs("(s.get('ours'), s.get('x' * 20_000))"), (b'v', b'v'))

    def test_each_wakes_the_other(self):
        theirs = self.theirs()
        theirs.begin("result = s.get('a')")
        ours = self.ours(-1, 'set', 'a', '1', 'get', 'b', 'set', 'c', '3')
        self.assertEqual(theirs.end(), b'1')
        self.assertEqual(ours.line(), 'set')
        theirs("s.set('b', '2')")
        theirs("s.wait(['c'], seconds(30))")
        self.assertEqual(self.assertEnds(ours), 'got 2\nset\n')

    def test_a_barrier_of_ranks_of_both_kinds(self):
        ours = [self.ours(4, 'barrier', 'mixed', r) for r in (1, 3)]
        theirs = [self.theirs(4) for _ in range(2)]
        for rank, peer in zip((0, 2), theirs):
            peer.begin(f"dist.distributed_c10d._store_based_barrier({rank}, s, 'mixed', 4, seconds(30))")
        for peer in theirs:
            peer.end()
        for program in ours:
            self.assertEqual(self.assertEnds(program), 'passed\n')
        self.assertTrue(self.path.exists())
        theirs[0]('del s')
        self.assertTrue(self.path.exists())
        theirs[1]('del s')
        self.assertFalse(self.path.exists())

    def test_ours_removes_the_file_as_the_last(self):
        theirs = self.theirs(2)
        ours = self.ours(2, 'set', 'k', 'v', 'stay')
        self.assertEqual([ours.line(), ours.line()], ['set', 'here'])
        self.assertEqual(theirs("s.get('k')"), b'v')
        theirs('del s')
        self.assertTrue(self.path.exists())
        ours.process.stdin.close()
        ours.process.stdin = None
        self.assertEnds(ours)
        self.assertFalse(self.path.exists())

    def test_nobody_loses_a_count(self):
        each, members = 300, 4
        ours = [self.ours(-1, 'add', 'n', '1', each) for _ in range(members)]
        theirs = [self.theirs() for _ in range(members)]
        for peer in theirs:
            peer.begin(f"for _ in range({each}): s.add('n', 1)")
        for peer in theirs:
            peer.end()
        for program in ours:
            self.assertEnds(program)
        self.assertEqual(theirs[0]("s.add('n', 0)"), 2 * members * each)


if __name__ == '__main__':
    main()
