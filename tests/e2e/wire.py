"""The protocol between clients and servers, as far as tests need it: frames, somebody in between who is silent, slow or lies, and a client
that takes all memory. The format is that of crates/far-wire/src/header.rs and message.rs."""

import contextlib
import socket
import struct
import threading
import time

HEADER = struct.Struct("<IHHQQI")
HEADER_BYTES = 32
MAGIC = int.from_bytes(b"HIRO", "little")
HELLO, CHALLENGE, PROOF, WELCOME, OPEN, OPENED, RESERVE, GRANTED = 1, 2, 3, 4, 5, 6, 9, 10
WRITE, READ, READ_REPLY, FREE, USAGE_REPLY, ERROR, INTRODUCE = 11, 12, 13, 15, 17, 18, 21
# The first bytes of the secret of XXH3, and its primes.
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f")
PRIME, AVALANCHE, MASK = 0x9E3779B185EBCA87, 0x165667919E3779F9, (1 << 64) - 1
PAGE = 4096


def checksum(head):
    """The lower half of XXH3-64 of 17 to 32 bytes."""
    word = lambda data, at: int.from_bytes(data[at:at + 8], "little")
    total = len(head) * PRIME
    for at, secret in [(0, 0), (len(head) - 16, 16)]:
        product = (word(head, at) ^ word(SECRET, secret)) * (word(head, at + 8) ^ word(SECRET, secret + 8))
        total += product & MASK ^ product >> 64
    total &= MASK
    total = (total ^ total >> 37) * AVALANCHE & MASK
    return (total ^ total >> 32) & 0xFFFFFFFF


def frame(version, kind, number, addr, payload, length=None):
    head = HEADER.pack(MAGIC, version, kind, number, addr, len(payload) if length is None else length)
    return head + checksum(head).to_bytes(4, "little") + payload


class Frames:
    """Cuts a stream into frames: (header fields, bytes of the header, payload)."""

    def __init__(self):
        self.rest = bytearray()

    def feed(self, data):
        self.rest += data
        at = 0
        while len(self.rest) - at >= HEADER_BYTES:
            head = HEADER.unpack_from(self.rest, at)
            follows = 0 if head[2] in (READ, FREE) else head[5]
            end = at + HEADER_BYTES + follows
            if len(self.rest) < end:
                break
            yield head, bytes(self.rest[at:at + HEADER_BYTES]), bytes(self.rest[at + HEADER_BYTES:end])
            at = end
        del self.rest[:at]


class Honest:
    """Passes everything on as it is. Liars change some of it."""

    def asked(self, head, first, payload):
        return first + payload

    def answered(self, head, first, payload):
        return first + payload


class Garbage(Honest):
    """Returns other bytes than are there."""

    FLIP = bytes(byte ^ 0x5A for byte in range(256))

    def answered(self, head, first, payload):
        return first + (payload.translate(self.FLIP) if head[2] == READ_REPLY else payload)


class Old(Honest):
    """Returns what was written to a place first, however often it was written to since. It has to be there from the beginning."""

    def __init__(self):
        self.first, self.told, self.is_lying = {}, 0, False

    def asked(self, head, first, payload):
        if head[2] == WRITE:
            for at in range(0, len(payload), PAGE):
                # A part is enough.
                if (head[4] + at) // PAGE % 4 == 0:
                    self.first.setdefault(head[4] + at, payload[at:at + PAGE])
        return first + payload

    def answered(self, head, first, payload):
        if head[2] != READ_REPLY or not self.is_lying:
            return first + payload
        pages = [payload[at:at + PAGE] for at in range(0, len(payload), PAGE)]
        olds = [self.first.get(head[4] + number * PAGE, page) for number, page in enumerate(pages)]
        self.told += sum(old != page for old, page in zip(olds, pages))
        return first + b"".join(olds)


