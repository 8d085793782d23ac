/*
 * What callers do wrong, and what may happen meanwhile: each is an error of the call and of nothing else.
 *
 *	edges SERVER DIR	DIR is the directory that SERVER serves
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ninefold_client.h>

static int failures;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			failures++; \
			fprintf(stderr, "%s:%d: %s (%d: %s)\n", __FILE__, __LINE__, #what, nine_errno(), nine_errstr()); \
		} \
	} while (0)

/* The call fails with this errno, and says something. */
#define FAILS(number, call) \
	do { \
		int64_t is = (int64_t)(call); \
		CHECK(is == -1 || is == 0); \
		CHECK(nine_errno() == (number) && nine_errstr()[0] != '\0'); \
	} while (0)

static const char *server;
static char buf[1 << 16];

/* Every call with this handle, which is not what it should be. */
static void bad_handle(nine_handle bad)
{
	nine_stat_t known;
	nine_dirent entry;

	FAILS(EBADF, nine_open(bad, "/a", O_RDONLY, 0));
	FAILS(EBADF, nine_read(bad, buf, sizeof buf, 0));
	FAILS(EBADF, nine_write(bad, buf, 1, 0));
	FAILS(EBADF, nine_fsync(bad, 0));
	FAILS(EBADF, nine_fstat(bad, &known));
	FAILS(EBADF, nine_stat(bad, "/a", 1, &known));
	FAILS(EBADF, nine_mkdir(bad, "/a", 0755));
	FAILS(EBADF, nine_remove(bad, "/a"));
	FAILS(EBADF, nine_rmdir(bad, "/a"));
	FAILS(EBADF, nine_rename(bad, "/a", "/b"));
	FAILS(EBADF, nine_symlink(bad, "/a", "/b"));
	FAILS(EBADF, nine_readlink(bad, "/a", buf, sizeof buf));
	FAILS(EBADF, nine_chmod(bad, "/a", 0644));
	FAILS(EBADF, nine_truncate(bad, "/a", 0));
	FAILS(EBADF, nine_utime(bad, "/a", 0, 0));
	FAILS(EBADF, nine_opendir(bad, "/a"));
	FAILS(EBADF, nine_readdir(bad, &entry));
	FAILS(EBADF, nine_stream(bad, 0, 1));
	FAILS(EBADF, nine_sread(bad, buf, sizeof buf));
	FAILS(EBADF, nine_swrite(bad, buf, 1));
	FAILS(EBADF, nine_sconnected(bad));
	FAILS(EBADF, nine_sclose(bad));
	FAILS(EBADF, nine_mux_mount(bad, 0, "/a", 0));
	FAILS(EBADF, nine_mux_mount_at(bad, "unix!/x", "/a", 0));
	FAILS(EBADF, nine_mux_bind(bad, "/a", "/b", 0));
	FAILS(EBADF, nine_mux_unmount(bad, NULL, "/a"));
	FAILS(EBADF, nine_mux_client(bad));
	FAILS(EBADF, nine_mux_attach(bad));
	FAILS(EBADF, nine_mux_send(bad, buf, 7));
	FAILS(EBADF, nine_mux_recv(bad, buf, sizeof buf));
	FAILS(EBADF, nine_mux_tryrecv(bad, buf, sizeof buf));
}

