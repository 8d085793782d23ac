// In front of libc: counts the bytes that a program copies, in a file that whoever measures it reads.

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t unread;
static uint64_t *copied = &unread;

__attribute__((constructor)) static void begin(void)
{
	const char *name = getenv("NINE_COPIED");
	int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *copied, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		copied = at;
}

void *memmove(void *to, const void *from, size_t n)
{
	char *t = to;
	const char *f = from;
	__atomic_add_fetch(copied, n, __ATOMIC_RELAXED);
	if (t < f)
		for (size_t i = 0; i < n; i++)
			t[i] = f[i];
	else
		for (size_t i = n; i > 0; i--)
			t[i - 1] = f[i - 1];
	return to;
}

void *memcpy(void *to, const void *from, size_t n) { return memmove(to, from, n); }
void *mempcpy(void *to, const void *from, size_t n) { return (char *)memmove(to, from, n) + n; }
void *__memcpy_chk(void *to, const void *from, size_t n, size_t room) { return memmove(to, from, n); }
void *__memmove_chk(void *to, const void *from, size_t n, size_t room) { return memmove(to, from, n); }
