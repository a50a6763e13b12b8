// What all kernels share: memory, whole numbers, and the functions that the library exports.
//
// Every kernel gives the same result on every processor: floats are computed as they are written (the compiler contracts
// nothing), a fused multiply-add is written as `fmaf`, and integers wrap around (-fwrapv).

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

// For functions whose arguments are constants where they are called, so that each call is compiled for these.
#define INLINED static inline __attribute__((always_inline))

// What a kernel returns to Python.
enum { OUT_OF_MEMORY = 0, DONE = 1 };

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// The number if it lies within low..high, else the nearer of the two; `low` where high < low.
static inline int64_t clamp(int64_t number, int64_t low, int64_t high) { return max_of(min_of(number, high), low); }

// Quotients rounded down and up, also of negative numbers. The divisor is positive.
static inline int64_t floor_div(int64_t number, int64_t divisor) {
    int64_t quotient = number / divisor;
    return number % divisor < 0 ? quotient - 1 : quotient;
}
static inline int64_t ceil_div(int64_t number, int64_t divisor) { return -floor_div(-number, divisor); }

static inline uint64_t load_little_endian(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}
static inline uint64_t load_big_endian(const uint8_t *bytes) { return __builtin_bswap64(load_little_endian(bytes)); }

// Memory of one call of a kernel. `take` gives pieces of it, aligned for vectors; `release_all` ends them. A kernel that
// has taken everything it needs asks once whether all of it came.
enum { MOST_PIECES = 16, PIECE_ALIGNMENT = 64 };
typedef struct {
    void *pieces[MOST_PIECES];
    int64_t number;
    bool has_failed;
} Memory;

static inline void *take(Memory *memory, int64_t count, size_t size) {
    size_t bytes = ((size_t)max_of(count, 1) * size + PIECE_ALIGNMENT - 1) & ~(size_t)(PIECE_ALIGNMENT - 1);
    void *piece = memory->number < MOST_PIECES ? aligned_alloc(PIECE_ALIGNMENT, bytes) : NULL;
    if (piece == NULL)
        memory->has_failed = true;
    else
        memory->pieces[memory->number++] = piece;
    return piece;
}

static inline void release_all(Memory *memory) {
    for (int64_t piece = 0; piece < memory->number; piece++)
        free(memory->pieces[piece]);
}

// The lanes of a vector of signed integers, clamped to 0..255.
#define CLAMPED_LEVELS(vector)                                     \
    __extension__({                                                \
        __typeof__(vector) not_negative = (vector) & ~((vector) < 0); \
        (not_negative & ~(not_negative > 255)) | ((not_negative > 255) & 255); \
    })