/* NULLs, lengths that no buffer has, texts that are none. */
static void bad_arguments(nine_handle client)
{
	nine_handle file = nine_open(client, "/edges", O_RDWR | O_CREAT | O_TRUNC, 0644);
	nine_options options = { .size = 3 };

	CHECK(file != 0);
	FAILS(EFAULT, nine_connect(NULL, NULL));
	FAILS(EINVAL, nine_connect(server, &options));
	FAILS(EINVAL, nine_connect("nothing", NULL));
	FAILS(EINVAL, nine_connect("tcp!\xff\xfe", NULL));
	FAILS(EINVAL, nine_connect("tls!127.0.0.1!1", NULL));
	FAILS(ECONNREFUSED, nine_connect("tcp!127.0.0.1!1", NULL));
	options = (nine_options){ .size = sizeof options, .pin = "00" };
	FAILS(EINVAL, nine_connect("tls!127.0.0.1!1", &options));
	options = (nine_options){ .size = sizeof options, .ca = "/no/such.pem" };
	FAILS(ENOENT, nine_connect("tls!127.0.0.1!1", &options));
	options.pin = "00";
	FAILS(EINVAL, nine_connect("tls!127.0.0.1!1", &options));
	options = (nine_options){ .size = sizeof options, .ca = "/no/such.pem", .cert = "/no/such.pem" };
	FAILS(EINVAL, nine_connect("tls!127.0.0.1!1", &options));
	/* What nobody would look at is not said. */
	const char *const secret = "9p://secret@127.0.0.1:1";
	nine_options unused[] = {
		{ .size = sizeof options, .ca = "/x" }, { .size = sizeof options, .pin = "00" },
		{ .size = sizeof options, .cert = "/x", .key = "/x" }, { .size = sizeof options, .key = "/x" },
	};
	for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
		FAILS(EINVAL, nine_connect(secret, &unused[i]));
		CHECK(strstr(nine_errstr(), "secret") == NULL);
	}
	FAILS(EINVAL, nine_connect("9p://secret@127.0.0.1:1/path", NULL));
	CHECK(strstr(nine_errstr(), "secret") == NULL);
	FAILS(EINVAL, nine_connect("9p+tls://secret@127.0.0.1:1", NULL));
	CHECK(strstr(nine_errstr(), "secret") == NULL);
	/* Of an older header: what lies behind is not looked at; of a newer one, what we do not know is not. */
	options = (nine_options){ .size = offsetof(nine_options, ca), .ca = (char *)1, .timeout_ms = 1 };
	nine_handle older = nine_connect(server, &options);
	CHECK(older != 0 && nine_close(older) == 0);
	struct { nine_options known; void *more; } newer = { { .size = sizeof newer }, (void *)1 };
	older = nine_connect(server, &newer.known);
	CHECK(older != 0 && nine_close(older) == 0);
	options.size = sizeof(size_t) + 3;
	FAILS(EINVAL, nine_connect(server, &options));
	FAILS(EFAULT, nine_open(client, NULL, O_RDONLY, 0));
	FAILS(EFAULT, nine_rename(client, "/edges", NULL));
	FAILS(EFAULT, nine_stat(client, "/edges", 1, NULL));
	FAILS(EFAULT, nine_fstat(file, NULL));
	FAILS(EFAULT, nine_read(file, NULL, 1, 0));
	FAILS(EFAULT, nine_write(file, NULL, 1, 0));
	FAILS(EINVAL, nine_read(file, buf, SIZE_MAX, 0));
	FAILS(EINVAL, nine_write(file, buf, SIZE_MAX, 0));
	CHECK(nine_read(file, NULL, 0, 0) == 0 && nine_write(file, NULL, 0, 0) == 0);
	CHECK(nine_read(file, buf, 1, UINT64_MAX) <= 0 && nine_write(file, "x", 1, UINT64_MAX) == -1);
	FAILS(EEXIST, nine_open(client, "/edges", O_RDWR | O_CREAT | O_EXCL, 0644));
	FAILS(ENOENT, nine_open(client, "/none", O_RDONLY, 0));
	FAILS(EISDIR, nine_open(client, "/", O_RDONLY, 0));
	FAILS(EINVAL, nine_mkdir(client, "/", 0755));
	FAILS(EINVAL, nine_mkdir(client, "/..", 0755));
	FAILS(ENOTDIR, nine_opendir(client, "/edges"));
	CHECK(nine_symlink(client, "edges", "/edges-link") == 0);
	FAILS(ELOOP, nine_open(client, "/edges-link", O_RDONLY | O_NOFOLLOW, 0));
	nine_handle followed = nine_open(client, "/edges-link", O_RDONLY, 0);
	CHECK(followed != 0 && nine_close(followed) == 0);
	followed = nine_open(client, "/edges", O_RDONLY | O_NOFOLLOW, 0);
	CHECK(followed != 0 && nine_close(followed) == 0);
	memset(buf, '#', sizeof buf);
	CHECK(nine_readlink(client, "/edges-link", buf, 3) == 5 && memcmp(buf, "edg#", 4) == 0);
	CHECK(nine_chmod(client, "/edges", 0600) == 0 && nine_truncate(client, "/edges", 7) == 0);
	CHECK(nine_utime(client, "/edges", -1500000000, 2000000001) == 0);
	nine_stat_t known;
	CHECK(nine_stat(client, "/edges-link", 1, &known) == 0 && known.size == 7 && (known.mode & 0777) == 0600);
	CHECK(known.atime == -1500000000 && known.mtime == 2000000001);
	CHECK(nine_remove(client, "/edges-link") == 0);

	/* A stream that goes the other way, and a second one. */
	nine_handle stream = nine_stream(file, 0, 1);
	FAILS(EBADF, nine_swrite(stream, "x", 1));
	FAILS(EFAULT, nine_sread(stream, NULL, 1));
	CHECK(nine_sconnected(stream) == 0);
	CHECK(nine_sread(stream, buf, sizeof buf) == 7 && nine_sread(stream, buf, sizeof buf) == 0);
	CHECK(nine_close(stream) == 0);
	bad_handle(stream);
	bad_handle(file == 0 ? 0 : client + 1000000);
	FAILS(EBADF, nine_sread(file, buf, 1));
	FAILS(EBADF, nine_mux_attach(client));
	CHECK(nine_close(file) == 0);
	FAILS(EBADF, nine_close(file));
	bad_handle(file);
	CHECK(nine_remove(client, "/edges") == 0);
}

