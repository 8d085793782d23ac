/* Reads a file of the channel of this name: named SOCKET NAME FILE. */
#include "ninefold.h"

int
main(int argc, char **argv)
{
	static ninefold host;
	char bytes[5000];
	if (argc != 4 || nf_dial_named(&host, argv[1], argv[2], NF_INTERRUPT) < 0) {
		fprintf(stderr, "%s\n", nf_error(&host));
		return 1;
	}
	int file = nf_open(&host, nf_attach(&host, "glenda", ""), argv[3], O_RDONLY);
	ssize_t len = nf_read(&host, file, bytes, sizeof bytes, 0);
	/* It is the same one when it is joined again. */
	if (len < 0 || nf_rejoin(&host) < 0 || nf_attach(&host, "glenda", "") < 0) {
		fprintf(stderr, "%s\n", nf_error(&host));
		return 1;
	}
	fwrite(bytes, 1, (size_t)len, stdout);
	nf_close(&host);
	return 0;
}
