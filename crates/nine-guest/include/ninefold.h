/*
 * ninefold.h: files of a host through memory that is shared with it, for programs in C (docs/channels.md).
 *
 * One header, nothing to link; C11 with the extensions of Linux (-std=gnu11), little-endian, and not C++. It may come
 * after any other header, and defines no feature macros. A program that was
 * started with a channel (ninefold partition run -- PROGRAM), or one that connects to a socket:
 *
 *	#include "ninefold.h"
 *
 *	ninefold host;
 *	if (nf_inherit(&host, NF_ADAPTIVE) < 0)
 *		errx(1, "%s", nf_error(&host));
 *	int root = nf_attach(&host, "glenda", "");
 *	int file = nf_open(&host, root, "lib/motd", O_RDONLY);
 *	char text[1000];
 *	ssize_t len = nf_read(&host, file, text, sizeof text, 0);
 *	...
 *	nf_close(&host);
 *
 * Calls block and return -1 when they fail; nf_error() says why in words, host.error as an errno. What ends the channel
 * (the host has gone, or breaks the rules: its answers are checked) is every later call's error, until nf_rejoin(). One
 * thread has a channel, and one request is under way. Files are fids, of which there are 1,024; what is spoken is
 * 9P2000.L.
 *
 * Bytes from NF_SMALL on go through the arena, which both sides see: copied there once by nf_read() and nf_write();
 * or made and used there without a copy, in a buffer of nf_alloc(). What lies there the host may change at any time.
 */
#ifndef NINEFOLD_H
#define NINEFOLD_H

#ifdef __cplusplus
#error "ninefold.h is C11: include it in a file of C, or use ninefold_client.h, which C++ can include"
#else
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_MONOTONIC
#error "ninefold.h needs the extensions of Linux: compile with -std=gnu11, or define _DEFAULT_SOURCE in the first line"
#endif
#ifdef POLLRDHUP
#define NF__POLLRDHUP POLLRDHUP
#else
#define NF__POLLRDHUP 0x2000	/* glibc declares it for _GNU_SOURCE only; Linux always has it */
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ninefold.h: a channel is little-endian, and so must be the machine"
#endif
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "words that two programs see need no lock");

/* What a call does until an answer comes. */
enum nf_wait {
	NF_ADAPTIVE,	/* looks as long as it takes to be woken, then sleeps; seldom where that is in vain */
	NF_POLL,	/* looks, always: the quickest, on a processor of its own */
	NF_INTERRUPT,	/* sleeps at once */
};

enum {
	NF_SMALL = 1024,	/* bytes from which on data goes through the arena */
	NF_FIDS = 1024,
	NF_PAGE = 4096,
	NF_MOST = 3828,		/* bytes of a piece */
	NF_MSIZE = 1 << 20,	/* the largest message that is asked for */
};

/* A channel. Only error is for others to look at. */
typedef struct ninefold {
	int error;		/* of the last call that failed */
	char text[200];		/* the same in words */
	int ended;		/* nothing more can be asked */

	unsigned char *base;	/* the channel, and the memory behind it */
	size_t size;
	void *map;		/* all of the memory */
	size_t map_len;
	uint64_t up, down, arena;
	uint32_t lines, pages;
	uint32_t epoch, join;	/* the lives of both sides */
	uint32_t put, taken;	/* the next line up; what the host is done with, when last looked */
	uint32_t come;		/* the next line down */

	int wait_fd, ring_fd, life_fd;
	enum nf_wait wait;
	int patience;		/* milliseconds; 0: for ever */
	unsigned blind[2];	/* waits to go without looks, and how many of them there were before */

	uint32_t msize;
	uint16_t tag;
	int flushing;		/* the Rflush of the last request is to come */
	unsigned char *in;	/* what has come and was not told: a message and a piece at most */
	size_t in_len, in_told;
	uint64_t fids[NF_FIDS / 64];
	uint32_t iounit[NF_FIDS];
	uint64_t *used;		/* a bit for each page of the arena */
	uint32_t next;		/* page from which on one looks for free ones */
} ninefold;

/* Room in the arena. */
typedef struct nf_buffer {
	unsigned char *bytes;	/* where it lies here */
	size_t len;
	uint32_t at;		/* where in the arena */
} nf_buffer;

/* ---- the calls ---- */

/* Joins the channel that this program was started with. Nobody it starts inherits it. */
static inline int nf_inherit(ninefold *c, enum nf_wait wait);
/* Joins a channel of a host that gives one to everybody who connects to its unix socket. */
static inline int nf_dial(ninefold *c, const char *path, enum nf_wait wait);
/* The same two, for the channel of this name of several that lie in the memory (ENOENT: there is none). */
static inline int nf_inherit_named(ninefold *c, const char *name, enum nf_wait wait);
static inline int nf_dial_named(ninefold *c, const char *path, const char *name, enum nf_wait wait);
/* Joins again, after the channel has ended. All fids are gone; buffers stay. Fails if the host has moved the arena. */
static inline int nf_rejoin(ninefold *c);
/* Leaves, and gives back everything; after a failed nf_inherit() or nf_dial(), too, or not at all. */
static inline void nf_close(ninefold *c);
/*
 * From now on a call waits so many milliseconds for an answer (0, and at first: for ever). Then its request is flushed: the
 * call returns what the host says first, an answer, or that there will be none (ETIMEDOUT). A host that has no word for the
 * flush for as long again, or takes no request, is given up: the channel ends (ETIMEDOUT).
 */
static inline void nf_patience(ninefold *c, unsigned milliseconds);
/* Why the last call has failed. */
static inline const char *nf_error(const ninefold *c);

/* The root of a tree of the host: a fid. */
static inline int nf_attach(ninefold *c, const char *uname, const char *aname);
/* The file with that path below another one, "" for the same: a new fid. */
static inline int nf_walk(ninefold *c, int from, const char *path);
/* The same, opened; flags are those of open(2). */
static inline int nf_open(ninefold *c, int from, const char *path, int flags);
/* Makes a file and opens it. */
static inline int nf_create(ninefold *c, int from, const char *path, int flags, mode_t mode);
/* How many bytes were read; 0 at the end of the file. */
static inline ssize_t nf_read(ninefold *c, int fid, void *into, size_t len, uint64_t offset);
/* How many bytes were written. */
static inline ssize_t nf_write(ninefold *c, int fid, const void *from, size_t len, uint64_t offset);
/* Lets go of a fid, whatever is returned; but for a call that was given up (nf_patience): then it is still there. */
static inline int nf_clunk(ninefold *c, int fid);
/* Removes the file; the fid is gone as with nf_clunk(). */
static inline int nf_remove(ninefold *c, int fid);
/* The bytes of a file, and its type and permissions as st_mode; either may be NULL. */
static inline int nf_stat(ninefold *c, int fid, uint64_t *size, uint32_t *mode);

