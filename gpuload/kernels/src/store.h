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
    STORED_PIXELS = 16,                 // at a time; a row of sums has memory for so many at least
    SPARE_BYTES = 3 * STORED_PIXELS * 4,
};
static const uint64_t EACH_LANE = (1ULL << 2 * LANE) | (1ULL << LANE) | 1;

static inline uint64_t word_of(const uint8_t *pixel) {
    return (uint64_t)pixel[0] | (uint64_t)pixel[1] << LANE | (uint64_t)pixel[2] << 2 * LANE;
}

// Writes a row of sums as the values of a row of an image of the output.
void store_rgb_row(const uint64_t *sums, bool cubic, const Output *output, int64_t image, int64_t row);
