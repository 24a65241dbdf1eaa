/* Allocations of a process that fail when they are told to; loaded before the C library's by LD_PRELOAD.
 *
 * While armed, allocations of at least `smallest` bytes, of all threads, are numbered from 1; those from `first` to
 * `last` fail as they do when memory is full. The C library's own functions are called under the names that it gives
 * them for this: looking them up would allocate.
 *
 * A library may be spared, as it crashes itself where it finds no memory. Those places in its code still fail that have
 * allocated while the library learned. The loader is always spared: it ends the process where a thread asks for the
 * first time for what it keeps for itself of a library, and there is no memory for that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static atomic_bool armed;
static atomic_size_t smallest_counted, first_failing, last_failing, counted, failed;

void failing_malloc_arm(size_t smallest, size_t first, size_t last)
{
    smallest_counted = smallest;
    first_failing = first;
    last_failing = last;
    counted = 0;
    failed = 0;
    armed = 1;
}

void failing_malloc_disarm(void) { armed = 0; }

size_t failing_malloc_counted(void) { return counted; }

size_t failing_malloc_failed(void) { return failed; }

/* Calls from code between these two are spared but for those from places that were learned. */
static char *spared_begin, *spared_end;
static void *learned[64];
static size_t learned_count;
static bool learning;

void failing_malloc_spare(char *begin, char *end)
{
    spared_begin = begin;
    spared_end = end;
    learned_count = 0;
}

void failing_malloc_learn(int on) { learning = on; }

static char *loader_begin, *loader_end;

static int find_loader(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (library->dlpi_addr != getauxval(AT_BASE))
        return 0;
    loader_begin = (char *)library->dlpi_addr;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        char *end = loader_begin + library->dlpi_phdr[i].p_vaddr + library->dlpi_phdr[i].p_memsz;
        if (library->dlpi_phdr[i].p_type == PT_LOAD && end > loader_end)
            loader_end = end;
    }
    return 1;
}

__attribute__((constructor)) static void begin(void) { dl_iterate_phdr(find_loader, NULL); }

static bool within(char *begin, char *end, void *place) { return (char *)place >= begin && (char *)place < end; }

static bool spared(void *caller)
{
    if (within(loader_begin, loader_end, caller))
        return true;
    if (!within(spared_begin, spared_end, caller))
        return false;
    for (size_t i = 0; i < learned_count; i++)
        if (learned[i] == caller)
            return false;
    if (learning && learned_count < sizeof learned / sizeof *learned)
        learned[learned_count++] = caller;
    return true;
}

static int fails(size_t size, void *caller)
{
    if (!(armed || learning) || size < smallest_counted || spared(caller) || !armed)
        return 0;
    size_t number = ++counted;
    if (number < first_failing || number > last_failing)
        return 0;
    failed++;
    errno = ENOMEM;
    return 1;
}

#define CALLER __builtin_return_address(0)

/* A function that allocates `bytes`, and what it calls for that */
#define ALLOCATES(function, bytes, call) void *function { return fails(bytes, CALLER) ? NULL : call; }

static size_t product(size_t count, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? SIZE_MAX : bytes;
}

ALLOCATES(malloc(size_t size), size, __libc_malloc(size))
ALLOCATES(calloc(size_t count, size_t size), product(count, size), __libc_calloc(count, size))
ALLOCATES(realloc(void *old, size_t size), size, __libc_realloc(old, size))
ALLOCATES(reallocarray(void *old, size_t count, size_t size), product(count, size),
          __libc_realloc(old, product(count, size)))
ALLOCATES(memalign(size_t alignment, size_t size), size, __libc_memalign(alignment, size))
ALLOCATES(aligned_alloc(size_t alignment, size_t size), size, __libc_memalign(alignment, size))

int posix_memalign(void **out, size_t alignment, size_t size)
{
    if (alignment % sizeof(void *) || (alignment & (alignment - 1)) || !alignment)
        return EINVAL;
    void *found = fails(size, CALLER) ? NULL : __libc_memalign(alignment, size);
    if (!found)
        return ENOMEM;
    *out = found;
    return 0;
}
