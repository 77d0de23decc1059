"""Where the three servers answer differently: PyTorch's legacy and libuv ones, and ours, by choice. Each row says why we chose so
(design.md 4, protocol.md 16), and is asked of all three, so that a PyTorch that changes is noticed as well as a rollcall that does."""
import dataclasses
import pathlib
import select
import socket
import struct
import time
import typing

from suite import Case, main

LIMIT = 20.0  # s; an answer that is due
SILENCE = 2.0  # s; after which an answer is taken to be missing. Ours is never expected to be silent: a busy machine fails nothing


def text(bytes_or_str):
    b = bytes_or_str.encode() if isinstance(bytes_or_str, str) else bytes_or_str
    return struct.pack('<Q', len(b)) + b


def request(opcode, *fields):
    return bytes([opcode]) + b''.join(fields)


def number(n):
    return struct.pack('<q', n)


def keys(*names):
    return struct.pack('<Q', len(names)) + b''.join(map(text, names))


MAGIC = struct.pack('<I', 0x3C85F7CE)
VALIDATE = request(0, MAGIC)
NONCE = struct.pack('<I', 0x01020304)  # its first byte is no answer to a WAIT
PING = request(13, NONCE)
CANCEL_WAIT = request(12)
NO = b'\x01'
YES = b'\x00'


def SET(k, v):
    return request(1, text(k), text(v))


def COMPARE_SET(k, expected, desired):
    return request(2, text(k), text(expected), text(desired))


def GET(k):
    return request(3, text(k))


def ADD(k, n):
    return request(4, text(k), number(n))


def CHECK(*k):
    return request(5, keys(*k))


def WAIT(*k):
    return request(6, keys(*k))


def APPEND(k, v):
    return request(9, text(k), text(v))


def MULTI_GET(*k):
    return request(10, keys(*k))


def MULTI_SET(*pairs):
    return request(11, struct.pack('<Q', len(pairs)), *(text(k) + text(v) for k, v in pairs))


def PUSH(k, v):
    return request(14, text(k), text(v))


def POP(k):
    return request(15, text(k))


