/* Records what a process does to the files under a folder, with all data; loaded before the C library by LD_PRELOAD.
 *
 * From `recorder_start` to `recorder_stop` each change is appended to a trace, in the order in which they were made, by
 * whichever thread or fork. A record is a line `kind inode number length length`, and two strings of these lengths. The
 * system is called directly: to look up the C library's functions would allocate.
 *
 * What the C library does for itself is not seen (stdio, mkstemp), nor are raw system calls: the files that a replayed
 * trace ends with then differ from those that there are. What cannot be replayed is recorded as an `escape`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static int trace = -1;
static atomic_bool recording;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Append a record; ends the process if that fails, as a trace that lacks one is of no use. */
static void record(const char *kind, ino_t inode, long long number, const char *first, const char *second, size_t length)
{
    char line[128];
    int error = errno;
    size_t first_length = strlen(first);
    int line_length = snprintf(line, sizeof line, "%s %llu %lld %zu %zu\n", kind, (unsigned long long)inode, number,
                               first_length, length);
    struct iovec parts[] = {{line, line_length}, {(char *)first, first_length}, {(char *)second, length}};
    if (syscall(SYS_writev, trace, parts, 3) != (long)(line_length + first_length + length))
        abort();
    errno = error;
}

void recorder_start(const char *path, const char *trace_path)
{
    if (!realpath(path, folder))
        abort();
    folder_length = strlen(folder);
    trace = syscall(SYS_openat, AT_FDCWD, trace_path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (trace < 0)
        abort();
    recording = true;
}

void recorder_stop(void)
{
    recording = false;
    syscall(SYS_close, trace);
}

void recorder_mark(const char *text)
{
    pthread_mutex_lock(&one_at_a_time);
    record("mark", 0, 0, text, "", 0);
    pthread_mutex_unlock(&one_at_a_time);
}

static bool within(const char *path)
{
    return !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

/* The path of a descriptor; false if it has none. */
static bool path_of(int descriptor, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return path[0] == '/';
}

/* Whether a descriptor is of a file or a folder under the folder; gives its inode and its path. */
static bool is_ours(int descriptor, ino_t *inode, char path[PATH_MAX])
{
    struct stat status;
    int error = errno;
    bool ours = recording && descriptor >= 0 && !fstat(descriptor, &status) &&
                (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) && path_of(descriptor, path) && within(path);
    if (ours)
        *inode = status.st_ino;
    errno = error;
    return ours;
}

/* Whether a path, which may be relative to a descriptor, lies under the folder; gives it with no links in its parents. */
static bool is_under(int descriptor, const char *path, char found[PATH_MAX])
{
    char whole[2 * PATH_MAX] = "", base[PATH_MAX] = "";
    int error = errno;
    bool known = recording && (path[0] == '/' || (descriptor == AT_FDCWD ? getcwd(base, sizeof base) != NULL
                                                                         : path_of(descriptor, base)));
    if (known) {
        snprintf(whole, sizeof whole, "%s/%s", path[0] == '/' ? "" : base, path);
        while (whole[1] && whole[strlen(whole) - 1] == '/')
            whole[strlen(whole) - 1] = 0;
        char *name = strrchr(whole, '/');
        *name++ = 0;
        known = realpath(whole[0] ? whole : "/", found) != NULL && strlen(found) + strlen(name) + 2 <= PATH_MAX;
        if (known)
            strcat(strcat(found, "/"), name);
    }
    errno = error;
    return known && within(found);
}

/* -- files ----------------------------------------------------------------------------------------------------------*/

static int opened(int at, const char *path, int flags, mode_t mode)
{
    if (!recording)
        return syscall(SYS_openat, at, path, flags, mode);
    ino_t inode;
    char found[PATH_MAX];
    pthread_mutex_lock(&one_at_a_time);
    int descriptor = syscall(SYS_openat, at, path, flags, mode);
    if (is_ours(descriptor, &inode, found))
        record("open", inode, (flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY, found, "", 0);
    pthread_mutex_unlock(&one_at_a_time);
    return descriptor;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                      \
        va_end(rest);                                                                                                  \
        return opened(AT_FDCWD, path, flags, mode);                                                                    \
    }
#define OPENAT(name)                                                                                                   \
    int name(int at, const char *path, int flags, ...)                                                                 \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                      \
        va_end(rest);                                                                                                  \
        return opened(at, path, flags, mode);                                                                          \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return opened(at, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* `call` has `count` bytes written to a descriptor; `offset` is where, or -1 for where the descriptor is. */
#define WRITTEN(call, descriptor, offset, copy)                                                                        \
    ino_t inode;                                                                                                       \
    char path[PATH_MAX];                                                                                               \
    if (!is_ours(descriptor, &inode, path))                                                                            \
        return call;                                                                                                   \
    pthread_mutex_lock(&one_at_a_time);                                                                                \
    ssize_t count = call;                                                                                              \
    if (count > 0) {                                                                                                   \
        char *data = malloc(count);                                                                                    \
        if (!data)                                                                                                     \
            abort();                                                                                                   \
        copy;                                                                                                          \
        long long begin = (offset) < 0 ? lseek(descriptor, 0, SEEK_CUR) - count : (offset);                            \
        record("write", inode, begin, "", data, count);                                                                \
        free(data);                                                                                                    \
    }                                                                                                                  \
    pthread_mutex_unlock(&one_at_a_time);                                                                              \
    return count

static void gather(char *data, size_t count, const struct iovec *parts)
{
    for (size_t done = 0, length; done < count; done += length, parts++) {
        length = parts->iov_len < count - done ? parts->iov_len : count - done;
        memcpy(data + done, parts->iov_base, length);
    }
}

ssize_t write(int to, const void *from, size_t length)
{
    WRITTEN(syscall(SYS_write, to, from, length), to, -1LL, memcpy(data, from, count));
}

ssize_t pwrite64(int to, const void *from, size_t length, off64_t offset)
{
    WRITTEN(syscall(SYS_pwrite64, to, from, length, offset), to, offset, memcpy(data, from, count));
}
ssize_t pwrite(int to, const void *from, size_t length, off_t offset) { return pwrite64(to, from, length, offset); }

ssize_t writev(int to, const struct iovec *parts, int number)
{
    WRITTEN(syscall(SYS_writev, to, parts, number), to, -1LL, gather(data, count, parts));
}

ssize_t pwritev64v2(int to, const struct iovec *parts, int number, off64_t offset, int flags)
{
    /* The kernel takes the halves of an offset on 32-bit machines; those of 64 bits ignore the second */
    WRITTEN(syscall(SYS_pwritev2, to, parts, number, offset, 0, flags), to, offset, gather(data, count, parts));
}
ssize_t pwritev2(int to, const struct iovec *parts, int number, off_t offset, int flags)
{
    return pwritev64v2(to, parts, number, offset, flags);
}
ssize_t pwritev(int to, const struct iovec *parts, int number, off_t offset)
{
    return pwritev64v2(to, parts, number, offset, 0);
}
ssize_t pwritev64(int to, const struct iovec *parts, int number, off64_t offset)
{
    return pwritev64v2(to, parts, number, offset, 0);
}

/* What was copied is read again, from where it was read the first time. */
static void read_again(char *data, size_t count, int from, off64_t begin)
{
    for (ssize_t more; count; data += more, count -= more, begin += more)
        if ((more = pread(from, data, count, begin)) <= 0)
            abort();
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t length)
{
    off64_t begin = offset ? *offset : lseek(from, 0, SEEK_CUR);
    WRITTEN(syscall(SYS_sendfile, to, from, offset, length), to, -1LL, read_again(data, count, from, begin));
}
ssize_t sendfile(int to, int from, off_t *offset, size_t length) { return sendfile64(to, from, offset, length); }

ssize_t copy_file_range(int from, off64_t *offset, int to, off64_t *to_offset, size_t length, unsigned flags)
{
    off64_t begin = offset ? *offset : lseek(from, 0, SEEK_CUR), to_begin = to_offset ? *to_offset : -1;
    WRITTEN(syscall(SYS_copy_file_range, from, offset, to, to_offset, length, flags), to, to_begin,
            read_again(data, count, from, begin));
}

/* A call that changes what a descriptor is of, if it returns 0 */
#define CHANGED(call, descriptor, kind, number)                                                                        \
    ino_t inode;                                                                                                       \
    char path[PATH_MAX];                                                                                               \
    if (!is_ours(descriptor, &inode, path))                                                                            \
        return call;                                                                                                   \
    pthread_mutex_lock(&one_at_a_time);                                                                                \
    int failed = call;                                                                                                 \
    if (!failed)                                                                                                       \
        record(kind, inode, number, "", "", 0);                                                                        \
    pthread_mutex_unlock(&one_at_a_time);                                                                              \
    return failed

int ftruncate64(int of, off64_t size) { CHANGED(syscall(SYS_ftruncate, of, size), of, "truncate", size); }
int ftruncate(int of, off_t size) { return ftruncate64(of, size); }
int fsync(int of) { CHANGED(syscall(SYS_fsync, of), of, "sync", 0); }
int fdatasync(int of) { CHANGED(syscall(SYS_fdatasync, of), of, "sync", 0); }

/* -- names ----------------------------------------------------------------------------------------------------------*/

/* A call that changes a name, if it returns 0 */
#define NAMED(call, at, path, kind)                                                                                    \
    char found[PATH_MAX];                                                                                              \
    struct stat status = {0};                                                                                          \
    if (!is_under(at, path, found))                                                                                    \
        return call;                                                                                                   \
    pthread_mutex_lock(&one_at_a_time);                                                                                \
    int failed = call;                                                                                                 \
    if (!failed) {                                                                                                     \
        lstat(found, &status);                                                                                         \
        record(kind, status.st_ino, 0, found, "", 0);                                                                  \
    }                                                                                                                  \
    pthread_mutex_unlock(&one_at_a_time);                                                                              \
    return failed

int mkdirat(int at, const char *path, mode_t mode) { NAMED(syscall(SYS_mkdirat, at, path, mode), at, path, "mkdir"); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int unlinkat(int at, const char *path, int flags)
{
    NAMED(syscall(SYS_unlinkat, at, path, flags), at, path, "remove");
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int symlinkat(const char *target, int at, const char *path)
{
    NAMED(syscall(SYS_symlinkat, target, at, path), at, path, "escape");
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
int truncate64(const char *path, off64_t size) { NAMED(syscall(SYS_truncate, path, size), AT_FDCWD, path, "escape"); }
int truncate(const char *path, off_t size) { return truncate64(path, size); }

/* A call that gives something a second name, or another one, if it returns 0; one name may be outside of the folder */
#define BOTH_NAMED(call, kind)                                                                                         \
    char old[PATH_MAX] = "", new[PATH_MAX] = "";                                                                       \
    bool one = is_under(from_at, from, old), other = is_under(to_at, to, new);                                         \
    if (!one && !other)                                                                                                \
        return call;                                                                                                   \
    pthread_mutex_lock(&one_at_a_time);                                                                                \
    int failed = call;                                                                                                 \
    if (!failed)                                                                                                       \
        record(one && other ? kind : "escape", 0, 0, old, new, strlen(new));                                           \
    pthread_mutex_unlock(&one_at_a_time);                                                                              \
    return failed

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    BOTH_NAMED(syscall(SYS_renameat2, from_at, from, to_at, to, flags), flags & RENAME_EXCHANGE ? "escape" : "rename");
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_at, const char *from, int to_at, const char *to, int flags)
{
    BOTH_NAMED(syscall(SYS_linkat, from_at, from, to_at, to, flags), "link");
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* -- what cannot be replayed ----------------------------------------------------------------------------------------*/

static void escape(int descriptor, const char *call)
{
    ino_t inode;
    char path[PATH_MAX];
    if (!is_ours(descriptor, &inode, path))
        return;
    pthread_mutex_lock(&one_at_a_time);
    record("escape", inode, 0, path, call, strlen(call));
    pthread_mutex_unlock(&one_at_a_time);
}

void *mmap64(void *address, size_t length, int protection, int flags, int of, off64_t offset)
{
    /* A private one is of type 2, shared ones are of type 1 and 3 */
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && !(flags & MAP_ANONYMOUS))
        escape(of, "mmap");
    return (void *)syscall(SYS_mmap, address, length, protection, flags, of, offset);
}
void *mmap(void *address, size_t length, int protection, int flags, int of, off_t offset)
{
    return mmap64(address, length, protection, flags, of, offset);
}

int fallocate64(int of, int mode, off64_t offset, off64_t length)
{
    escape(of, "fallocate");
    return syscall(SYS_fallocate, of, mode, offset, length);
}
int fallocate(int of, int mode, off_t offset, off_t length) { return fallocate64(of, mode, offset, length); }
int posix_fallocate64(int of, off64_t offset, off64_t length) { return fallocate64(of, 0, offset, length) ? errno : 0; }
int posix_fallocate(int of, off_t offset, off_t length) { return posix_fallocate64(of, offset, length); }
