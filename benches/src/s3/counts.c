// Counts what a process allocates and copies, for `./dev bench s3 --counts`: loaded in front of the C library, into the very binary
// that is shipped, so that nothing in it has to know. The four numbers stand in a file named after the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Shorter copies are of names and numbers, not of bodies.
#define COPY_BYTES_MIN 1024

struct counts {
    _Atomic uint64_t allocations, allocated_bytes, copies, copied_bytes;
};

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

// Until the file is there.
static struct counts nowhere, *counts = &nowhere;
static void *(*move)(void *, const void *, size_t);

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    const char *directory = getenv("FLOTILLA_COUNTS");
    move = (void *(*)(void *, const void *, size_t))dlsym(RTLD_NEXT, "memmove");
    if (!directory || snprintf(path, sizeof path, "%s/%d", directory, (int)getpid()) >= (int)sizeof path) return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof *counts) != 0) return;
    void *shared = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) counts = shared;
    close(file);
}

static void add(_Atomic uint64_t *number, uint64_t what) { atomic_fetch_add_explicit(number, what, memory_order_relaxed); }

static void allocated(size_t bytes) {
    add(&counts->allocations, 1);
    add(&counts->allocated_bytes, bytes);
}

void *malloc(size_t bytes) { return allocated(bytes), __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) { return allocated(count * bytes), __libc_calloc(count, bytes); }
void *realloc(void *from, size_t bytes) { return allocated(bytes), __libc_realloc(from, bytes); }
void *memalign(size_t align, size_t bytes) { return allocated(bytes), __libc_memalign(align, bytes); }
void *aligned_alloc(size_t align, size_t bytes) { return allocated(bytes), __libc_memalign(align, bytes); }
int posix_memalign(void **to, size_t align, size_t bytes) {
    *to = memalign(align, bytes);
    return *to ? 0 : ENOMEM;
}

void *memmove(void *to, const void *from, size_t bytes) {
    if (bytes >= COPY_BYTES_MIN) {
        add(&counts->copies, 1);
        add(&counts->copied_bytes, bytes);
    }
    if (move) return move(to, from, bytes);
    // Before the C library was found. Volatile, or the compiler calls us again.
    volatile char *put = to;
    const volatile char *take = from;
    if ((uintptr_t)to - (uintptr_t)from >= bytes)
        for (size_t at = 0; at < bytes; at++) put[at] = take[at];
    else
        for (size_t at = bytes; at-- > 0;) put[at] = take[at];
    return to;
}
void *memcpy(void *to, const void *from, size_t bytes) { return memmove(to, from, bytes); }
