/*
 * The measurement of PROSE: so many writes of so many bytes to a file of the host, and how long one takes.
 * null [-s SOCKET] [-p | -i] [-z] FILE SIZE [WRITES]; -p polls, -i sleeps at once, -z writes as it lies in the arena.
 * Without -s the program has inherited its channel: ninefold partition run -- null dev/null 4096.
 */
#include "ninefold.h"

static ninefold host;

static void
fail(void)
{
	fprintf(stderr, "null: %s\n", nf_error(&host));
	exit(1);
}

int
main(int argc, char **argv)
{
	const char *socket = NULL, *user = getenv("USER");
	enum nf_wait wait = NF_ADAPTIVE;
	int copies = 1, option;
	while ((option = getopt(argc, argv, "s:piz")) != -1)
		switch (option) {
		case 's': socket = optarg; break;
		case 'p': wait = NF_POLL; break;
		case 'i': wait = NF_INTERRUPT; break;
		case 'z': copies = 0; break;
		default: return 2;
		}
	if (argc - optind != 2 && argc - optind != 3) {
		fprintf(stderr, "usage: null [-s SOCKET] [-p | -i] [-z] FILE SIZE [WRITES]\n");
		return 2;
	}
	size_t size = strtoul(argv[optind + 1], NULL, 10);
	unsigned long writes = argc - optind == 3 ? strtoul(argv[optind + 2], NULL, 10) : 10000, n;
	if ((socket ? nf_dial(&host, socket, wait) : nf_inherit(&host, wait)) < 0)
		fail();
	int root = nf_attach(&host, user ? user : "", "");
	int file = root < 0 ? -1 : nf_open(&host, root, argv[optind], O_WRONLY);
	nf_buffer buffer = {NULL, 0, 0};
	if (file < 0 || (!copies && nf_alloc(&host, &buffer, size) < 0))
		fail();
	char *data = malloc(size + 1);
	if (data == NULL)
		return 1;
	memset(copies ? data : (char *)buffer.bytes, 'x', size);
	uint64_t begun = nf__now();
	for (n = 0; n < writes; n++) {
		ssize_t taken = copies ? nf_write(&host, file, data, size, 0)
		    : nf_write_from(&host, file, &buffer, 0, size, 0);
		if (taken < 0)
			fail();
		if ((size_t)taken != size) {
			fprintf(stderr, "null: the host has taken %zd of %zu bytes\n", taken, size);
			return 1;
		}
	}
	printf("%zu %.3f us\n", size, (double)(nf__now() - begun) / 1e3 / (double)(writes ? writes : 1));
	free(data);
	nf_close(&host);
	return 0;
}
