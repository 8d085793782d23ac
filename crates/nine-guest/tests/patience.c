/* Calls of somebody with little patience, each as what it returned, its errno and whether the channel has ended. */
#include "ninefold.h"

static void
say(const ninefold *host, ssize_t returned)
{
	printf("%zd %d %d\n", returned, returned < 0 ? host->error : 0, host->ended);
}

int
main(int argc, char **argv)
{
	static ninefold host;
	char bytes[3000];
	if (argc != 2 || nf_dial(&host, argv[1], NF_ADAPTIVE) < 0) {
		fprintf(stderr, "%s\n", nf_error(&host));
		return 1;
	}
	int root = nf_attach(&host, "glenda", ""), file = nf_open(&host, root, "data", O_RDONLY);
	if (file < 0) {
		fprintf(stderr, "%s\n", nf_error(&host));
		return 1;
	}
	nf_patience(&host, 300);
	say(&host, nf_stat(&host, root, NULL, NULL));
	ssize_t len = nf_read(&host, file, bytes, sizeof bytes, 7);
	say(&host, len);
	if (len > 0 && memcmp(bytes, " in the file\nwhat is ", 21) != 0)
		return 2;
	say(&host, nf_clunk(&host, file));
	nf_patience(&host, 0);
	/* Of what was given up nothing is left: not the room, nor the tag; but the fid of a clunk is there. */
	len = nf_read(&host, file, bytes, sizeof bytes, 0);
	say(&host, len);
	if (len > 0 && memcmp(bytes, "what is in the file\n", 20) != 0)
		return 2;
	if (host.ended)
		say(&host, nf_rejoin(&host));
	nf_close(&host);
	return 0;
}
