/* A disk that is full, read-only, slow or broken, and clocks that step, for a process that preloads this.
 *
 * Rules lie in a small file that the test maps and changes while the process runs ($CHAOS_CONTROL; its layout is
 * in shim.py). Needs no root and touches no other process. A full disk is one without free blocks: what lies in
 * blocks that a file already has can be written, as on a real one; what is removed gives its blocks back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OPEN_WRITE = 1, OPEN_READ = 2, WRITE = 4, NAMES = 8, LOOK = 16, SYNC = 32 };

struct rule {
    volatile int32_t ops, error;
    volatile int64_t delay_us, full, room, hits;
    char prefix[472];
};

struct control {
    volatile int64_t wall_ns, boot_ns;
    struct rule rules[4];
};

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONTROL");
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = path ? real_open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    control = found == MAP_FAILED ? NULL : found;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int quiet(void) {
    if (!control)
        return 1;
    for (int at = 0; at < 4; at++)
        if (control->rules[at].ops)
            return 0;
    return 1;
}

static struct rule *rule_of(const char *path, int op) {
    for (int at = 0; control && path && at < 4; at++) {
        struct rule *one = &control->rules[at];
        size_t size = strlen(one->prefix);
        if ((one->ops & op) && size && !strncmp(path, one->prefix, size))
            return one;
    }
    return NULL;
}

static const char *path_of(int file, char *buffer) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, buffer, PATH_MAX - 1);
    if (size < 0)
        return NULL;
    buffer[size] = 0;
    return buffer;
}

/* 0, or the error after the rule's delay. */
static int hit(const char *path, int op) {
    if (quiet())
        return 0;
    struct rule *one = rule_of(path, op);
    if (!one)
        return 0;
    __sync_fetch_and_add(&one->hits, 1);
    if (one->delay_us) {
        struct timespec wait = {one->delay_us / 1000000, one->delay_us % 1000000 * 1000};
        nanosleep(&wait, NULL);
    }
    return one->error;
}

static int hit_file(int file, int op) {
    char buffer[PATH_MAX];
    return quiet() ? 0 : hit(path_of(file, buffer), op);
}

/* Takes `size` bytes of what is left on a full disk; how many there were. */
static int64_t take(struct rule *one, int64_t size) {
    int64_t room = one->room;
    int64_t taken = room < size ? room : size;
    one->room = room - taken;
    return taken;
}

static struct rule *full_of(int file) {
    char buffer[PATH_MAX];
    if (quiet())
        return NULL;
    struct rule *one = rule_of(path_of(file, buffer), WRITE);
    return one && one->full ? one : NULL;
}

/* How many of `count` bytes from `begin` (-1: where a write would go) fit. */
static int64_t fits(struct rule *one, int file, int64_t begin, int64_t count) {
    struct stat found;
    if (fstat(file, &found) || !S_ISREG(found.st_mode))
        return count;
    if (begin < 0) {
        int flags = fcntl(file, F_GETFL);
        begin = flags & O_APPEND ? found.st_size : lseek(file, 0, SEEK_CUR);
    }
    int64_t lacking = begin + count - (int64_t)found.st_blocks * 512;
    if (lacking <= 0)
        return count;
    int64_t got = take(one, (lacking + 4095) / 4096 * 4096);
    return got >= lacking ? count : count - lacking + got < 0 ? 0 : count - lacking + got;
}

#define FAIL(error_) do { int e_ = (error_); if (e_) { errno = e_; return -1; } } while (0)

static int open_op(int flags) {
    return (flags & (O_WRONLY | O_RDWR | O_CREAT)) ? OPEN_WRITE : OPEN_READ;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
        FAIL(hit(path, open_op(flags))); \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, int); va_end(more); \
        FAIL(hit(path, open_op(flags))); \
        return real(folder, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    FAIL(hit_file(file, WRITE));
    struct rule *full = count ? full_of(file) : NULL;
    if (full) {
        int64_t most = fits(full, file, -1, count);
        if (most <= 0)
            FAIL(ENOSPC);
        count = most;
    }
    return real(file, data, count);
}

