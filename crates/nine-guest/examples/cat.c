/*
 * Prints a file of the host, or writes one: cat [-s SOCKET] FILE, cat [-s SOCKET] -w FILE <TEXT.
 * Without -s the program has inherited its channel: ninefold partition run -- cat FILE.
 */
#include "ninefold.h"

static ninefold host;

static void
fail(void)
{
	fprintf(stderr, "cat: %s\n", nf_error(&host));
	exit(1);
}

int
main(int argc, char **argv)
{
	const char *socket = NULL, *user = getenv("USER");
	int writes = 0, option;
	while ((option = getopt(argc, argv, "s:w")) != -1)
		if (option == 's')
			socket = optarg;
		else if (option == 'w')
			writes = 1;
		else
			return 2;
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: cat [-s SOCKET] [-w] FILE\n");
		return 2;
	}
	if ((socket ? nf_dial(&host, socket, NF_ADAPTIVE) : nf_inherit(&host, NF_ADAPTIVE)) < 0)
		fail();
	int root = nf_attach(&host, user ? user : "", "");
	if (root < 0)
		fail();
	int file = writes ? nf_create(&host, root, argv[optind], O_WRONLY | O_TRUNC, 0644)
	    : nf_open(&host, root, argv[optind], O_RDONLY);
	nf_buffer buffer;
	if (file < 0 || nf_alloc(&host, &buffer, 64 << 10) < 0)
		fail();
	/* What is in a buffer goes from and to other files as it lies there. */
	uint64_t offset = 0;
	ssize_t len, done, taken;
	if (writes) {
		while ((len = read(0, buffer.bytes, buffer.len)) > 0)
			for (done = 0; done < len; done += taken, offset += (uint64_t)taken) {
				taken = nf_write_from(&host, file, &buffer, (size_t)done, (size_t)(len - done), offset);
				if (taken <= 0)
					fail();
			}
		if (len < 0)
			perror("cat");
	} else {
		while ((len = nf_read_into(&host, file, &buffer, 0, buffer.len, offset)) > 0) {
			for (done = 0; done < len; done += taken)
				if ((taken = write(1, buffer.bytes + done, (size_t)(len - done))) < 0) {
					perror("cat");
					return 1;
				}
			offset += (uint64_t)len;
		}
		if (len < 0)
			fail();
	}
	nf_free(&host, &buffer);
	if (nf_clunk(&host, file) < 0)
		fail();
	nf_close(&host);
	return len < 0;
}
