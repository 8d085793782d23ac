"""A guest written by docs/channels.md alone: prints a file of its host. guest.py PATH

It looks and never sleeps, so that its own word `sleeps` stays 0, and takes what it asks for from the ring or the arena.
Python has no exchange: the host's word is left alone, and its bell is rung each time.
"""
import ctypes, fcntl, mmap, os, select, struct, sys

memory, wait, bell, life = map(int, os.environ.pop("NINEFOLD_CHANNEL").split(":"))
for fd in (memory, wait, bell, life):
    os.set_inheritable(fd, False)
F_GET_SEALS, F_SEAL_SHRINK = 1034, 2
assert fcntl.fcntl(memory, F_GET_SEALS) & F_SEAL_SHRINK
shared = mmap.mmap(memory, os.fstat(memory).st_size)

# The first page, as a copy that is checked.
page = bytes(shared[:4096])
magic, version, needs, size, kind, lines, up, down, arena, pages = struct.unpack_from("<8sIIQIIQQQI", page)
assert magic == b"9P chan\n" and (version, needs, kind) == (1, 0, 1)
assert size % 4096 == 0 and size <= len(shared) and 64 <= lines <= 65536 and lines & (lines - 1) == 0
for at in (up, down):
    assert at % 64 == 0 and 4096 <= at <= size - 64 * lines
assert arena % 4096 == 0 and arena + 4096 * pages <= size

EPOCH, SERVES, JOIN, LEFT, UP_TAKEN, DOWN_TAKEN = 128, 132, 192, 196, 384, 448


class Word:
    """Read and written as a whole: an aligned c_uint32 is one load or one store."""

    def __init__(self, at):
        self.word = ctypes.c_uint32.from_buffer(shared, at)

    def get(self):
        return self.word.value

    def set(self, value):
        self.word.value = value & 0xFFFFFFFF


words = {at: Word(at) for at in (EPOCH, SERVES, JOIN, LEFT, UP_TAKEN, DOWN_TAKEN)}
marks = {ring: [Word(ring + 64 * n) for n in range(lines)] for ring in (up, down)}


def wake():
    os.write(bell, struct.pack("=Q", 1))


def look(news):
    """Until there are news; the end, if the host has gone or serves somebody else."""
    gone = select.poll()
    gone.register(life, select.POLLRDHUP)
    while not news():
        if gone.poll(0) or words[EPOCH].get() != epoch:
            sys.exit("the host has gone")


epoch = words[EPOCH].get()
join = (words[JOIN].get() + 1) & 0xFFFFFFFF or 1
words[JOIN].set(join)
wake()
look(lambda: words[SERVES].get() == join)
sent = taken = 0


def put(data, flags=0, at=0, count=0):
    global sent
    k = 1 + (max(len(data) - 48, 0) + 59) // 60
    look(lambda: (sent + k - words[UP_TAKEN].get()) & 0xFFFFFFFF <= lines)
    for n in range(1, k):
        there = up + 64 * ((sent + n) % lines)
        part = data[48 + 60 * (n - 1) : 48 + 60 * n]
        shared[there + 4 : there + 4 + len(part)] = part
        marks[up][(sent + n) % lines].set(sent + n + 1)
    there = up + 64 * (sent % lines)
    head = struct.pack("<HBBII", len(data), flags, 0, at, count) + data[:48]
    shared[there + 4 : there + 4 + len(head)] = head
    marks[up][sent % lines].set(sent + 1)
    sent = (sent + k) & 0xFFFFFFFF
    wake()


def take():
    """The bytes of the next piece, those in the arena with them."""
    global taken
    look(lambda: marks[down][taken % lines].get() == (taken + 1) & 0xFFFFFFFF)
    there = down + 64 * (taken % lines)
    length, flags, zero, at, count = struct.unpack_from("<HBBII", bytes(shared[there + 4 : there + 16]))
    assert length <= 3828 and flags in (0, 1) and zero == 0 and at + count <= 4096 * pages
    k = 1 + (max(length - 48, 0) + 59) // 60
    data = bytes(shared[there + 16 : there + 16 + min(length, 48)])
    for n in range(1, k):
        assert marks[down][(taken + n) % lines].get() == (taken + n + 1) & 0xFFFFFFFF
        there = down + 64 * ((taken + n) % lines)
        data += bytes(shared[there + 4 : there + 4 + min(length - len(data), 60)])
    if flags:
        data += bytes(shared[arena + at : arena + at + count])
    taken = (taken + k) & 0xFFFFFFFF
    words[DOWN_TAKEN].set(taken)
    wake()
    return data


def call(number, body, room=0):
    """One request and its answer's body; data of the answer may come into the arena's first bytes."""
    tag = 0xFFFF if number == 100 else 1
    message = struct.pack("<IBH", 7 + len(body), number, tag) + body
    if len(message) == 23 and room:
        put(message, 2, 0, room)
    else:
        for at in range(0, len(message), 3828):
            put(message[at : at + 3828])
    came = take()
    while len(came) < 4 or len(came) < struct.unpack_from("<I", came)[0]:
        came += take()
    length, answer, its = struct.unpack_from("<IBH", came)
    assert length == len(came) and its == tag
    if answer == 7:
        sys.exit(os.strerror(struct.unpack_from("<I", came, 7)[0]))
    assert answer == number + 1
    return came[7:]


def text(s):
    return struct.pack("<H", len(s)) + s


assert call(100, struct.pack("<I", 65536) + text(b"9P2000.L"))[4:] == text(b"9P2000.L")
call(104, struct.pack("<II", 0, 0xFFFFFFFF) + text(b"") + text(b"") + struct.pack("<I", os.getuid()))
names = os.fsencode(sys.argv[1]).strip(b"/").split(b"/")
walked = call(110, struct.pack("<IIH", 0, 1, len(names)) + b"".join(map(text, names)))
if len(walked) < 2 + 13 * len(names):
    sys.exit("there is no such file")
call(12, struct.pack("<II", 1, 0))
offset, most = 0, min(4096 * pages, 60000) or 60000
while True:
    body = call(116, struct.pack("<IQI", 1, offset, most), room=most if pages else 0)
    (count,) = struct.unpack_from("<I", body)
    assert len(body) == 4 + count
    if count == 0:
        break
    sys.stdout.buffer.write(body[4:])
    offset += count
call(120, struct.pack("<I", 1))
words[LEFT].set(join)
wake()
