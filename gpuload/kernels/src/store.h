// RGB pixels as words, and rows of sums of them as values of a batch.
//
// A word holds blue, green and red from its top, 21 bits each: a level (8 bits) times weights that sum to 1 << 13. So a
// filter takes one multiplication and one addition for all three channels. The weights of a cubic filter sum to 1 << 12,
// and a bias keeps their overshoot above 0.

#pragma once

#include "picture.h"

enum {
    LANE = 21,
    LINEAR_BITS = 13,
    CUBIC_BITS = 12,
    CUBIC_BIAS = 1 << 19,
    WORDS_AT_ONCE = 16,  // a row of sums has memory for a multiple of so many
};
typedef uint64_t U64x16 __attribute__((vector_size(128)));
typedef uint64_t U64x4 __attribute__((vector_size(32)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));
typedef uint32_t U32x32 __attribute__((vector_size(128)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));

static const uint64_t EACH_LANE = (1ULL << 2 * LANE) | (1ULL << LANE) | 1;

static inline uint64_t word_of(const uint8_t *pixel) {
    return (uint64_t)pixel[0] | (uint64_t)pixel[1] << LANE | (uint64_t)pixel[2] << 2 * LANE;
}

// For each of four places of a line: the word there, and the one after it. One load brings both; gathering single words
// takes longer.
typedef struct {
    U64x4 first, second;
} Neighbours;

INLINED U64x4 load_pairs(const uint64_t *first, const uint64_t *second) {
    U64x4 words;
    memcpy(&words, first, sizeof words / 2);
    memcpy((uint8_t *)&words + sizeof words / 2, second, sizeof words / 2);
    return words;
}

INLINED Neighbours load_neighbours(const uint64_t *line, const int32_t places[4]) {
    U64x4 even = load_pairs(line + places[0], line + places[2]);
    U64x4 odd = load_pairs(line + places[1], line + places[3]);
    return (Neighbours){__builtin_shufflevector(even, odd, 0, 4, 2, 6), __builtin_shufflevector(even, odd, 1, 5, 3, 7)};
}

// The levels, 0..255, of one channel of sums. bits: of this half of a sum, below the channel.
INLINED U32x16 levels_of(U32x16 half, int bits, bool cubic) {
    if (!cubic)
        return half >> bits & 255;
    I32x16 levels = (I32x16)(half >> bits & 511) - (CUBIC_BIAS >> CUBIC_BITS);
    return (U32x16)CLAMPED_LEVELS(levels);
}

// The levels of sums. Red lies in the low half of a sum, green and blue in the high half.
INLINED void split_sums(U64x16 sums, bool cubic, U32x16 *red, U32x16 *green, U32x16 *blue) {
    int bits = cubic ? CUBIC_BITS : LINEAR_BITS;
    U32x32 halves = (U32x32)sums;
    U32x16 low = __builtin_shufflevector(halves, halves, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    U32x16 high = __builtin_shufflevector(halves, halves, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    *red = levels_of(low, bits, cubic);
    *green = levels_of(high, LANE + bits - 32, cubic);
    *blue = levels_of(high, 2 * LANE + bits - 32, cubic);
}

// Writes a row of sums as the values of a row of an image of the output.
void store_rgb_row(const uint64_t *sums, bool cubic, const OutputMemory *output, int64_t image, int64_t row);