/* Room in the arena: b->bytes, b->len. */
static inline int nf_alloc(ninefold *c, nf_buffer *b, size_t len);
static inline void nf_free(ninefold *c, nf_buffer *b);
/* Reads into a part of a buffer, or writes it, without a copy on this side. */
static inline ssize_t nf_read_into(ninefold *c, int fid, const nf_buffer *b, size_t at, size_t len, uint64_t offset);
static inline ssize_t nf_write_from(ninefold *c, int fid, const nf_buffer *b, size_t at, size_t len, uint64_t offset);

/* ---- words, lines, pieces ---- */

enum {
	NF__EPOCH = 128, NF__SERVES = 132, NF__CLOSED = 136, NF__JOIN = 192, NF__LEFT = 196,
	NF__HOST_SLEEPS = 256, NF__GUEST_SLEEPS = 320, NF__UP_TAKEN = 384, NF__DOWN_TAKEN = 448,
	NF__DATA = 1, NF__ROOM = 2,
	NF__HEAD = 23,		/* of a Tread and a Twrite before the data */
};
static const unsigned char nf__magic[8] = "9P chan\n";

/* A piece's bytes in the arena. */
struct nf__place {
	int flag;
	uint32_t at, count;
};

static inline _Atomic uint32_t *
nf__word(const ninefold *c, uint64_t at)
{
	return (_Atomic uint32_t *)(void *)(c->base + at);
}

static inline uint32_t
nf__load(const ninefold *c, uint64_t at)
{
	return atomic_load_explicit(nf__word(c, at), memory_order_acquire);
}

static inline uint32_t
nf__swap(const ninefold *c, uint64_t at, uint32_t value)
{
	return atomic_exchange_explicit(nf__word(c, at), value, memory_order_acq_rel);
}

static inline uint32_t
nf__g32(const unsigned char *p)
{
	uint32_t v;
	memcpy(&v, p, 4);
	return v;
}

static inline uint64_t
nf__g64(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, 8);
	return v;
}

static inline unsigned char *
nf__p16(unsigned char *p, uint16_t v)
{
	memcpy(p, &v, 2);
	return p + 2;
}

static inline unsigned char *
nf__p32(unsigned char *p, uint32_t v)
{
	memcpy(p, &v, 4);
	return p + 4;
}

static inline unsigned char *
nf__p64(unsigned char *p, uint64_t v)
{
	memcpy(p, &v, 8);
	return p + 8;
}

__attribute__((format(printf, 3, 4))) static inline int
nf__fail(ninefold *c, int error, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(c->text, sizeof c->text, format, args);
	va_end(args);
	c->error = error;
	return -1;
}

static inline void
nf__ring(ninefold *c)
{
	if (nf__swap(c, NF__HOST_SLEEPS, 0) != 0) {
		uint64_t one = 1;
		ssize_t rung = write(c->ring_fd, &one, sizeof one);
		(void)rung;	/* a bell that takes no more is rung */
	}
}

/* What nf__fail() has said is why there is nothing more. The host hears of it when we join again, or leave. */
static inline int
nf__end(ninefold *c)
{
	c->ended = 1;
	return -1;
}

static inline int
nf__broken(ninefold *c, const char *what)
{
	nf__fail(c, EPROTO, "the host's answer to %s is none: the channel ends", what);
	return nf__end(c);
}

/* Whether there is room for a piece: 0 or 1; -1, the host breaks the rules. */
static inline int
nf__has_room(ninefold *c, size_t len)
{
	uint32_t need = len <= 48 ? 1 : 1 + (uint32_t)((len - 48 + 59) / 60);
	if (c->lines - (c->put - c->taken) >= need)
		return 1;
	uint32_t taken = nf__load(c, NF__UP_TAKEN);
	if (taken - c->taken > c->put - c->taken)
		return nf__fail(c, EPROTO, "the host says it has taken what was not written");
	c->taken = taken;
	return c->lines - (c->put - c->taken) >= need;
}

static inline unsigned char *
nf__line(const ninefold *c, uint64_t ring, uint32_t n)
{
	return c->base + ring + (uint64_t)(n & (c->lines - 1)) * 64;
}

/* Writes a piece, for which there is room. */
static inline void
nf__put(ninefold *c, const unsigned char *bytes, size_t len, struct nf__place place)
{
	unsigned char head[60] = {0}, *line;
	size_t here = len < 48 ? len : 48, done;
	uint32_t n = c->put;
	for (done = here; done < len; done += 60) {
		size_t part = len - done < 60 ? len - done : 60;
		line = nf__line(c, c->up, ++n);
		memcpy(line + 4, bytes + done, part);
		atomic_store_explicit((_Atomic uint32_t *)(void *)line, n + 1, memory_order_relaxed);
	}
	nf__p16(head, (uint16_t)len);
	head[2] = (unsigned char)place.flag;
	nf__p32(head + 4, place.at);
	nf__p32(head + 8, place.count);
	memcpy(head + 12, bytes, here);
	line = nf__line(c, c->up, c->put);
	memcpy(line + 4, head, sizeof head);
	atomic_store_explicit((_Atomic uint32_t *)(void *)line, c->put + 1, memory_order_release);
	c->put = n + 1;
}

static inline int
nf__is_ready(const ninefold *c)
{
	unsigned char *line = nf__line(c, c->down, c->come);
	return atomic_load_explicit((_Atomic uint32_t *)(void *)line, memory_order_acquire) == c->come + 1;
}

