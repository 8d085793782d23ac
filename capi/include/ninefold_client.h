/*
 * ninefold_client.h: files of 9P servers, streams, and the multiplexer, for programs in C and whatever binds to it.
 * docs/c.md explains it. Made by cbindgen from capi/src/sys.rs; not to be edited.
 *
 * Texts end with a zero byte. A buffer has as many bytes as is said, and nobody else uses it during the call. NULL is an
 * error (EFAULT) where nothing says that it may stand there. What fails says so (-1, or a handle of 0), and nine_errno()
 * and nine_errstr() why, to the thread that has called.
 */

#ifndef NINEFOLD_CLIENT_H
#define NINEFOLD_CLIENT_H

#include <stddef.h>
#include <stdint.h>

/**
 * NINE_MREPL: what is mounted or bound hides what was there.
 */
#define NINE_MREPL 0

/**
 * NINE_MBEFORE: it is looked at first.
 */
#define NINE_MBEFORE 1

/**
 * NINE_MAFTER: it is looked at last.
 */
#define NINE_MAFTER 2

/**
 * NINE_MCREATE, with one of these: new files may be made in it.
 */
#define NINE_MCREATE 4

/**
 * A client, file, directory, stream, mux or connection of a mux: a number, never used twice. 0 is none.
 */
typedef uint64_t nine_handle;

/**
 * How a server is reached. What is NULL or 0 is not said; set all of it to zero first, and `size` to its size. What
 * would not be used is EINVAL: `ca`, `pin`, `cert` and `key` without TLS, `ca` with `pin`, `cert` or `key` alone.
 */
typedef struct {
    /**
     * sizeof(nine_options).
     */
    size_t size;
    /**
     * Shown to a server that asks for a token.
     */
    const char *token;
    /**
     * As whom to attach; NULL: by this process' number.
     */
    const char *user;
    /**
     * Which tree of the server's.
     */
    const char *aname;
    /**
     * TLS: a PEM file of the authority of the server's certificate.
     */
    const char *ca;
    /**
     * TLS: the SHA-256 of the server's certificate, instead of `ca`.
     */
    const char *pin;
    /**
     * TLS: our own certificate, a PEM file.
     */
    const char *cert;
    /**
     * TLS: its key, a PEM file.
     */
    const char *key;
    /**
     * For the dial, its handshakes and the attach, in milliseconds; 0: 30,000.
     */
    uint32_t timeout_ms;
} nine_options;

/**
 * What is known about a file. Times are nanoseconds since 1970.
 */
typedef struct {
    /**
     * Type and permissions, as of stat(2).
     */
    uint32_t mode;
    /**
     * Owner.
     */
    uint32_t uid;
    /**
     * Group.
     */
    uint32_t gid;
    /**
     * Kind of its qid.
     */
    uint32_t qid_type;
    /**
     * Version of its qid.
     */
    uint64_t qid_version;
    /**
     * Path of its qid: which file of the server it is.
     */
    uint64_t qid_path;
    /**
     * Names that it has.
     */
    uint64_t nlink;
    /**
     * Length in bytes.
     */
    uint64_t size;
    /**
     * Preferred size of reads and writes, bytes.
     */
    uint64_t blksize;
    /**
     * Blocks of 512 bytes that it takes.
     */
    uint64_t blocks;
    /**
     * Last read.
     */
    int64_t atime;
    /**
     * Last change of content.
     */
    int64_t mtime;
    /**
     * Last change of what is known about it.
     */
    int64_t ctime;
} nine_stat_t;

/**
 * A name in a directory.
 */
typedef struct {
    /**
     * Path of its qid.
     */
    uint64_t qid_path;
    /**
     * `d_type` of readdir(3): 4 directory, 8 file, 10 symbolic link, 0 not known.
     */
    uint32_t d_type;
    /**
     * Bytes of the name.
     */
    uint32_t namelen;
    /**
     * The name, with a zero byte behind it; never "." or "..".
     */
    char name[256];
} nine_dirent;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of this library, such as "0.1.0".
 */
const char *nine_version(void);

/**
 * The errno of this thread's latest call that has failed; 0 before the first.
 */
int nine_errno(void);

/**
 * What that was in words: never NULL, good until this thread's next call that fails.
 */
const char *nine_errstr(void);

/**
 * Lets go of a handle of any kind. Closing a client ends its session, and closing a mux ends it and all that is
 * connected to it: who waits there is told. 0, or -1: the handle is none, or something written was not kept.
 */
int nine_close(nine_handle handle);

/**
 * A session with the server at an address: `9p://host:port`, `tcp!host!port`, `9p+tls://host`, `unix!/run/x.sock`,
 * `vsock!cid!port`. `options` may be NULL. 0: it has failed.
 */
nine_handle nine_connect(const char *server,
                         const nine_options *options);

/**
 * Opens a file, with flags of open(2); O_CREAT makes it with the permissions `mode`, and O_NOFOLLOW opens no link
 * (ELOOP). 0: it has failed.
 */
nine_handle nine_open(nine_handle client,
                      const char *path,
                      int flags,
                      uint32_t mode);

/**
 * Reads up to `count` bytes at `offset`: fewer at the end of the file, where it is 0. -1: it has failed.
 */
int64_t nine_read(nine_handle file, void *buf, size_t count, uint64_t offset);

/**
 * Writes `count` bytes at `offset`; says how many the server has taken, fewer only before an error, which the next
 * write meets. -1: it has failed.
 */
int64_t nine_write(nine_handle file,
                   const void *buf,
                   size_t count,
                   uint64_t offset);

/**
 * Waits until what was written is on stable storage; `datasync`: its content only. 0 or -1.
 */
