// A handler of SIGBUS: a failed read of a mapped file becomes a fault that the loader asks for, instead of the end of the
// process. Where a page cannot be read, memory of zeros takes its place, from there to the end of the mapping.

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

enum { SLOTS = 1 << 16 };  // as many mappings as Linux allows a process by default

// The protected ranges of memory; slot 0 is none.
typedef struct {
    uintptr_t begin, end;  // begin 0: not in use
    uintptr_t fault;       // the address that could not be read, or 0
} Range;

static Range ranges[SLOTS];
static int64_t faults;           // of all ranges so far
static int64_t passed_on;        // signals that were left to the previous handler
static struct sigaction previous;
static uintptr_t page_bytes;

// Whether a fault lies in this range, whose rest then holds zeros.
static bool replace_pages(Range *range, uintptr_t address) {
    uintptr_t begin = __atomic_load_n(&range->begin, __ATOMIC_ACQUIRE);
    if (begin == 0 || address < begin || address >= range->end)
        return false;
    uintptr_t page = address & ~(page_bytes - 1);
    void *wanted = (void *)page;
    if (mmap(wanted, range->end - page, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != wanted)
        return false;
    range->fault = address;
    __atomic_fetch_add(&faults, 1, __ATOMIC_SEQ_CST);
    return true;
}

// It calls only mmap, sigaction and raise, all of which may be called from a signal handler.
static void handle(int number, siginfo_t *info, void *context) {
    (void)context;
    bool is_fault = info->si_code > 0;  // not sent by kill
    bool is_ours = false;
    for (int slot = 1; is_fault && slot < SLOTS; slot++)  // a file may be protected several times
        is_ours |= replace_pages(&ranges[slot], (uintptr_t)info->si_addr);
    if (is_ours)
        return;
    // A handler that replaced this one may pass a fault to it, and each would call the other forever: so it is passed to the
    // previous handler once.
    struct sigaction by_default = {.sa_handler = SIG_DFL};
    bool is_first = __atomic_fetch_add(&passed_on, 1, __ATOMIC_SEQ_CST) == 0;
    sigaction(number, is_first ? &previous : &by_default, NULL);
    if (!is_fault)
        raise(number);
    // Else the access is repeated, with the previous handler.
}

// Installs the handler; a further call replaces a handler that was installed since then.
EXPORT void install_bus_handler(void) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct sigaction current;
    sigaction(SIGBUS, NULL, &current);
    if (current.sa_sigaction == handle)
        return;
    previous = current;
    passed_on = 0;
    struct sigaction own = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGBUS, &own, NULL);
}

// Protects memory that a file is mapped to, until its slot, 1..SLOTS-1, is released.
EXPORT void protect_range(int64_t slot, uintptr_t begin, uintptr_t end) {
    ranges[slot].end = end;
    ranges[slot].fault = 0;
    __atomic_store_n(&ranges[slot].begin, begin, __ATOMIC_RELEASE);  // last, since the handler goes by it
}

EXPORT void release_range(int64_t slot) { __atomic_store_n(&ranges[slot].begin, 0, __ATOMIC_RELEASE); }

EXPORT int64_t range_slots(void) { return SLOTS; }
EXPORT int64_t count_bus_faults(void) { return __atomic_load_n(&faults, __ATOMIC_SEQ_CST); }

// The byte of a range that could not be read; -1 if there is none.
EXPORT int64_t bus_fault_of(int64_t slot) {
    const Range *range = &ranges[slot];
    return range->fault == 0 ? -1 : (int64_t)(range->fault - range->begin);
}