/* Takes the piece that has come into room for NF_MOST bytes: how many. */
static inline int
nf__take(ninefold *c, unsigned char *into, struct nf__place *place)
{
	unsigned char head[60];
	uint32_t n = c->come;
	memcpy(head, nf__line(c, c->down, n) + 4, sizeof head);
	size_t len = (size_t)(head[0] | head[1] << 8), done;
	*place = (struct nf__place){head[2], nf__g32(head + 4), nf__g32(head + 8)};
	if (len > NF_MOST || place->flag > NF__ROOM)
		return nf__fail(c, EPROTO, "the host wrote a piece that cannot be");
	if (place->flag && (uint64_t)place->at + place->count > (uint64_t)c->pages * NF_PAGE)
		return nf__fail(c, EPROTO, "the host named a place outside the arena");
	memcpy(into, head + 12, len < 48 ? len : 48);
	for (done = 48; done < len; done += 60) {
		unsigned char *line = nf__line(c, c->down, ++n);
		if (atomic_load_explicit((_Atomic uint32_t *)(void *)line, memory_order_relaxed) != n + 1)
			return nf__fail(c, EPROTO, "the host wrote a piece without all of its lines");
		memcpy(into + done, line + 4, len - done < 60 ? len - done : 60);
	}
	c->come = n + 1;
	atomic_store_explicit(nf__word(c, NF__DOWN_TAKEN), c->come, memory_order_release);
	return (int)len;
}

/* ---- waiting ---- */

static inline void
nf__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

/* Sleeps until the bell rings, at most so many milliseconds (-1: for ever): 0 if the host has gone. */
static inline int
nf__sleep(ninefold *c, int limit)
{
	struct pollfd fds[2] = {{c->wait_fd, POLLIN, 0}, {c->life_fd, NF__POLLRDHUP, 0}};
	while (poll(fds, 2, limit) < 0)
		if (errno != EINTR)
			return 0;
	if (fds[0].revents) {
		uint64_t rings;
		ssize_t heard = read(c->wait_fd, &rings, sizeof rings);
		(void)heard;
		return 1;
	}
	return fds[1].revents == 0;
}

/* What a wait is for: to be served (0), an answer (1), or room for a piece of so many bytes. */
struct nf__want {
	enum { NF__SERVED, NF__ANSWER, NF__SPACE } kind;
	size_t len;
};

/* 1: it is there. 0: not yet. -1: it will not come. */
static inline int
nf__is_there(ninefold *c, struct nf__want want)
{
	int is_there;
	if (want.kind == NF__SERVED)
		return nf__load(c, NF__SERVES) == c->join;
	uint32_t epoch = nf__load(c, NF__EPOCH), serves = nf__load(c, NF__SERVES), closed = nf__load(c, NF__CLOSED);
	is_there = want.kind == NF__ANSWER ? nf__is_ready(c) : nf__has_room(c, want.len);
	if (is_there < 0)
		return -1;
	if (epoch != c->epoch || serves != c->join)
		return nf__fail(c, ECONNRESET, "the channel has another host, or serves another guest: join it again");
	if (!is_there && closed == c->epoch)
		return nf__fail(c, EPIPE, "the host has closed the channel");
	return is_there;
}

static inline int
nf__gone(ninefold *c)
{
	return nf__fail(c, ECONNRESET, "the host of the channel has gone");
}

static inline uint64_t
nf__now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Milliseconds until patience ends that began with the first of these questions; -1: it does not end. */
static inline int
nf__left(const ninefold *c, uint64_t *since)
{
	if (c->patience == 0)
		return -1;
	uint64_t now = nf__now(), waited;
	if (*since == 0)
		*since = now;
	waited = (now - *since) / 1000000;
	return waited >= (uint64_t)c->patience ? 0 : c->patience - (int)waited;
}

/* Looks as long as is worth while: as nf__is_there(). */
static inline int
nf__look(ninefold *c, struct nf__want want, uint64_t *since)
{
	uint64_t begun = 0;
	unsigned n;
	int there;
	if (c->wait == NF_INTERRUPT)
		return 0;
	if (c->wait == NF_ADAPTIVE && c->blind[0] > 0) {
		c->blind[0]--;
		return 0;
	}
	for (n = 1;; n++) {
		if ((there = nf__is_there(c, want)) != 0) {
			c->blind[0] = c->blind[1] = 0;
			return there;
		}
		if (n % 4096 == 0 && !nf__sleep(c, 0)) {
			there = nf__is_there(c, want);
			return there ? there : nf__gone(c);
		}
		if (n % 4096 == 0 && c->wait == NF_POLL && nf__left(c, since) == 0)
			return 0;
		/* 50 us: about as long as it takes to be woken */
		if (n % 64 == 0 && c->wait == NF_ADAPTIVE) {
			if (begun == 0)
				begun = nf__now();
			else if (nf__now() - begun > 50000)
				break;
		}
		nf__pause();
	}
	c->blind[1] = 2 * c->blind[1] + 1 < 256 ? 2 * c->blind[1] + 1 : 256;
	c->blind[0] = c->blind[1];
	return 0;
}

/* Waits: 0, it is there; 1, patience has ended (since: as in nf__left()); -1, the channel has. */
static inline int
nf__await(ninefold *c, struct nf__want want, uint64_t *since)
{
	int is_here = 1, left, there = nf__look(c, want, since);
	while (there == 0) {
		if (!is_here) {
			nf__gone(c);
			return nf__end(c);
		}
		if ((left = nf__left(c, since)) == 0)
			return 1;
		nf__swap(c, NF__GUEST_SLEEPS, 1);
		there = nf__is_there(c, want);
		if (there == 0)
			is_here = nf__sleep(c, left);
		nf__swap(c, NF__GUEST_SLEEPS, 0);
		if (there == 0)
			there = nf__is_there(c, want);
	}
	return there < 0 ? nf__end(c) : 0;
}

/* ---- messages ---- */

static inline int
nf__give_up(ninefold *c)
{
	nf__fail(c, ETIMEDOUT, "the host answers nothing, no flush either: the channel ends");
	return nf__end(c);
}

static inline int
nf__send(ninefold *c, const unsigned char *bytes, size_t len, struct nf__place place)
{
	uint64_t since = 0;
	int room = nf__has_room(c, len), awaited;
	if (room < 0)
		return nf__end(c);
	if (room == 0 && (awaited = nf__await(c, (struct nf__want){NF__SPACE, len}, &since)) != 0)
		return awaited > 0 ? nf__give_up(c) : -1;
	nf__put(c, bytes, len, place);
	nf__ring(c);
	return 0;
}

/* An answer: what of it came through the ring, and where its data is if it is in the arena. */
struct nf__answer {
	const unsigned char *bytes;
	size_t len;
	struct nf__place place;
};