class Errors(Honest):
    """Answers reads with errors: all of them, those of one page in so many, or (0) none."""

    def __init__(self, one_in=1):
        self.one_in, self.told = one_in, 0

    def answered(self, head, first, payload):
        _, version, kind, number, addr, length = head
        pages = range(addr // PAGE, (addr + length - 1) // PAGE + 1)
        is_broken = lambda page: self.one_in and page * 0x9E3779B1 % (1 << 32) % self.one_in == 0
        if kind != READ_REPLY or not any(map(is_broken, pages)):
            return first + payload
        self.told += 1
        return frame(version, ERROR, number, 0, struct.pack("<H", 0) + b"this part of the memory is broken")


class Broken(Honest):
    """Answers reads with errors if one of the pages that `skips` leaves out is among those that are read."""

    def __init__(self):
        self.told = 0

    def answered(self, head, first, payload):
        if head[2] != READ_REPLY:
            return first + payload
        words = [int.from_bytes(payload[at:at + 8], "little") for at in range(0, len(payload), PAGE)]
        if not any(word >> 32 == 0x48495041 and word % 64 == 3 for word in words):
            return first + payload
        self.told += 1
        return frame(head[1], ERROR, head[3], 0, struct.pack("<H", 0) + b"this part of the memory is broken")


class Boasts(Honest):
    """Claims a terabyte of free memory, and grants whatever it is asked for."""

    def answered(self, head, first, payload):
        if head[2] in (OPENED, GRANTED, USAGE_REPLY):
            payload = bytearray(payload)
            # Free chunks, and all chunks.
            struct.pack_into("<QQ", payload, 16 + 16, 1 << 19, 1 << 19)
            if head[2] == GRANTED:
                struct.pack_into("<I", payload, 16 + 64, 64)
        return first + bytes(payload)


class Between:
    """Stands between clients and a server; `port` is where clients connect to. While it is silent it holds everything back, new
    connections too; `delay_s` holds back each piece that arrives; `liar` changes it."""

    def __init__(self, server_port, liar=None):
        self.server_port, self.liar = server_port, liar
        self.is_silent, self.delay_s, self.is_open, self.ends = False, 0.0, True, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.is_open = False
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()

    def cut(self):
        """Ends all connections; clients make new ones."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.ends = []

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def waits(self):
        while self.is_silent and self.is_open:
            time.sleep(0.005)

    def connect(self, client):
        self.waits()
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            return client.close()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ends += [client, server]
        # Where a stream of frames begins is known at its beginning alone.
        liar = self.liar
        asked, answered = (liar.asked, liar.answered) if liar else (None, None)
        for source, to, changed in [(client, server, asked), (server, client, answered)]:
            threading.Thread(target=self.relay, args=(source, to, changed), daemon=True).start()

    def relay(self, source, to, changed):
        frames = Frames()
        with contextlib.suppress(OSError):
            while self.is_open:
                data = source.recv(1 << 18)
                if not data:
                    break
                if self.delay_s:
                    time.sleep(self.delay_s)
                self.waits()
                if changed is not None:
                    data = b"".join(changed(*one) for one in frames.feed(data))
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


class Hog:
    """A client that sets all free memory of a server aside for itself, until it lets go."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.frames, self.waiting, self.chunks = Frames(), [], 0
        self.socket.sendall(frame(1, HELLO, 0, 0, struct.pack("<HH", 1, 2) + bytes(32)))
        self.version = struct.unpack_from("<H", self.answer(CHALLENGE))[0]
        self.say(PROOF, 0, bytes(32))
        self.answer(WELCOME)
        self.say(OPEN, 1, bytes(16) + struct.pack("<II", 1, 0))
        self.answer(OPENED)
        granted = 1
        while granted:
            self.say(RESERVE, 2, struct.pack("<I", 1 << 16))
            granted = struct.unpack_from("<I", self.answer(GRANTED), 16 + 64)[0]
            self.chunks += granted

    def say(self, kind, number, payload):
        self.socket.sendall(frame(self.version, kind, number, 0, payload))

    def answer(self, kind):
        while not self.waiting:
            data = self.socket.recv(1 << 16)
            if not data:
                raise OSError("the server closed the connection")
            self.waiting += self.frames.feed(data)
        head, _, payload = self.waiting.pop(0)
        if head[2] != kind:
            raise OSError(f"answer {head[2]} instead of {kind}: {payload[2:]}")
        return payload

    def lets_go(self):
        self.say(20, 3, b"")
        self.socket.close()