static void *receive(void *con)
{
	int64_t answer = nine_mux_recv(*(nine_handle *)con, buf, sizeof buf);
	return (void *)(intptr_t)(answer == -1 ? nine_errno() : 0);
}

static void bad_messages(void)
{
	nine_handle mux = nine_mux_alloc();
	nine_handle con = nine_mux_attach(mux);
	unsigned char version[] = { 19, 0, 0, 0, 100, 0xff, 0xff, 0, 32, 0, 0, 6, 0, '9', 'P', '2', '0', '0', '0' };
	char small[10];
	pthread_t thread;
	void *failed;

	CHECK(mux != 0 && con != 0);
	FAILS(EINVAL, nine_mux_send(con, NULL, 0));
	FAILS(EFAULT, nine_mux_send(con, NULL, 7));
	FAILS(EINVAL, nine_mux_send(con, "\xff\xff\xff\xff\xff\xff\xff", 7));
	FAILS(EINVAL, nine_mux_send(con, version, sizeof version - 1));
	CHECK(nine_mux_send(con, version, sizeof version) == 0);
	FAILS(EMSGSIZE, nine_mux_recv(con, small, sizeof small));
	CHECK(nine_mux_recv(con, buf, sizeof buf) == 19 && buf[4] == 101);
	CHECK(nine_mux_tryrecv(con, buf, sizeof buf) == 0);

	FAILS(EINVAL, nine_mux_mount_at(mux, server, "/n", 77));
	FAILS(EINVAL, nine_mux_mount_at(mux, "x", "/n", 0));
	FAILS(EBADF, nine_mux_mount(mux, -1, "/n", 0));
	FAILS(EBADF, nine_mux_mount(mux, 9999, "/n", 0));
	int pipes[2];
	CHECK(pipe(pipes) == 0);
	FAILS(ENOTSOCK, nine_mux_mount(mux, pipes[0], "/n", 0));
	int lone = socket(AF_UNIX, SOCK_STREAM, 0);
	FAILS(ENOTCONN, nine_mux_mount(mux, lone, "/n", 0));
	int packets[2];
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, packets) == 0);
	FAILS(EPROTOTYPE, nine_mux_mount(mux, packets[0], "/n", 0));
	FAILS(EINVAL, nine_mux_mount_at(mux, "9p://secret@h/path", "/n", 0));
	CHECK(strstr(nine_errstr(), "secret") == NULL);
	FAILS(EOPNOTSUPP, nine_mux_mount_at(mux, "9p+tls://secret@h", "/n", 0));
	CHECK(strstr(nine_errstr(), "secret") == NULL);
	close(lone), close(packets[0]), close(packets[1]);
	CHECK(nine_mux_unmount(mux, NULL, "/nowhere") == -1);
	CHECK(nine_mux_bind(mux, "/none", "/here", NINE_MREPL) == -1);

	/* Who waits is told when it is closed. */
	CHECK(pthread_create(&thread, NULL, receive, &con) == 0);
	CHECK(nine_close(con) == 0);
	pthread_join(thread, &failed);
	CHECK((intptr_t)failed == EBADF);
	con = nine_mux_attach(mux);
	CHECK(pthread_create(&thread, NULL, receive, &con) == 0);
	CHECK(nine_close(mux) == 0);
	pthread_join(thread, &failed);
	CHECK((intptr_t)failed != 0);
	CHECK(nine_close(con) == 0);
	bad_handle(con);
	bad_handle(mux);
}