/* The next whole message: 0; 1, patience has ended, and it may come nevertheless. */
static inline int
nf__answer(ninefold *c, struct nf__answer *a)
{
	uint64_t since = 0;
	for (;;) {
		size_t rest = c->in_len - c->in_told;
		unsigned char *first = c->in + c->in_told;
		if (rest >= 4) {
			uint32_t size = nf__g32(first);
			if (size < 7 || size > c->msize)
				return nf__broken(c, "a request");
			if (size <= rest) {
				*a = (struct nf__answer){first, size, {0, 0, 0}};
				c->in_told += size;
				return 0;
			}
		}
		memmove(c->in, first, rest);
		c->in_told = 0;
		c->in_len = rest;
		struct nf__place place;
		int awaited = nf__is_ready(c) ? 0 : nf__await(c, (struct nf__want){NF__ANSWER, 0}, &since);
		if (awaited != 0)
			return awaited;
		int len = nf__take(c, c->in + rest, &place);
		if (len < 0)
			return nf__end(c);
		nf__ring(c);
		if (place.flag == 0) {
			c->in_len += (size_t)len;
			continue;
		}
		/* The head of an Rread, by itself; the rest is in the arena. */
		if (place.flag != NF__DATA || rest != 0 || len != 11 || nf__g32(c->in + 7) != place.count ||
		    nf__g32(c->in) != 11 + (uint64_t)place.count)
			return nf__broken(c, "a request");
		*a = (struct nf__answer){c->in, 11, place};
		return 0;
	}
}

static inline uint16_t
nf__tag_of(const struct nf__answer *a)
{
	return (uint16_t)(a->bytes[5] | a->bytes[6] << 8);
}

/* Whether it is the Rflush that is to come, of a tag that is 32 beyond that of the request. */
static inline int
nf__is_rflush(const ninefold *c, const struct nf__answer *a)
{
	return c->flushing && nf__tag_of(a) == c->tag + 32 && a->bytes[4] == 109 && a->len == 7 && !a->place.flag;
}

/* Another tag, when nothing is to come of the one before. */
static inline int
nf__next_tag(ninefold *c)
{
	struct nf__answer a;
	if (c->flushing) {
		int late = nf__answer(c, &a);
		if (late != 0)
			return late > 0 ? nf__give_up(c) : -1;
		if (!nf__is_rflush(c, &a))
			return nf__broken(c, "Tflush");
		c->flushing = 0;
	}
	c->tag = (uint16_t)((c->tag + 1) % 32);
	return 0;
}

/* The answer to a request of this type: 0; 1 if it is an error, 2 if it was given up, which is told. */
static inline int
nf__expect(ninefold *c, struct nf__answer *a, unsigned char type, const char *what)
{
	int late = nf__answer(c, a);
	if (late > 0 && type != 100) {
		unsigned char flush[9] = {9, 0, 0, 0, 108};
		nf__p16(nf__p16(flush + 5, (uint16_t)(c->tag + 32)), c->tag);
		if (nf__send(c, flush, sizeof flush, (struct nf__place){0, 0, 0}) < 0)
			return -1;
		c->flushing = 1;
		late = nf__answer(c, a);
	}
	if (late != 0)
		return late > 0 ? nf__give_up(c) : -1;
	if (nf__is_rflush(c, a)) {
		c->flushing = 0;
		nf__fail(c, ETIMEDOUT, "%s: the host has not answered in time: the request was given up", what);
		return 2;
	}
	uint16_t tag = nf__tag_of(a);
	if (tag != (type == 100 ? 0xffff : c->tag))
		return nf__broken(c, what);
	if (a->bytes[4] == 7 && a->len == 11 && !a->place.flag) {
		uint32_t error = nf__g32(a->bytes + 7);
		nf__fail(c, error > 0 && error < 4096 ? (int)error : EIO, "%s: %s", what,
		    strerror(error > 0 && error < 4096 ? (int)error : EIO));
		return 1;
	}
	if (a->bytes[4] != type + 1)
		return nf__broken(c, what);
	return 0;
}

/*
 * Asks with a message whose size, type and tag are still to be written: its answer, with so many bytes or more. -2: it was
 * given up.
 */
static inline int
nf__ask(ninefold *c, unsigned char *message, size_t len, unsigned char type, const char *what, size_t least,
    struct nf__answer *a)
{
	size_t done, part;
	if (c->ended || nf__next_tag(c) < 0)
		return -1;
	nf__p32(message, (uint32_t)len);
	message[4] = type;
	nf__p16(message + 5, type == 100 ? 0xffff : c->tag);
	for (done = 0; done < len; done += part) {
		part = len - done < NF_MOST ? len - done : NF_MOST;
		if (nf__send(c, message + done, part, (struct nf__place){0, 0, 0}) < 0)
			return -1;
	}
	int expected = nf__expect(c, a, type, what);
	if (expected == 0 && (a->len < least || a->place.flag))
		return nf__broken(c, what);
	return expected == 2 ? -2 : expected == 0 ? 0 : -1;
}

/* ---- joining ---- */

/* What stands in the first page, if it is a channel of files that fits into the memory. */
static inline int
nf__layout(ninefold *c)
{
	unsigned char page[96];
	uint64_t ring;
	if (nf__load(c, 4) != nf__g32(nf__magic + 4) || nf__load(c, 0) != nf__g32(nf__magic))
		return nf__fail(c, ENOTCONN, "there is no channel in this memory");
	memcpy(page, c->base, sizeof page);
	if (nf__g32(page + 8) != 1 || nf__g32(page + 12) != 0)
		return nf__fail(c, ENOTCONN, "the channel is of version %u: this program knows 1", nf__g32(page + 8));
	if (nf__g32(page + 24) != 1)
		return nf__fail(c, EINVAL, "the channel is none in which the guest asks for files");
	uint64_t size = nf__g64(page + 16);
	c->lines = nf__g32(page + 28);
	c->up = nf__g64(page + 32);
	c->down = nf__g64(page + 40);
	c->arena = nf__g64(page + 48);
	c->pages = nf__g32(page + 56);
	ring = (uint64_t)c->lines * 64;
	uint64_t arena = (uint64_t)c->pages * NF_PAGE;
	if (c->lines < 64 || c->lines > 65536 || (c->lines & (c->lines - 1)) || c->pages > (1 << 20) - 1 ||
	    size > c->size || size % NF_PAGE || c->up % 64 || c->down % 64 || c->arena % NF_PAGE ||
	    c->up < NF_PAGE || c->up > size || ring > size - c->up ||
	    c->down < NF_PAGE || c->down > size || ring > size - c->down ||
	    c->arena < NF_PAGE || c->arena > size || arena > size - c->arena)
		return nf__fail(c, ENOTCONN, "the channel's first page contradicts itself");
	return 0;
}

