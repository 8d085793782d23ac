/*
 * A file is written and read, a directory listed, a file streamed; and a server mounted in a mux, where messages are sent
 * and received without waiting for each.
 *
 *	cc tour.c $(pkg-config --cflags --libs ninefold) -o tour && ./tour 9p://host:port
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ninefold_client.h>

/* A handle that must be one. */
static nine_handle got(nine_handle handle, const char *what)
{
	if (handle == 0)
		errx(1, "%s: %s", what, nine_errstr());
	return handle;
}

/* An answer that must not be -1. */
static int64_t done(int64_t answer, const char *what)
{
	if (answer < 0)
		errx(1, "%s: %s", what, nine_errstr());
	return answer;
}

static unsigned char *put(unsigned char *to, uint64_t value, int bytes)
{
	for (; bytes > 0; bytes--, value >>= 8)
		*to++ = value & 0xff;
	return to;
}

static unsigned char *text(unsigned char *to, const char *text)
{
	to = put(to, strlen(text), 2);
	memcpy(to, text, strlen(text));
	return to + strlen(text);
}

/* Sends a message of which the body is there; size[4] type[1] tag[2] go before it. */
static void send(nine_handle con, unsigned char *message, unsigned char *end, int type, unsigned tag)
{
	put(put(put(message, end - message, 4), type, 1), tag, 2);
	done(nine_mux_send(con, message, end - message), "send");
}

static void files(nine_handle client)
{
	static char big[16 << 20], back[sizeof big];
	nine_dirent entry;
	nine_stat_t known;
	size_t len = 0;
	int64_t n;

	done(nine_mkdir(client, "/tour", 0755), "mkdir");
	nine_handle file = got(nine_open(client, "/tour/motd", O_RDWR | O_CREAT, 0644), "open");
	done(nine_write(file, "hello from C\n", 13, 0), "write");
	n = done(nine_read(file, back, sizeof back, 6), "read");
	printf("read: %.*s", (int)n, back);
	done(nine_close(file), "close");

	for (size_t i = 0; i < sizeof big; i++)
		big[i] = i * 31 >> 7;
	file = got(nine_open(client, "/tour/big", O_WRONLY | O_CREAT | O_TRUNC, 0644), "open");
	nine_handle stream = got(nine_stream(file, 0, 0), "stream");
	for (size_t at = 0; at < sizeof big; at += 1 << 20)
		done(nine_swrite(stream, big + at, 1 << 20), "swrite");
	printf("written: %lld\n", (long long)done(nine_sclose(stream), "sclose"));
	done(nine_close(file), "close");

	file = got(nine_open(client, "/tour/big", O_RDONLY, 0), "open");
	stream = got(nine_stream(file, 0, 1), "stream");
	while ((n = done(nine_sread(stream, back + len, sizeof back - len), "sread")) > 0)
		len += n;
	printf("the same: %s\n", len == sizeof big && memcmp(big, back, len) == 0 ? "yes" : "no");
	done(nine_sclose(stream), "sclose");
	done(nine_close(file), "close");

	done(nine_rename(client, "/tour/big", "/tour/large"), "rename");
	done(nine_stat(client, "/tour/large", 1, &known), "stat");
	printf("large: %llu bytes\n", (unsigned long long)known.size);
	nine_handle dir = got(nine_opendir(client, "/tour"), "opendir");
	int names = 0;
	while (done(nine_readdir(dir, &entry), "readdir") > 0)
		names++;
	printf("names: %d\n", names);
	done(nine_close(dir), "closedir");
}

static void mux(const char *server)
{
	enum { Tversion = 100, Tattach = 104, Twalk = 110, Tclunk = 120, WALKS = 100 };
	unsigned char message[256], answer[8192];
	nine_handle mux = got(nine_mux_alloc(), "mux_alloc");

	done(nine_mux_mount_at(mux, server, "/n/there", NINE_MREPL), "mux_mount");
	done(nine_mux_bind(mux, "/n/there/tour", "/tour", NINE_MREPL), "mux_bind");

	/* As a client has it. */
	nine_handle client = got(nine_mux_client(mux), "mux_client");
	nine_handle file = got(nine_open(client, "/tour/motd", O_RDONLY, 0), "open");
	int64_t n = done(nine_read(file, answer, sizeof answer, 0), "read");
	printf("through the mux: %.*s", (int)n, (char *)answer);
	done(nine_close(file), "close");

	/* As messages: a hundred walks are under way before the first answer is received. */
	nine_handle con = got(nine_mux_attach(mux), "mux_attach");
	send(con, message, text(put(message + 7, 8192, 4), "9P2000.L"), Tversion, 0xffff);
	done(nine_mux_recv(con, answer, sizeof answer), "recv");
	unsigned char *end = text(text(put(put(message + 7, 0, 4), 0xffffffff, 4), ""), "");
	send(con, message, put(end, 0xffffffff, 4), Tattach, 0);
	done(nine_mux_recv(con, answer, sizeof answer), "recv");
	for (int i = 1; i <= WALKS; i++) {
		end = put(put(put(message + 7, 0, 4), i, 4), 2, 2);
		send(con, message, text(text(end, "tour"), "motd"), Twalk, i);
	}
	int walked = 0;
	for (int i = 1; i <= WALKS; i++) {
		done(nine_mux_recv(con, answer, sizeof answer), "recv");
		walked += answer[4] == Twalk + 1;
	}
	printf("walked: %d\n", walked);
	printf("and no more: %lld\n", (long long)done(nine_mux_tryrecv(con, answer, sizeof answer), "tryrecv"));

	done(nine_close(con), "close");
	done(nine_close(client), "close");
	done(nine_mux_unmount(mux, NULL, "/tour"), "mux_unmount");
	done(nine_close(mux), "close");
}

int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: tour SERVER");
	nine_handle client = got(nine_connect(argv[1], NULL), argv[1]);
	files(client);
	mux(argv[1]);
	done(nine_remove(client, "/tour/motd"), "remove");
	done(nine_remove(client, "/tour/large"), "remove");
	done(nine_rmdir(client, "/tour"), "rmdir");
	if (nine_open(client, "/none", O_RDONLY, 0) == 0)
		printf("errno %d: %s\n", nine_errno(), nine_errstr());
	done(nine_close(client), "close");
	return 0;
}