/* A mux takes the connection to a server, and uses it after the program has let go of it. */
static void mounted_by_a_socket(const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strncpy(at.sun_path, path, sizeof at.sun_path - 1);
	CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
	nine_handle mux = nine_mux_alloc();
	CHECK(nine_mux_mount(mux, fd, "/n", NINE_MREPL | NINE_MCREATE) > 0);
	close(fd);
	nine_handle client = nine_mux_client(mux);
	CHECK(client != 0);
	nine_handle file = nine_open(client, "/n/by-socket", O_RDWR | O_CREAT, 0644);
	CHECK(nine_write(file, "abc", 3, 0) == 3 && nine_read(file, buf, 10, 1) == 2 && memcmp(buf, "bc", 2) == 0);
	CHECK(nine_close(file) == 0 && nine_remove(client, "/n/by-socket") == 0);
	CHECK(nine_close(mux) == 0);
	CHECK(nine_open(client, "/n", O_RDONLY, 0) == 0);
	CHECK(nine_close(client) == 0);
}

static nine_handle shared;

static void *work(void *argument)
{
	char name[64], mine[100];
	int me = (int)(intptr_t)argument;

	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof name, "/thread-%d-%d", me, i);
		memset(mine, 'a' + me, sizeof mine);
		nine_handle file = nine_open(shared, name, O_RDWR | O_CREAT, 0644);
		CHECK(nine_write(file, mine, sizeof mine, 0) == sizeof mine);
		memset(mine, 0, sizeof mine);
		CHECK(nine_read(file, mine, sizeof mine, 0) == sizeof mine && mine[99] == 'a' + me);
		CHECK(nine_close(file) == 0 && nine_remove(shared, name) == 0);
		/* Its own error, whatever the others do. */
		CHECK(nine_open(shared, i % 2 ? "/none" : "/", O_RDONLY, 0) == 0);
		CHECK(nine_errno() == (i % 2 ? ENOENT : EISDIR));
	}
	return NULL;
}

static void in_threads_and_forks(void)
{
	pthread_t threads[8];

	shared = nine_connect(server, NULL);
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();
		if (child == 0) {
			alarm(60);
			bad_handle(shared);
			nine_handle own = nine_connect(server, NULL);
			nine_stat_t known;
			CHECK(own != 0 && own != shared && nine_stat(own, "/", 1, &known) == 0);
			CHECK(nine_close(own) == 0);
			_exit(failures != 0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	nine_handle file = nine_open(shared, "/left", O_RDWR | O_CREAT, 0644);
	CHECK(nine_close(shared) == 0);
	CHECK(nine_read(file, buf, 1, 0) == -1);
	CHECK(nine_close(file) == -1);
	FAILS(EBADF, nine_close(file));
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	server = argv[1];
	CHECK(nine_errno() == 0 && strcmp(nine_errstr(), "") == 0);
	CHECK(nine_version()[0] != '\0');
	bad_handle(0);
	bad_handle(UINT64_MAX);
	FAILS(EBADF, nine_close(0));
	nine_handle client = nine_connect(server, NULL);
	CHECK(client != 0);
	bad_arguments(client);
	CHECK(nine_close(client) == 0);
	bad_handle(client);
	bad_messages();
	mounted_by_a_socket(argv[2]);
	in_threads_and_forks();
	if (failures == 0)
		printf("edges: all as it should be\n");
	return failures != 0;
}