/* Finds the channel of this name: from then on it is all there is of the memory. */
static inline int
nf__find(ninefold *c, const char *name)
{
	unsigned char page[96];
	char padded[32] = {0};
	size_t len = strlen(name);
	if (len <= sizeof padded)
		memcpy(padded, name, len);
	for (;;) {
		if (len > sizeof padded || c->size < NF_PAGE || nf__load(c, 4) != nf__g32(nf__magic + 4) ||
		    nf__load(c, 0) != nf__g32(nf__magic))
			return nf__fail(c, ENOENT, "%.100s: no channel in this memory has this name", name);
		memcpy(page, c->base, sizeof page);
		uint64_t size = nf__g64(page + 16);
		if (nf__g32(page + 8) != 1)
			return nf__fail(c, ENOTCONN, "the channel is of version %u: this program knows 1", nf__g32(page + 8));
		if (size < NF_PAGE || size > c->size || size % NF_PAGE)
			return nf__fail(c, ENOTCONN, "the channel's first page contradicts itself");
		if (memcmp(page + 64, padded, sizeof padded) == 0) {
			c->size = size;
			return 0;
		}
		c->base += size;
		c->size -= size;
	}
}

static inline int
nf__version(ninefold *c)
{
	unsigned char message[21];
	struct nf__answer a;
	nf__p32(message + 7, NF_MSIZE);
	nf__p16(message + 11, 8);
	memcpy(message + 13, "9P2000.L", 8);
	if (nf__ask(c, message, sizeof message, 100, "Tversion", 13, &a) < 0)
		return -1;
	uint32_t msize = nf__g32(a.bytes + 7);
	if (a.len != 21 || a.bytes[11] != 8 || a.bytes[12] != 0 || memcmp(a.bytes + 13, "9P2000.L", 8)) {
		nf__fail(c, EPROTO, "the host speaks no 9P2000.L");
		return nf__end(c);
	}
	if (msize < 512 || msize > NF_MSIZE)
		return nf__broken(c, "Tversion");
	c->msize = msize;
	return 0;
}

static inline int
nf__join(ninefold *c)
{
	c->ended = 1;
	if (nf__layout(c) < 0)
		return -1;
	c->epoch = nf__load(c, NF__EPOCH);
	if (c->epoch == 0)
		return nf__fail(c, ENOTCONN, "nobody has opened this channel");
	c->join = nf__load(c, NF__JOIN) + 1;
	if (c->join == 0)
		c->join = 1;
	c->put = c->taken = c->come = 0;
	c->in_len = c->in_told = 0;
	c->flushing = 0;
	c->msize = 512;
	memset(c->fids, 0, sizeof c->fids);
	atomic_store_explicit(nf__word(c, NF__JOIN), c->join, memory_order_release);
	nf__ring(c);
	uint64_t since = 0;
	int awaited = nf__await(c, (struct nf__want){NF__SERVED, 0}, &since);
	if (awaited > 0)
		return nf__fail(c, ETIMEDOUT, "the host serves nobody who joins its channel");
	if (awaited < 0)
		return -1;
	/* A host that began anew meanwhile serves, too. */
	c->epoch = nf__load(c, NF__EPOCH);
	c->ended = 0;
	return nf__version(c);
}

/* Takes the memory, the two bells and the life of the host, and joins the channel of this name; NULL: the first one. */
static inline int
nf_join_named(ninefold *c, int memory, int wait_fd, int ring_fd, int life_fd, const char *name, enum nf_wait wait)
{
	struct stat known;
	memset(c, 0, sizeof *c);
	c->wait_fd = wait_fd;
	c->ring_fd = ring_fd;
	c->life_fd = life_fd;
	c->wait = wait;
	c->ended = 1;
#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif
	int seals = fcntl(memory, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
		nf__fail(c, EINVAL, "the channel's memory is no file that is sealed against becoming shorter");
		goto bad;
	}
	if (fstat(memory, &known) < 0 || known.st_size < NF_PAGE) {
		nf__fail(c, ENOTCONN, "there is no channel in this memory");
		goto bad;
	}
	void *base = mmap(NULL, (size_t)known.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (base == MAP_FAILED) {
		nf__fail(c, errno, "the channel's memory cannot be mapped: %s", strerror(errno));
		goto bad;
	}
	close(memory);
	c->base = c->map = base;
	c->size = c->map_len = (size_t)known.st_size;
	c->in = malloc(NF_MSIZE + NF_MOST);
	c->used = calloc((1 << 20) / 64, 8);
	if (c->in == NULL || c->used == NULL)
		nf__fail(c, ENOMEM, "no memory for the answers of the host");
	else if ((name == NULL || nf__find(c, name) == 0) && nf__join(c) == 0)
		return 0;
	nf_close(c);
	return -1;
bad:
	close(memory);
	nf_close(c);
	return -1;
}

static inline int
nf_join(ninefold *c, int memory, int wait_fd, int ring_fd, int life_fd, enum nf_wait wait)
{
	return nf_join_named(c, memory, wait_fd, ring_fd, life_fd, NULL, wait);
}

static inline int
nf_inherit(ninefold *c, enum nf_wait wait)
{
	return nf_inherit_named(c, NULL, wait);
}

static inline int
nf_dial(ninefold *c, const char *path, enum nf_wait wait)
{
	return nf_dial_named(c, path, NULL, wait);
}

static inline int
nf_inherit_named(ninefold *c, const char *name, enum nf_wait wait)
{
	const char *variable = getenv("NINEFOLD_CHANNEL");
	int fds[4], end = 0, n, m;
	memset(c, 0, sizeof *c);
	c->wait_fd = c->ring_fd = c->life_fd = -1;
	c->ended = 1;
	if (variable == NULL)
		return nf__fail(c, ENOENT, "this program was not started with a channel: NINEFOLD_CHANNEL is not set");
	if (sscanf(variable, "%d:%d:%d:%d%n", &fds[0], &fds[1], &fds[2], &fds[3], &end) != 4 || variable[end])
		return nf__fail(c, EINVAL, "NINEFOLD_CHANNEL=%.60s: MEMORY:WAIT:RING:LIFE is expected", variable);
	for (n = 0; n < 4; n++) {
		for (m = 0; m < n; m++)
			if (fds[m] == fds[n])
				return nf__fail(c, EINVAL, "NINEFOLD_CHANNEL names a descriptor twice");
		if (fds[n] < 0 || fcntl(fds[n], F_SETFD, FD_CLOEXEC) < 0)
			return nf__fail(c, EBADF, "NINEFOLD_CHANNEL names %d, which is no descriptor", fds[n]);
	}
	unsetenv("NINEFOLD_CHANNEL");
	return nf_join_named(c, fds[0], fds[1], fds[2], fds[3], name, wait);
}

static inline int
nf_dial_named(ninefold *c, const char *path, const char *name, enum nf_wait wait)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {10, 0};
	union {
		char bytes[CMSG_SPACE(8 * sizeof(int))];
		struct cmsghdr align;
	} beside;
	unsigned char magic[8];
	struct iovec part = {magic, sizeof magic};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside.bytes,
	    .msg_controllen = sizeof beside.bytes};
	int fds[8], count = 0, n;
	ssize_t came;

	memset(c, 0, sizeof *c);
	c->wait_fd = c->ring_fd = c->life_fd = -1;
	c->ended = 1;
	if (strlen(path) >= sizeof address.sun_path)
		return nf__fail(c, ENAMETOOLONG, "%.100s: too long for a socket", path);
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return nf__fail(c, errno, "no socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		nf__fail(c, errno, "%.100s: %s", path, strerror(errno));
		close(fd);
		return -1;
	}
	do
		came = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	while (came < 0 && errno == EINTR);
	int error = came < 0 ? errno : 0;
	if (came >= 0)
		for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h != NULL; h = CMSG_NXTHDR(&message, h)) {
			if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
				continue;
			size_t more = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			for (size_t i = 0; i < more && count < 8; i++, count++)
				memcpy(&fds[count], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
		}
	if (came == 8 && count == 3 && memcmp(magic, nf__magic, 8) == 0)
		return nf_join_named(c, fds[0], fds[1], fds[2], fd, name, wait);
	for (n = 0; n < count; n++)
		close(fds[n]);
	close(fd);
	if (error == EAGAIN || error == EWOULDBLOCK)
		return nf__fail(c, ETIMEDOUT, "%.100s: who listens there has given no channel in 10 s", path);
	return nf__fail(c, error ? error : EPROTO, "%.100s: who listens there gives no channels", path);
}

