// The threads' work on a batch: each takes its share of the rows, some at a time, in one call from Python.
//
// Python's lock is held only between calls. One call an image would cost 49 to 66 µs of Python for each image of 500×375,
// which would limit 16 threads to some 15,000 images/s (2 cores, 2026-11).

#include "images.h"

// A kernel and its arguments: processes rows begin..end-1, and returns DONE or OUT_OF_MEMORY.
typedef struct {
    int64_t (*run)(const void *arguments, int64_t begin, int64_t end);
    const void *arguments;
} KernelCall;

typedef struct {
    int64_t rows, rows_at_once;
    const Picture *pictures;
    const ImageBatch *images;  // what completes pictures; NULL: nothing is decoded here
    const KernelCall *steps;       // what is made of pictures then
    int64_t steps_number;
    int64_t leaves_all;      // each block is left to Python after decoding
} Blocks;

enum { ALL_TAKEN = -1, FAILED = -2 };

static bool has_missing_pictures(const Blocks *blocks, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
        if (blocks->pictures[row].pixels == NULL)
            return true;
    return false;
}

// One thread's share of a batch. taken: how many rows threads have taken. Returns where a block begins that is left to the
// caller, since a picture is missing or `leaves_all` is set; ALL_TAKEN once no block is left; or FAILED for lack of memory.
EXPORT int64_t run_blocks(const Blocks *blocks, const ImageThread *thread, int64_t *taken) {
    for (;;) {
        int64_t begin = __atomic_fetch_add(taken, blocks->rows_at_once, __ATOMIC_RELAXED);
        if (begin >= blocks->rows)
            return ALL_TAKEN;
        int64_t end = min_of(begin + blocks->rows_at_once, blocks->rows);
        if (blocks->images != NULL)
            decode_images(blocks->images, thread, begin, end);
        if (blocks->leaves_all || has_missing_pictures(blocks, begin, end))
            return begin;
        for (int64_t step = 0; step < blocks->steps_number; step++)
            if (blocks->steps[step].run(blocks->steps[step].arguments, begin, end) != DONE)
                return FAILED;
    }
}