#define PWRITE(name, offset_t) \
    ssize_t name(int file, const void *data, size_t count, offset_t begin) { \
        REAL(name); \
        FAIL(hit_file(file, WRITE)); \
        struct rule *full = count ? full_of(file) : NULL; \
        if (full) { \
            int64_t most = fits(full, file, begin, count); \
            if (most <= 0) FAIL(ENOSPC); \
            count = most; \
        } \
        return real(file, data, count, begin); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define FALLOCATE(name, offset_t) \
    int name(int file, int mode, offset_t begin, offset_t size) { \
        REAL(name); \
        FAIL(hit_file(file, WRITE)); \
        struct rule *full = full_of(file); \
        if (full && fits(full, file, begin, size) < size) FAIL(ENOSPC); \
        return real(file, mode, begin, size); \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

static int gives_back(const char *path) {
    struct rule *one = quiet() ? NULL : rule_of(path, WRITE);
    struct stat found;
    if (one && one->full && !lstat(path, &found) && found.st_nlink == 1)
        one->room += (int64_t)found.st_blocks * 512;
    return 0;
}

#define TRUNCATE(name, offset_t) \
    int name(int file, offset_t size) { \
        REAL(name); \
        FAIL(hit_file(file, WRITE)); \
        struct rule *full = full_of(file); \
        struct stat before, after; \
        int known = full && !fstat(file, &before); \
        int done = real(file, size); \
        if (known && !done && !fstat(file, &after) && after.st_blocks < before.st_blocks) \
            full->room += (int64_t)(before.st_blocks - after.st_blocks) * 512; \
        return done; \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    FAIL(hit(path, NAMES));
    struct rule *one = quiet() ? NULL : rule_of(path, WRITE);
    if (one && one->full && take(one, 4096) < 4096)
        FAIL(ENOSPC);
    return real(path, mode);
}

int unlink(const char *path) {
    REAL(unlink);
    FAIL(hit(path, NAMES));
    gives_back(path);
    return real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    FAIL(hit(path, NAMES));
    return real(folder, path, flags);
}

int rename(const char *path, const char *to) {
    REAL(rename);
    FAIL(hit(to, NAMES));
    return real(path, to);
}

int link(const char *path, const char *to) {
    REAL(link);
    FAIL(hit(to, NAMES));
    return real(path, to);
}

int fsync(int file) {
    REAL(fsync);
    FAIL(hit_file(file, SYNC));
    return real(file);
}

#define LOOK_AT(name, type) \
    int name(const char *path, type *found) { \
        REAL(name); \
        FAIL(hit(path, LOOK)); \
        return real(path, found); \
    }
LOOK_AT(stat, struct stat)
LOOK_AT(lstat, struct stat)
LOOK_AT(stat64, struct stat64)
LOOK_AT(lstat64, struct stat64)

#define FREE_OF(name, type) \
    int name(const char *path, type *found) { \
        REAL(name); \
        FAIL(hit(path, LOOK)); \
        int done = real(path, found); \
        struct rule *one = quiet() ? NULL : rule_of(path, WRITE); \
        if (!done && one && one->full) \
            found->f_bfree = found->f_bavail = one->room / (found->f_frsize ? found->f_frsize : 4096); \
        return done; \
    }
FREE_OF(statvfs, struct statvfs)
FREE_OF(statvfs64, struct statvfs64)

static void step(struct timespec *now, int64_t by) {
    int64_t sum = now->tv_nsec + by % 1000000000;
    now->tv_sec += by / 1000000000;
    if (sum >= 1000000000) { sum -= 1000000000; now->tv_sec++; }
    if (sum < 0) { sum += 1000000000; now->tv_sec--; }
    now->tv_nsec = sum;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int done = real(clock, now);
    if (!done && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        step(now, control->wall_ns);
    if (!done && control && clock == CLOCK_BOOTTIME)
        step(now, control->boot_ns);
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found))
        return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (out)
        *out = found.tv_sec;
    return found.tv_sec;
}