static inline int
nf_rejoin(ninefold *c)
{
	uint64_t arena = c->arena;
	uint32_t pages = c->pages;
	if (c->base == NULL)
		return nf__fail(c, ENOTCONN, "there is no channel to join again");
	if (nf__layout(c) < 0)
		return -1;
	if (c->arena != arena || c->pages != pages)
		return nf__fail(c, ESTALE, "the host has laid the channel out anew: close it, and begin again");
	return nf__join(c);
}

static inline void
nf_close(ninefold *c)
{
	int fds[3] = {c->wait_fd, c->ring_fd, c->life_fd}, n;
	if (c->base != NULL) {
		if (c->join != 0) {
			atomic_store_explicit(nf__word(c, NF__LEFT), c->join, memory_order_release);
			nf__ring(c);
		}
		munmap(c->map, c->map_len);
		c->base = NULL;
	}
	for (n = 0; n < 3; n++)
		if (fds[n] >= 0)
			close(fds[n]);
	c->wait_fd = c->ring_fd = c->life_fd = -1;
	free(c->in);
	free(c->used);
	c->in = NULL;
	c->used = NULL;
	c->ended = 1;
}

static inline void
nf_patience(ninefold *c, unsigned milliseconds)
{
	c->patience = milliseconds < INT_MAX ? (int)milliseconds : INT_MAX;
}

static inline const char *
nf_error(const ninefold *c)
{
	return c->text;
}

/* ---- files ---- */

static inline int
nf__fid(ninefold *c)
{
	int n;
	if (c->ended)
		return -1;
	for (n = 0; n < NF_FIDS; n++)
		if (!(c->fids[n / 64] >> n % 64 & 1)) {
			c->fids[n / 64] |= (uint64_t)1 << n % 64;
			c->iounit[n] = 0;
			return n;
		}
	return nf__fail(c, EMFILE, "%d files are open: clunk some", NF_FIDS);
}

static inline void
nf__forget(ninefold *c, int fid)
{
	c->fids[fid / 64] &= ~((uint64_t)1 << fid % 64);
}

/* Whether it is a fid of ours, and the channel there. */
static inline int
nf__has(ninefold *c, int fid)
{
	if (c->ended)
		return -1;
	if (fid < 0 || fid >= NF_FIDS || !(c->fids[fid / 64] >> fid % 64 & 1))
		return nf__fail(c, EBADF, "%d is no file", fid);
	return 0;
}

static inline int
nf_attach(ninefold *c, const char *uname, const char *aname)
{
	unsigned char message[NF_MOST], *p = message + 7;
	size_t ulen = strlen(uname), alen = strlen(aname);
	struct nf__answer a;
	if (ulen + alen > 400)
		return nf__fail(c, ENAMETOOLONG, "Tattach: %s", strerror(ENAMETOOLONG));
	int fid = nf__fid(c);
	if (fid < 0)
		return -1;
	p = nf__p32(nf__p32(p, (uint32_t)fid), UINT32_MAX);
	p = nf__p16(p, (uint16_t)ulen);
	memcpy(p, uname, ulen);
	p = nf__p16(p + ulen, (uint16_t)alen);
	memcpy(p, aname, alen);
	p = nf__p32(p + alen, UINT32_MAX);
	if (nf__ask(c, message, (size_t)(p - message), 104, "Tattach", 20, &a) == 0)
		return fid;
	nf__forget(c, fid);
	return -1;
}

static inline int
nf__simple(ninefold *c, int fid, unsigned char type, const char *what)
{
	unsigned char message[11];
	struct nf__answer a;
	if (nf__has(c, fid) < 0)
		return -1;
	nf__p32(message + 7, (uint32_t)fid);
	int asked = nf__ask(c, message, sizeof message, type, what, 7, &a);
	if (asked == -2)
		return -1;
	nf__forget(c, fid);
	return asked;
}

static inline int
nf_clunk(ninefold *c, int fid)
{
	return nf__simple(c, fid, 120, "Tclunk");
}