class Peer:
    """A connection that speaks bytes."""

    def __init__(self, port, greeting=VALIDATE + PING, host='127.0.0.1'):
        self.socket = socket.create_connection((host, port), timeout=LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greeting == VALIDATE + PING:
            assert self.ask(greeting, 4) == NONCE
        elif greeting:
            self.send(greeting)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # closed in the middle: read() tells

    def read(self, n):
        """Exactly n bytes; 'closed' where the server ends the connection before."""
        got = b''
        while len(got) < n:
            try:
                piece = self.socket.recv(n - len(got))
            except ConnectionError:
                piece = b''
            if not piece:
                return 'closed' if not got else f'{got!r}, closed'
            got += piece
        return got

    def ask(self, data, n):
        self.send(data)
        return self.read(n)

    def silent(self):
        """Whether nothing comes for a while."""
        return not select.select([self.socket], [], [], SILENCE)[0]

    def fence(self):
        """Everything sent before has been carried out, and everything it owed has been read; that is returned."""
        self.send(PING)
        got = b''
        while not got.endswith(NONCE):
            piece = self.read(1)
            if isinstance(piece, str):
                return piece
            got += piece
        return got[:-4]

    def until_read(self):
        """Waits until the server has taken what was sent: nothing is left in its socket."""
        here, there = self.socket.getsockname()[1], self.socket.getpeername()[1]
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            for table in ('tcp', 'tcp6'):
                for line in pathlib.Path('/proc/net', table).read_text().splitlines()[1:]:
                    local, remote, _, queues = line.split()[1:5]
                    if (int(local.split(':')[1], 16), int(remote.split(':')[1], 16)) == (there, here):
                        if int(queues.split(':')[1], 16) == 0:
                            return
            time.sleep(0.002)
        raise AssertionError('the server does not read')

    def close(self):
        self.socket.close()

    __del__ = close


# What is asked; each gives a text. `port` is the server's, keys are used by one question only.


def split_validate(port):
    p = Peer(port, greeting=VALIDATE[:1])
    p.until_read()
    return 'accepted' if p.ask(VALIDATE[1:] + PING, 4) == NONCE else 'closed'


def no_validate(port):
    p = Peer(port, greeting=PING)
    if not p.silent():
        return p.read(4)
    return 'accepted with the next bytes' if p.ask(PING, 4) == NONCE else 'closed with the next bytes'


def wrong_magic(port):
    p = Peer(port, greeting=request(0, b'\xde\xad\xbe\xef'))
    if not p.silent():
        return p.read(1)
    return 'accepted' if p.ask(PING, 4) == NONCE else 'closed with the next bytes'


def get_of_a_missing_key(port):
    answer = Peer(port).ask(GET('/missing'), 8)
    return 'an empty value' if answer == number(0) else answer


def multi_get_of_a_missing_key(port):
    p = Peer(port)
    answer = p.ask(SET('/there', 'x') + MULTI_GET('/there', '/missing'), 17)
    return 'an empty value' if answer == text('x') + number(0) else 'closed'


def wake_by_compare_set(port):
    waiting, other = Peer(port), Peer(port)
    waiting.send(WAIT('/cas'))
    waiting.fence()
    assert other.ask(COMPARE_SET('/cas', '', 'v'), 9) == text('v')
    return 'woken' if waiting.fence() == YES else 'asleep'


def wake_by_a_lost_compare_set(port):
    waiting, other = Peer(port), Peer(port)
    waiting.send(WAIT('/lost'))
    waiting.fence()
    assert other.ask(COMPARE_SET('/lost', 'x', 'y'), 9) == text('x')
    assert other.ask(CHECK('/lost'), 1) == NO
    return 'woken, though there is no such key' if waiting.fence() == YES else 'asleep'


def half_a_multi_set(port):
    p, witness = Peer(port), Peer(port)
    whole = MULTI_SET(('/half/1', 'a'), ('/half/2', 'b' * 5000))
    p.send(whole[:-1])
    p.until_read()
    witness.send(CHECK('/half/1'))
    if witness.silent():
        assert p.ask(whole[-1:] + PING, 4) == NONCE
        return 'the whole store waits for the rest'
    seen = witness.read(1)
    assert p.ask(whole[-1:] + PING, 4) == NONCE
    assert witness.ask(CHECK('/half/1', '/half/2'), 1) == YES
    return 'the first pair is there' if seen == YES else 'nothing is there'


def half_a_request(port):
    p, witness = Peer(port), Peer(port)
    p.send(SET('/slow', 'x' * 100)[:-1])
    p.until_read()
    witness.send(PING)
    stalled = witness.silent()
    p.send(b'x')
    assert witness.read(4) == NONCE
    return 'nobody is served meanwhile' if stalled else 'nobody notices'


def two_waits(port):
    p, other = Peer(port), Peer(port)
    p.send(WAIT('/two/a') + WAIT('/two/b'))
    p.fence()
    other.send(SET('/two/a', '') + SET('/two/b', ''))
    other.fence()
    return f'{len(p.fence())} answered'


def order_of_two_waits(port):
    """The second comes true first."""
    p, other = Peer(port), Peer(port)
    p.send(WAIT('/order/a') + WAIT('/order/b'))
    p.fence()
    other.send(SET('/order/b', ''))
    other.fence()
    first = len(p.fence())
    other.send(SET('/order/a', ''))
    other.fence()
    return f'{first} answered, then {len(p.fence())}'


def second_validate(port):
    p = Peer(port)
    return 'accepted' if p.ask(VALIDATE + PING, 4) == NONCE else 'closed'


def key_that_begins_with_zero(port):
    p = Peer(port)
    before = p.ask(request(7), 8)
    if p.ask(SET('\0own', 'v') + GET('\0own') + CHECK('\0own'), 10) != text('v') + YES:
        return 'not stored'
    counted = p.ask(request(7), 8) != before
    assert p.ask(request(8, text('\0own')), 8) == number(1)
    return 'stored and counted' if counted else 'stored, not counted'


def cancel_of_two_waits(port):
    p = Peer(port)
    p.send(WAIT('/cancel/a') + WAIT('/cancel/b') + CANCEL_WAIT)
    return f'{p.fence()!r}'


def wait_on_a_queue_and_a_key(port):
    p, other = Peer(port), Peer(port)
    other.send(PUSH('/queue', 'item'))
    if other.fence() == 'closed':
        return 'no queues'
    p.send(WAIT('/queue', '/queue/key'))
    p.fence()
    other.send(SET('/queue/key', ''))
    other.fence()
    return 'over once the key is there' if p.fence() == YES else 'asleep until the queue gets one more'


def push_after_a_pop(port):
    p, other = Peer(port), Peer(port)
    p.send(WAIT('/stale'))
    p.fence()
    other.send(PUSH('/stale', '1'))
    if other.fence() == 'closed':
        return 'no queues'
    assert p.fence() == YES
    assert p.ask(POP('/stale'), 17) == number(1) + text('1')
    p.send(WAIT('/stale/other'))
    p.fence()
    other.send(PUSH('/stale', '2'))
    other.fence()
    return 'wakes who waits for another key' if p.fence() == YES else 'wakes nobody'


def death_of_a_woken_consumer(port):
    first, second, other = Peer(port), Peer(port), Peer(port)
    for p in (first, second):
        p.send(WAIT('/dead'))
        p.fence()
    other.send(PUSH('/dead', 'item'))
    if other.fence() == 'closed':
        return 'no queues'
    assert first.read(1) == YES
    first.close()
    second.socket.settimeout(SILENCE)
    try:
        return 'the next one gets the item' if second.read(1) == YES else 'closed'
    except TimeoutError:
        return 'the next one sleeps beside the item'


def overflow(port):
    answer = Peer(port).ask(ADD('/overflow', 2**63 - 1) + ADD('/overflow', 1), 16)
    return 'wraps' if answer == number(2**63 - 1) + number(-2**63) else 'closed' if 'closed' in str(answer) else answer


def not_a_number(port):
    p = Peer(port)
    return p.ask(SET('/words', 'no number') + ADD('/words', 1), 8)


def long_key(port):
    p = Peer(port)
    answer = p.ask(SET('/' + 'k' * 8191, '') + PING, 4)  # 8192 bytes on the wire: what libuv's takes
    assert answer == NONCE
    return 'accepted' if p.ask(SET('/' + 'k' * 8192, '') + PING, 4) == NONCE else 'closed'


def long_value(port):
    p = Peer(port)
    assert p.ask(SET('/large', b'v' * (8 << 20)) + PING, 4) == NONCE
    answer = p.ask(SET('/large', b'v' * ((8 << 20) + 1)) + PING, 4)
    Peer(port).ask(request(8, text('/large')), 8)
    return 'accepted' if answer == NONCE else 'closed'


def many_keys(port):
    p = Peer(port)
    names = [f'/{i % 7}' for i in range(131072)]
    assert p.ask(CHECK(*names), 1) == NO
    return 'accepted' if p.ask(CHECK(*names, '/more'), 1) == NO else 'closed'


def absurd_size(port):
    return Peer(port).ask(request(1, struct.pack('<Q', 2**63)), 1)


def long_append(port):
    p = Peer(port)
    piece = b'x' * (8 << 20)
    for _ in range(32):
        assert p.ask(APPEND('/appended', piece) + PING, 4) == NONCE
    answer = p.ask(APPEND('/appended', b'x') + PING, 4)
    assert Peer(port).ask(request(8, text('/appended')), 8) == number(1)
    return 'accepted' if answer == NONCE else 'closed'


def capability(port):
    p = Peer(port)
    assert p.ask(request(7), 8) == number(0), 'this question is asked of a server of its own'
    if p.ask(CHECK('\0cap'), 1) == NO:
        return 'not there'
    size = struct.unpack('<Q', p.ask(GET('\0cap'), 8))[0]
    assert size == 4 + 8 + 16 and len(p.read(size)) == size
    assert p.ask(request(7) + request(17), 16) == number(0) + number(0), 'it is neither counted nor listed'
    return 'version, bits and instance'


def other_addresses(port):
    try:
        return 'reachable' if Peer(port, host='127.0.0.2') else ''
    except ConnectionError:
        return 'not reachable'


@dataclasses.dataclass
class Difference:
    ask: typing.Callable
    why: str
    legacy: str
    libuv: str
    rollcall: str


DIFFERENCES = [
    Difference(split_validate, 'TCP may split any message, so that closing here fails good clients at random.',
               'accepted', 'closed', 'accepted'),
    Difference(no_validate, 'Whoever does not say the magic is no client of ours: a port scanner, a browser. It hears nothing and is gone.',
               'closed', 'accepted with the next bytes', 'closed'),
    Difference(wrong_magic, 'The same.',
               'closed', 'closed with the next bytes', 'closed'),
    Difference(get_of_a_missing_key, 'A client that did WAIT first sees it only when the key was deleted in between; losing its connection is worse.',
               'closed', 'an empty value', 'an empty value'),
    Difference(multi_get_of_a_missing_key, 'The same.',
               'closed', 'an empty value', 'an empty value'),
    Difference(wake_by_compare_set, 'A key that exists ends the waits for it, whoever made it.',
               'asleep', 'woken', 'woken'),
    Difference(wake_by_a_lost_compare_set, 'And only that does.',
               'asleep', 'woken, though there is no such key', 'asleep'),
    Difference(half_a_multi_set, 'All or nothing: no reader may see half of it, and what is half sent may never be completed.',
               'the whole store waits for the rest', 'the first pair is there', 'nothing is there'),
    Difference(half_a_request, 'One slow peer must not stop a job.',
               'nobody is served meanwhile', 'nobody notices', 'nobody notices'),
    Difference(two_waits, 'A request that is never answered hangs its client.',
               '1 answered', '1 answered', '2 answered'),
    Difference(order_of_two_waits, 'They are answered as they come true.',
               '1 answered, then 0', '1 answered, then 0', '1 answered, then 1'),
    Difference(second_validate, 'No difference: it is the first message or none, what comes later is out of step.',
               'closed', 'closed', 'closed'),
    Difference(key_that_begins_with_zero, "Where rollcall keeps what is not the user's: his keys begin with a slash.",
               'stored and counted', 'stored and counted', 'stored, not counted'),
    Difference(cancel_of_two_waits, "One CANCEL_WAIT, one answer: the reference's client reads exactly one.",
               "b'\\x01'", "b'\\x01'", "b'\\x01'"),
    Difference(wait_on_a_queue_and_a_key, 'A queue that has an item is there: waiting for one more would never end.',
               'no queues', 'asleep until the queue gets one more', 'over once the key is there'),
    Difference(push_after_a_pop, 'A wait must not end before its key is there.',
               'no queues', 'wakes who waits for another key', 'wakes nobody'),
    Difference(death_of_a_woken_consumer, 'An item must not lie there while somebody waits for one.',
               'no queues', 'the next one sleeps beside the item', 'the next one gets the item'),
    Difference(overflow, 'A counter that turns negative is a lie that nobody notices; a lost connection is noticed.',
               'wraps', 'wraps', 'closed'),
    Difference(not_a_number, 'No difference: the wire has no error to answer with.',
               'closed', 'closed', 'closed'),
    Difference(long_key, "The libuv server's limits, which are the default's since 2.4; options change ours.",
               'accepted', 'closed', 'closed'),
    Difference(long_value, 'The same.',
               'accepted', 'closed', 'closed'),
    Difference(many_keys, 'The same.',
               'accepted', 'closed', 'closed'),
    Difference(absurd_size, 'No difference, except that theirs tries to get the memory first.',
               'closed', 'closed', 'closed'),
    Difference(long_append, 'Totals are bounded, or one client can take all memory, 8 MiB at a time.',
               'accepted', 'accepted', 'closed'),
    Difference(capability, 'How our client knows our server, by a question that all others answer with no (protocol 17).',
               'not there', 'not there', 'version, bits and instance'),
    Difference(other_addresses, 'Whoever reaches the port can read and change everything: all interfaces only when asked for (design 9).',
               'reachable', 'reachable', 'not reachable'),
]


class Differences(Case):
    def ask_all(self, kind):
        port = self.server(kind).port
        for d in DIFFERENCES:
            with self.subTest(server=kind, asked=d.ask.__name__, why=d.why):
                asked = self.server(kind).port if d.ask is capability else port
                self.assertEqual(d.ask(asked), getattr(d, kind))
                # Whatever happened to that connection, the others are served.
                self.assertEqual(Peer(port).ask(PING, 4), NONCE)

    def test_pytorch_legacy_server(self):
        self.ask_all('legacy')

    def test_pytorch_libuv_server(self):
        self.ask_all('libuv')

    def test_rollcall_server(self):
        self.ask_all('rollcall')

    def test_each_has_a_reason(self):
        for d in DIFFERENCES:
            self.assertTrue(d.why.endswith('.'), d.ask.__name__)


if __name__ == '__main__':
    main()
