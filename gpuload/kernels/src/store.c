#include "store.h"

enum { SPARE_BYTES = 3 * WORDS_AT_ONCE * 4 };

typedef float F32x16 __attribute__((vector_size(64)));
typedef float F32x32 __attribute__((vector_size(128)));
typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef uint8_t U8x32 __attribute__((vector_size(32)));

#define LANES_0_TO_15 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define LANES_16_TO_31 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
#define UNUSED_LANES -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1

// The order that makes pixels of three planes, of which `two` holds red and green, and `rest` blue.
#define PIXEL(n) n, n + 16, n + 32
#define FIRST_FIVE_PIXELS PIXEL(0), PIXEL(1), PIXEL(2), PIXEL(3), PIXEL(4)
#define NEXT_FIVE_PIXELS 21, 37, PIXEL(6), PIXEL(7), PIXEL(8), PIXEL(9), 10, 26
#define LAST_PIXELS 42, PIXEL(11), PIXEL(12), PIXEL(13), PIXEL(14), PIXEL(15)

// channel_bytes, pixel_bytes: from one channel, and from one pixel, of the output to the next.
static inline void store_floats(const U32x16 levels[3], const OutputMemory *output, uint8_t *values, int64_t channel_bytes) {
    F32x16 channels[3];
    for (int channel = 0; channel < 3; channel++) {
        F32x16 centered = __builtin_convertvector((I32x16)levels[channel], F32x16) - output->mean[channel];
        channels[channel] = centered * output->factor[channel];
    }
    if (output->planar) {
        for (int channel = 0; channel < 3; channel++)
            memcpy(values + channel * channel_bytes, &channels[channel], sizeof channels[channel]);
        return;
    }
    F32x32 two = __builtin_shufflevector(channels[0], channels[1], LANES_0_TO_15, LANES_16_TO_31);
    F32x32 rest = __builtin_shufflevector(channels[2], channels[2], LANES_0_TO_15, UNUSED_LANES);
    F32x16 first = __builtin_shufflevector(two, rest, FIRST_FIVE_PIXELS, 5);
    F32x16 next = __builtin_shufflevector(two, rest, NEXT_FIVE_PIXELS);
    F32x16 last = __builtin_shufflevector(two, rest, LAST_PIXELS);
    memcpy(values, &first, 64);
    memcpy(values + 64, &next, 64);
    memcpy(values + 128, &last, 64);
}

static inline void store_levels(const U32x16 levels[3], const OutputMemory *output, uint8_t *values, int64_t channel_bytes) {
    U8x16 channels[3];
    for (int channel = 0; channel < 3; channel++)
        channels[channel] = __builtin_convertvector(levels[channel], U8x16);
    if (output->planar) {
        for (int channel = 0; channel < 3; channel++)
            memcpy(values + channel * channel_bytes, &channels[channel], sizeof channels[channel]);
        return;
    }
    U8x32 two = __builtin_shufflevector(channels[0], channels[1], LANES_0_TO_15, LANES_16_TO_31);
    U8x32 rest = __builtin_shufflevector(channels[2], channels[2], LANES_0_TO_15, UNUSED_LANES);
    U8x16 first = __builtin_shufflevector(two, rest, FIRST_FIVE_PIXELS, 5);
    U8x16 next = __builtin_shufflevector(two, rest, NEXT_FIVE_PIXELS);
    U8x16 last = __builtin_shufflevector(two, rest, LAST_PIXELS);
    memcpy(values, &first, 16);
    memcpy(values + 16, &next, 16);
    memcpy(values + 32, &last, 16);
}

static inline void store_pixels(
    const uint64_t *sums, bool cubic, const OutputMemory *output, uint8_t *values, int64_t channel_bytes
) {
    U64x16 words;
    memcpy(&words, sums, sizeof words);
    U32x16 levels[3];
    split_sums(words, cubic, &levels[0], &levels[1], &levels[2]);
    if (output->floats)
        store_floats(levels, output, values, channel_bytes);
    else
        store_levels(levels, output, values, channel_bytes);
}

void store_rgb_row(const uint64_t *sums, bool cubic, const OutputMemory *output, int64_t image, int64_t row) {
    int64_t size = value_bytes(output);
    int64_t pixels = output->height * output->width;
    int64_t pixel_bytes = size * (output->planar ? 1 : 3);
    int64_t channel_bytes = size * (output->planar ? pixels : 1);
    uint8_t *values = output->values + image * 3 * pixels * size + row * output->width * pixel_bytes;
    if (output->width >= WORDS_AT_ONCE) {
        for (int64_t x = 0; x < output->width; x += WORDS_AT_ONCE) {
            int64_t begin = min_of(x, output->width - WORDS_AT_ONCE);  // the last vector overlaps the one before
            store_pixels(sums + begin, cubic, output, values + begin * pixel_bytes, channel_bytes);
        }
        return;
    }
    // A narrow row: stored aside as a whole vector, of which it takes what it has room for.
    uint8_t spare[SPARE_BYTES];
    int64_t spare_channel_bytes = output->planar ? WORDS_AT_ONCE * size : size;
    store_pixels(sums, cubic, output, spare, spare_channel_bytes);
    if (!output->planar) {
        memcpy(values, spare, (size_t)(output->width * pixel_bytes));
        return;
    }
    for (int channel = 0; channel < 3; channel++)
        memcpy(values + channel * channel_bytes, spare + channel * spare_channel_bytes, (size_t)(output->width * size));
}