static inline int
nf_remove(ninefold *c, int fid)
{
	return nf__simple(c, fid, 122, "Tremove");
}

/* Walks the first len bytes of a path. */
static inline int
nf__walk(ninefold *c, int from, const char *path, size_t len)
{
	unsigned char message[NF_MOST];
	struct nf__answer a;
	const char *end = path + len;
	int begin = from;
	if (nf__has(c, from) < 0)
		return -1;
	int fid = nf__fid(c);
	if (fid < 0)
		return -1;
	do {
		unsigned char *p = message + 17;
		uint16_t names = 0;
		while (path < end && names < 16) {
			const char *slash = memchr(path, '/', (size_t)(end - path));
			size_t n = (size_t)((slash ? slash : end) - path);
			if (n > 0 && !(n == 1 && *path == '.')) {
				/* What a host of the smallest msize takes. */
				if ((size_t)(p - message) + 2 + n > 512) {
					if (names == 0) {
						nf__fail(c, ENAMETOOLONG, "Twalk: %s", strerror(ENAMETOOLONG));
						goto bad;
					}
					break;
				}
				p = nf__p16(p, (uint16_t)n);
				memcpy(p, path, n);
				p += n;
				names++;
			}
			path = slash ? slash + 1 : end;
		}
		if (names == 0 && begin == fid)
			break;
		nf__p32(nf__p32(message + 7, (uint32_t)begin), (uint32_t)fid);
		nf__p16(message + 15, names);
		if (nf__ask(c, message, (size_t)(p - message), 110, "Twalk", 9, &a) < 0)
			goto bad;
		uint16_t walked = (uint16_t)(a.bytes[7] | a.bytes[8] << 8);
		if (walked > names || a.len != 9 + 13 * (size_t)walked)
			return nf__broken(c, "Twalk");
		if (walked < names) {
			/* A short answer gives no reason (walk(5)): the step that failed is asked for by itself. */
			unsigned char *step = message + 17;
			for (uint16_t n = 0; n < walked; n++)
				step += 2 + (step[0] | step[1] << 8);
			nf__p16(message + 15, walked);
			if (nf__ask(c, message, (size_t)(step - message), 110, "Twalk", 9, &a) < 0)
				goto bad;
			if ((a.bytes[7] | a.bytes[8] << 8) == walked) {
				begin = fid;
				nf__p32(nf__p32(message + 7, (uint32_t)fid), (uint32_t)fid);
				nf__p16(message + 15, 1);
				for (; walked < names; walked++) {
					size_t n = 2 + (size_t)(step[0] | step[1] << 8);
					memmove(message + 17, step, n);
					if (nf__ask(c, message, 17 + n, 110, "Twalk", 9, &a) < 0)
						goto bad;
					step += n;
				}
			}
			nf__fail(c, ENOENT, "Twalk: %s", strerror(ENOENT));
			goto bad;
		}
		begin = fid;
	} while (path < end);
	return fid;
bad:;
	/* The fid is there only if a step before was whole; and what is told is why this one was not. */
	int error = c->error;
	char text[sizeof c->text];
	memcpy(text, c->text, sizeof text);
	if (begin == fid)
		nf_clunk(c, fid);
	else
		nf__forget(c, fid);
	if (!c->ended) {
		c->error = error;
		memcpy(c->text, text, sizeof text);
	}
	return -1;
}

static inline int
nf_walk(ninefold *c, int from, const char *path)
{
	return nf__walk(c, from, path, strlen(path));
}

/* The fid after an open or a create that was asked for, or what it was before that. */
static inline int
nf__opened(ninefold *c, int fid, unsigned char *message, size_t len, unsigned char type, const char *what)
{
	struct nf__answer a;
	if (nf__ask(c, message, len, type, what, 24, &a) == 0) {
		c->iounit[fid] = nf__g32(a.bytes + 20);
		return fid;
	}
	int error = c->error;
	char text[sizeof c->text];
	memcpy(text, c->text, sizeof text);
	if (nf_clunk(c, fid) == 0 || !c->ended) {
		c->error = error;
		memcpy(c->text, text, sizeof text);
	}
	return -1;
}

static inline int
nf_open(ninefold *c, int from, const char *path, int flags)
{
	unsigned char message[15];
	int fid = nf_walk(c, from, path);
	if (fid < 0)
		return -1;
	nf__p32(nf__p32(message + 7, (uint32_t)fid), (uint32_t)(flags & ~(O_CLOEXEC | O_CREAT)));
	return nf__opened(c, fid, message, sizeof message, 12, "Tlopen");
}