int nine_fsync(nine_handle file, int datasync);

/**
 * What is known about an open file. 0 or -1.
 */
int nine_fstat(nine_handle file, nine_stat_t *out);

/**
 * What is known about the file at a path; `follow`: a link at its end is followed. 0 or -1.
 */
int nine_stat(nine_handle client, const char *path, int follow, nine_stat_t *out);

/**
 * Makes a directory with the permissions `mode`. 0 or -1.
 */
int nine_mkdir(nine_handle client, const char *path, uint32_t mode);

/**
 * Removes a file or link. 0 or -1.
 */
int nine_remove(nine_handle client, const char *path);

/**
 * Removes an empty directory. 0 or -1.
 */
int nine_rmdir(nine_handle client, const char *path);

/**
 * Gives a file another name; what has it is replaced where the server's dialect can (9P2000.L). 0 or -1.
 */
int nine_rename(nine_handle client, const char *old, const char *new_);

/**
 * Makes a symbolic link at `path`. 0 or -1.
 */
int nine_symlink(nine_handle client, const char *target, const char *path);

/**
 * Where a symbolic link leads, with no zero byte behind it; says how many bytes that are, of which `buf` has the first
 * `count`. -1: it has failed.
 */
int64_t nine_readlink(nine_handle client,
                      const char *path,
                      char *buf,
                      size_t count);

/**
 * Changes permissions. 0 or -1.
 */
int nine_chmod(nine_handle client, const char *path, uint32_t mode);

/**
 * Cuts a file, or makes it longer with zeros. 0 or -1.
 */
int nine_truncate(nine_handle client, const char *path, uint64_t size);

/**
 * Sets the times of the last read and change, nanoseconds since 1970. 0 or -1.
 */
int nine_utime(nine_handle client, const char *path, int64_t atime, int64_t mtime);

/**
 * Opens a directory, to be read by nine_readdir(). 0: it has failed.
 */
nine_handle nine_opendir(nine_handle client, const char *path);

/**
 * The next name of a directory: 1, 0 at its end, -1: it has failed. A name of more than 255 bytes is ENAMETOOLONG, and
 * the next call goes on behind it.
 */
int nine_readdir(nine_handle dir,
                 nine_dirent *out);

/**
 * A file in order, from `offset` on: to be read by nine_sread() if `isread`, else to be written by nine_swrite().
 * Where the server has streams and there is enough to be moved, over a connection of its own. 0: it has failed.
 */
nine_handle nine_stream(nine_handle file,
                        uint64_t offset,
                        int isread);

/**
 * The next bytes of a stream, at most `count`, as many as have come; 0 at the end. -1: it has failed.
 */
int64_t nine_sread(nine_handle stream, void *buf, size_t count);

/**
 * Writes `count` bytes next, all of them. An error may show in a later call, at the latest in nine_sclose(). -1: it
 * has failed.
 */
int64_t nine_swrite(nine_handle stream,
                    const void *buf,
                    size_t count);

/**
 * 1 if a connection of its own carries the stream now, 0 if not, -1: it has failed.
 */
int nine_sconnected(nine_handle stream);

/**
 * Ends a stream and lets go of it; what was written, the server has taken then. Says how many bytes were moved; -1: it
 * has failed.
 */
int64_t nine_sclose(nine_handle stream);

/**
 * A mux whose name space is an empty tree in memory, in which missing mount points are made (muxalloc). It has a
 * thread of its own until it is closed. 0: it has failed.
 */
nine_handle nine_mux_alloc(void);

/**
 * Mounts the server at the other end of a connected stream socket on `old` (muxmount). The mux keeps a duplicate of
 * `fd`, which is non-blocking from then on, and nobody else's to read or write; when the connection goes, the mount
 * fails. Says the mount's number; -1: it has failed (EPROTOTYPE: no stream socket, ENOTCONN: not connected).
 */
int64_t nine_mux_mount(nine_handle mux,
                       int fd,
                       const char *old,
                       int flag);

/**
 * Mounts the server at an address (TCP, unix, vsock) on `old`; it is dialled again when it goes. Says the mount's
 * number; -1: it has failed.
 */
int64_t nine_mux_mount_at(nine_handle mux,
                          const char *server,
                          const char *old,
                          int flag);

/**
 * Makes what is at `new` be seen at `old`, too (muxbind). Says the mount's number; -1: it has failed.
 */
int64_t nine_mux_bind(nine_handle mux, const char *new_, const char *old, int flag);

/**
 * Takes away what was mounted or bound on `old`: `new`, or everything if that is NULL. 0 or -1.
 */
int nine_mux_unmount(nine_handle mux, const char *new_, const char *old);

/**
 * A session with the mux' name space, as one with a server. 0: it has failed.
 */
nine_handle nine_mux_client(nine_handle mux);

/**
 * A connection to the mux, for messages (muxattach). 0: it has failed.
 */
nine_handle nine_mux_attach(nine_handle mux);

/**
 * Sends one T-message, `size[4]` first; never waits (muxsend). Tags and fids are the caller's. 0; -1: it has failed:
 * EAGAIN says that much waits already, and that messages should be received first.
 */
int nine_mux_send(nine_handle con,
                  const void *message,
                  size_t count);

/**
 * Waits for the next R-message (muxrecv), and says how many bytes it has. -1: it has failed; EMSGSIZE: it has more
 * than `count`, and stays.
 */
int64_t nine_mux_recv(nine_handle con,
                      void *buf,
                      size_t count);

/**
 * The same without waiting: 0, if there is none.
 */
int64_t nine_mux_tryrecv(nine_handle con, void *buf, size_t count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NINEFOLD_CLIENT_H */