static inline int
nf_create(ninefold *c, int from, const char *path, int flags, mode_t mode)
{
	unsigned char message[NF_MOST], *p;
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t len = strlen(name);
	if (len == 0 || len > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return nf__fail(c, EINVAL, "Tlcreate: bad file name");
	int fid = nf__walk(c, from, path, (size_t)(name - path));
	if (fid < 0)
		return -1;
	p = nf__p16(nf__p32(message + 7, (uint32_t)fid), (uint16_t)len);
	memcpy(p, name, len);
	p = nf__p32(p + len, (uint32_t)((flags & ~O_CLOEXEC) | O_CREAT));
	p = nf__p32(nf__p32(p, mode), UINT32_MAX);
	return nf__opened(c, fid, message, (size_t)(p - message), 14, "Tlcreate");
}

static inline int
nf_stat(ninefold *c, int fid, uint64_t *size, uint32_t *mode)
{
	unsigned char message[19];
	struct nf__answer a;
	if (nf__has(c, fid) < 0)
		return -1;
	nf__p64(nf__p32(message + 7, (uint32_t)fid), 0x7ff);
	if (nf__ask(c, message, sizeof message, 24, "Tgetattr", 160, &a) < 0)
		return -1;
	if (mode)
		*mode = nf__g32(a.bytes + 28);
	if (size)
		*size = nf__g64(a.bytes + 56);
	return 0;
}

/* ---- bytes ---- */

static inline int
nf_alloc(ninefold *c, nf_buffer *b, size_t len)
{
	uint32_t need = (uint32_t)(len / NF_PAGE) + (len % NF_PAGE != 0 || len == 0), from, n, run = 0;
	if (c->base != NULL && len <= (uint64_t)c->pages * NF_PAGE)
		for (n = 0, from = c->next; n < c->pages + need; n++, from++) {
			if (from >= c->pages)
				from = run = 0;
			run = c->used[from / 64] >> from % 64 & 1 ? 0 : run + 1;
			if (run < need)
				continue;
			from -= need - 1;
			for (n = from; n < from + need; n++)
				c->used[n / 64] |= (uint64_t)1 << n % 64;
			c->next = from + need;
			*b = (nf_buffer){c->base + c->arena + (uint64_t)from * NF_PAGE, len, from * NF_PAGE};
			return 0;
		}
	return nf__fail(c, ENOBUFS, "the channel's arena is full: free buffers, or ask for fewer bytes");
}

static inline void
nf_free(ninefold *c, nf_buffer *b)
{
	uint32_t need = (uint32_t)(b->len / NF_PAGE) + (b->len % NF_PAGE != 0 || b->len == 0);
	uint32_t first = b->at / NF_PAGE, n;
	if (b->bytes == NULL || c->used == NULL)
		return;
	for (n = first; n < first + need; n++)
		c->used[n / 64] &= ~((uint64_t)1 << n % 64);
	c->next = first;
	b->bytes = NULL;
}

/* One request: bytes that were moved. Data is at `bytes`, or in the arena if `place` has a flag. */
static inline ssize_t
nf__move(ninefold *c, unsigned char type, int fid, unsigned char *bytes, uint32_t len, uint64_t offset,
    struct nf__place place)
{
	const char *what = type == 118 ? "Twrite" : "Tread";
	unsigned char head[NF_MOST];
	size_t behind = type == 118 ? len : 0, done, part;
	struct nf__answer a;
	if (c->ended || nf__next_tag(c) < 0)
		return -1;
	nf__p32(head, (uint32_t)(NF__HEAD + behind));
	head[4] = type;
	nf__p16(head + 5, c->tag);
	nf__p32(nf__p64(nf__p32(head + 7, (uint32_t)fid), offset), len);
	if (place.flag || behind == 0) {
		if (nf__send(c, head, NF__HEAD, place) < 0)
			return -1;
	} else {
		part = behind < NF_MOST - NF__HEAD ? behind : NF_MOST - NF__HEAD;
		memcpy(head + NF__HEAD, bytes, part);
		if (nf__send(c, head, NF__HEAD + part, place) < 0)
			return -1;
		for (done = part; done < behind; done += part) {
			part = behind - done < NF_MOST ? behind - done : NF_MOST;
			if (nf__send(c, bytes + done, part, place) < 0)
				return -1;
		}
	}
	int expected = nf__expect(c, &a, type, what);
	if (expected != 0)
		return -1;
	uint32_t count = a.len >= 11 ? nf__g32(a.bytes + 7) : UINT32_MAX;
	if (count > len)
		return nf__broken(c, what);
	if (type == 118)
		return a.len == 11 && !a.place.flag ? (ssize_t)count : nf__broken(c, what);
	if (a.place.flag)
		return place.flag && a.place.at == place.at ? (ssize_t)count : nf__broken(c, what);
	if (a.len != 11 + (size_t)count)
		return nf__broken(c, what);
	if (count > 0)
		memcpy(place.flag ? c->base + c->arena + place.at : bytes, a.bytes + 11, count);
	return (ssize_t)count;
}

/* Data of one request at most. */
static inline size_t
nf__unit(const ninefold *c, int fid)
{
	size_t most = c->msize - 24, unit = c->iounit[fid];
	return unit != 0 && unit < most ? unit : most;
}

/* Request after request, until one comes short: of a buffer, or copied through the arena where there is room. */
static inline ssize_t
nf__transfer(ninefold *c, unsigned char type, int fid, unsigned char *bytes, const nf_buffer *b, size_t at,
    size_t len, uint64_t offset)
{
	size_t done = 0;
	if (nf__has(c, fid) < 0)
		return -1;
	size_t unit = nf__unit(c, fid);
	do {
		struct nf__place place = {0, 0, 0};
		nf_buffer own = {NULL, 0, 0};
		size_t part = len - done < unit ? len - done : unit;
		if (b == NULL && part >= NF_SMALL) {
			if (part > 256 * 1024)
				part = 256 * 1024;
			if (nf_alloc(c, &own, part) == 0 && type == 118)
				memcpy(own.bytes, bytes + done, part);
		}
		if (b != NULL || own.bytes != NULL)
			place = (struct nf__place){type == 118 ? NF__DATA : NF__ROOM,
			    b != NULL ? b->at + (uint32_t)(at + done) : own.at, (uint32_t)part};
		unsigned char *here = bytes ? bytes + done : NULL;
		ssize_t moved = nf__move(c, type, fid, here, (uint32_t)part, offset + done, place);
		if (moved > 0 && own.bytes != NULL && here != NULL && type == 116)
			memcpy(here, own.bytes, (size_t)moved);
		nf_free(c, &own);
		if (moved < 0)
			return done > 0 && !c->ended ? (ssize_t)done : -1;
		done += (size_t)moved;
		if ((size_t)moved < part)
			break;
	} while (done < len);
	return (ssize_t)done;
}

static inline ssize_t
nf_read(ninefold *c, int fid, void *into, size_t len, uint64_t offset)
{
	return nf__transfer(c, 116, fid, into, NULL, 0, len, offset);
}

static inline ssize_t
nf_write(ninefold *c, int fid, const void *from, size_t len, uint64_t offset)
{
	return nf__transfer(c, 118, fid, (unsigned char *)(uintptr_t)from, NULL, 0, len, offset);
}

static inline ssize_t
nf_read_into(ninefold *c, int fid, const nf_buffer *b, size_t at, size_t len, uint64_t offset)
{
	if (b->bytes == NULL || at > b->len || len > b->len - at)
		return nf__fail(c, EINVAL, "%zu bytes at %zu are not in a buffer of %zu", len, at, b->len);
	return nf__transfer(c, 116, fid, NULL, b, at, len, offset);
}

static inline ssize_t
nf_write_from(ninefold *c, int fid, const nf_buffer *b, size_t at, size_t len, uint64_t offset)
{
	if (b->bytes == NULL || at > b->len || len > b->len - at)
		return nf__fail(c, EINVAL, "%zu bytes at %zu are not in a buffer of %zu", len, at, b->len);
	return nf__transfer(c, 118, fid, NULL, b, at, len, offset);
}

#endif /* __cplusplus */
#endif /* NINEFOLD_H */
